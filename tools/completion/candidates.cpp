#include "tools/completion/candidates.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "runtime/base/config.h"

namespace nccl_ha::tools {
namespace {

using Words = std::vector<std::string>;

const Words topologies{"pair", "rails-4x2", "islands", "ring-4", "line-3", "star-3", "gb10-4"};
const Words types{"int8",   "uint8", "int32",    "uint32", "int64",
                  "uint64", "half",  "bfloat16", "float",  "double"};
const Words reductions{"sum", "prod", "min", "max", "avg"};
const Words plugins{"ha", any_file};
const Words operations{"all_reduce", "all_gather", "reduce_scatter", "broadcast",
                       "alltoall",   "sendrecv",   "pt2pt",          "latency"};
const Words orders{"name", "rate", "sent", "received", "open", "again"};

/// Where what an option takes is not free: by command and option, and by command and the number of
/// the word after it.
const std::map<std::pair<std::string, std::string>, Words> values{
    {{"perf", "--datatype"}, types},
    {{"perf", "--type"}, types},
    {{"perf", "-d"}, types},
    {{"perf", "--op"}, reductions},
    {{"perf", "-o"}, reductions},
    {{"perf", "--plugin"}, plugins},
    {{"perf", "--against"}, plugins},
    {{"perf", "--json"}, {any_file}},
    {{"perf", "--baseline"}, {any_file}},
    {{"perf", "--env"}, {"@setting"}},
    {{"perf", "--env-against"}, {"@setting"}},
    {{"perf", "1"}, operations},
    {{"check", "--plugin"}, plugins},
    {{"check", "--program"}, {any_file}},
    {{"check", "--hosts-file"}, {any_file}},
    {{"info", "--svg"}, {any_file}},
    {{"top", "--hosts-file"}, {any_file}},
    {{"stat", "--hosts-file"}, {any_file}},
    {{"stat", "--textfile"}, {any_file}},
    {{"lab run", "1"}, topologies},
    {{"lab run", "--env"}, {"@setting"}},
    {{"lab cut", "1"}, {"@link"}},
    {{"lab heal", "1"}, {"@link"}},
    {{"lab slow", "1"}, {"@link"}},
    {{"lab lose", "1"}, {"@link"}},
    {{"lab mtu", "1"}, {"@link"}},
    {{"lab kill", "1"}, {"@host"}},
    {{"lab enter", "1"}, {"@host"}},
    {{"lab clean", "1"}, {"@lab"}},
    {{"agent", "--settings"}, {any_file}},
    {{"agent", "--dir"}, {any_file}},
    {{"agent status", "--dir"}, {any_file}},
    {{"agent make-key", "1"}, {any_file}},
    {{"agent simulate-switch", "--keys"}, {any_file}},
    {{"relay make-key", "1"}, {any_file}},
    {{"report", "--output"}, {any_file}},
    {{"report", "-o"}, {any_file}},
    {{"report", "--log"}, {any_file}},
    {{"perf", "--plot"}, {any_file}},
    {{"perf", "--csv"}, {any_file}},
    {{"stat", "--sort"}, orders},
    {{"top", "--sort"}, orders},
    {{"trace dump", "--output"}, {any_file}},
    {{"trace dump", "-o"}, {any_file}},
    {{"trace show", "1"}, {any_file}},
    {{"trace summary", "1"}, {any_file}},
    {{"trace waiting", "1"}, {any_file}},
    {{"trace merge", "1"}, {any_file}},
    {{"trace merge", "--output"}, {any_file}},
    {{"trace merge", "-o"}, {any_file}},
    {{"trace critical", "1"}, {any_file}},
    {{"trace export", "1"}, {any_file}},
    {{"trace export", "--format"}, {"perfetto"}},
    {{"trace export", "--output"}, {any_file}},
    {{"trace export", "-o"}, {any_file}},
    {{"trace plot", "1"}, {any_file}},
    {{"trace plot", "--output"}, {any_file}},
    {{"trace plot", "-o"}, {any_file}},
    {{"tune", "1"}, operations},
    {{"tune", "--plugin"}, plugins},
    {{"tune", "--plot"}, {any_file}},
    {{"tune", "--state"}, {any_file}},
};

/// The command that the words before the last one lead to, and what was said to it.
struct PlaceInLine {
  const CLI::App* app = nullptr;
  std::string command;          ///< "lab run"
  std::string awaiting;         ///< the option whose value comes next; empty: none
  size_t positionals = 0;       ///< so many came
  std::set<std::string> given;  ///< options
  bool foreign = false;         ///< behind --: somebody else's words
};

const CLI::Option* find_option(const CLI::App& app, const std::string& word) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->check_name(word)) {
      return option;
    }
  }
  return nullptr;
}

const CLI::App* find_subcommand(const CLI::App& app, const std::string& word) {
  for (const CLI::App* one : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (one->get_name() == word) {
      return one;
    }
  }
  return nullptr;
}

PlaceInLine walk(const CLI::App& app, const Words& words) {
  PlaceInLine place;
  place.app = &app;
  for (size_t i = 0; i + 1 < words.size() && !place.foreign; ++i) {
    const std::string& word = words[i];
    if (!place.awaiting.empty()) {
      place.awaiting.clear();
    } else if (word == "--") {
      place.foreign = true;
    } else if (word.starts_with('-')) {
      const CLI::Option* option = find_option(*place.app, word.substr(0, word.find('=')));
      place.given.insert(word.substr(0, word.find('=')));
      if (option != nullptr && option->get_items_expected_max() > 0 &&
          word.find('=') == std::string::npos) {
        place.awaiting = word;
      }
    } else if (const CLI::App* sub = find_subcommand(*place.app, word);
               sub != nullptr && place.positionals == 0) {
      place.app = sub;
      place.command += (place.command.empty() ? "" : " ") + word;
      place.given.clear();
    } else {
      ++place.positionals;
    }
  }
  return place;
}

Words settings() {
  Words names;
  for (const SettingView& view : describe(Config{})) {
    names.push_back(view.name + "=");
  }
  return names;
}

/// With what stands for names that only this machine knows put in.
Words filled_in(const Words& from, const CompletionSources& sources) {
  Words out;
  const auto add = [&](const Words& more) { out.insert(out.end(), more.begin(), more.end()); };
  for (const std::string& word : from) {
    if (word == "@link") {
      add(sources.links());
    } else if (word == "@host") {
      add(sources.hosts());
    } else if (word == "@lab") {
      add(sources.labs());
    } else if (word == "@setting") {
      add(settings());
    } else {
      out.push_back(word);
    }
  }
  return out;
}

Words options_of(const PlaceInLine& place) {
  Words out;
  for (const CLI::Option* option : place.app->get_options()) {
    for (const std::string& name : option->get_lnames()) {
      if (!place.given.contains("--" + name) || option->get_expected_max() > 1) {
        out.push_back("--" + name);
      }
    }
  }
  return out;
}

Words values_of(const PlaceInLine& place, const std::string& option,
                const CompletionSources& sources) {
  if (option == "--lab") {
    return sources.labs();
  }
  const auto found = values.find({place.command, option});
  return found == values.end() ? Words{} : filled_in(found->second, sources);
}

Words all_that_can_follow(const PlaceInLine& place, const std::string& begun,
                          const CompletionSources& sources) {
  if (place.foreign) {
    return {any_file};
  }
  if (!place.awaiting.empty()) {
    return values_of(place, place.awaiting, sources);
  }
  if (const size_t equals = begun.find('='); begun.starts_with("--") && equals < begun.size()) {
    Words out = values_of(place, begun.substr(0, equals), sources);
    for (std::string& word : out) {
      if (word != any_file) {
        word.insert(0, begun, 0, equals + 1);
      }
    }
    return out;
  }
  if (begun.starts_with('-')) {
    return options_of(place);
  }
  Words out;
  if (place.positionals == 0) {
    for (const CLI::App* one : place.app->get_subcommands([](const CLI::App*) { return true; })) {
      if (!one->get_group().empty()) {
        out.push_back(one->get_name());
      }
    }
  }
  const auto found = values.find({place.command, std::to_string(place.positionals + 1)});
  if (found != values.end()) {
    const Words more = filled_in(found->second, sources);
    out.insert(out.end(), more.begin(), more.end());
  }
  return out;
}

Words meaningless_values(const CLI::App& app) {
  Words out;
  for (const auto& [key, what] : values) {
    const auto& [command, taker] = key;
    const bool counted = !taker.starts_with('-');
    Words words;
    for (size_t from = 0; from < command.size();) {
      const size_t end = std::min(command.find(' ', from), command.size());
      words.push_back(command.substr(from, end - from));
      from = end + 1;
    }
    words.emplace_back();
    const PlaceInLine place = walk(app, words);
    const auto options = place.app->get_options();
    const bool takes_words = std::any_of(options.begin(), options.end(),
                                         [](const auto* one) { return one->get_positional(); });
    if (place.command != command ||
        (counted ? !takes_words : find_option(*place.app, taker) == nullptr)) {
      out.push_back(fmt::format("{} {}", command, taker));
    }
  }
  return out;
}

}  // namespace

std::vector<std::string> places_without_a_meaning(const CLI::App& app) {
  return meaningless_values(app);
}

std::vector<std::string> completion_candidates(const CLI::App& app,
                                               const std::vector<std::string>& words,
                                               const CompletionSources& sources) {
  const std::string& begun = words.back();
  Words out;
  for (std::string& word : all_that_can_follow(walk(app, words), begun, sources)) {
    if (word == any_file || word.starts_with(begun)) {
      out.push_back(std::move(word));
    }
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

}  // namespace nccl_ha::tools
