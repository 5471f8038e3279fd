#include "tools/lab/request.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "tools/lab/verbs.h"

namespace nccl_ha::tools::lab {
namespace {

constexpr std::pair<Verb, const char*> verbs[] = {
    {Verb::cut, "cut"}, {Verb::heal, "heal"}, {Verb::slow, "slow"}, {Verb::lose, "lose"},
    {Verb::mtu, "mtu"}, {Verb::kill, "kill"}, {Verb::show, "show"}, {Verb::stop, "stop"}};

std::string_view trim(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r");
  return first == std::string_view::npos
             ? std::string_view()
             : text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

/// A number followed by a unit; the rest of the text is the unit.
std::optional<std::pair<double, std::string>> with_unit(std::string_view text) {
  const std::string copy(trim(text));
  char* end = nullptr;
  const double value = std::strtod(copy.c_str(), &end);
  if (end == copy.c_str() || !std::isfinite(value) || value < 0) {
    return std::nullopt;
  }
  return std::pair(value, std::string(end));
}

Result<ScriptStep> parse_step(std::string_view line) {
  const auto space = line.find_first_of(" \t");
  if (space == std::string_view::npos) {
    return fail(Errc::invalid_argument,
                fmt::format("script: '{}' is not of the form TIME VERB …, say 2s cut rail0", line));
  }
  auto time = parse_time(line.substr(0, space));
  if (!time) {
    return fail(Errc::invalid_argument, "script: " + time.error().what);
  }
  ScriptStep step;
  step.after = *time;
  CLI::App grammar;
  grammar.require_subcommand(1);
  add_verbs(grammar, step.request);
  try {
    grammar.parse(std::string(trim(line.substr(space))));
  } catch (const CLI::ParseError& error) {
    return fail(Errc::invalid_argument, fmt::format("script: '{}': {}", line, error.what()));
  }
  // Found now, not in the middle of a run.
  if (auto fits = changed({}, {}, step.request); !fits) {
    return fail(Errc::invalid_argument, fmt::format("script: '{}': {}", line, fits.error().what));
  }
  return step;
}

}  // namespace

const char* to_text(Verb verb) {
  for (const auto& [value, name] : verbs) {
    if (value == verb) {
      return name;
    }
  }
  return "none";
}

void add_verbs(CLI::App& app, Request& request) {
  const auto add = [&](Verb verb, const char* help) {
    CLI::App* command = app.add_subcommand(to_text(verb), help);
    command->parse_complete_callback([&request, verb] { request.verb = verb; });
    return command;
  };
  const auto sides = [&](CLI::App* command) {
    auto* from = command->add_option("--from", request.side.sender, "Only what this host sends");
    command->add_option("--to", request.side.receiver, "Only what this host receives")
        ->excludes(from);
  };
  const char* link_help = "Link, rail or interface (h1.rail0), as `nccl-ha lab show` lists them";
  CLI::App* cut = add(Verb::cut, "Pull a cable: both ends lose their carrier");
  cut->add_option("link", request.target, link_help)->required();
  cut->add_flag("--silent", request.silent, "Keep the carrier: frames vanish and nobody is told");
  cut->add_option("--for", request.lasts, "Join it again after this time: 200ms, 10s");
  sides(cut);
  CLI::App* heal = add(Verb::heal, "Make a link, or all, as good as new");
  heal->add_option("link", request.target, link_help);
  heal->add_flag("--cable", request.cable, "End cuts only: rate, losses and MTU stay");
  sides(heal);
  CLI::App* slow = add(Verb::slow, "Limit a link's rate");
  slow->add_option("link", request.target, link_help)->required();
  slow->add_option("rate", request.amount, "Bits per second: 500kbit, 100mbit, 2.5gbit")
      ->required();
  sides(slow);
  CLI::App* lose = add(Verb::lose, "Lose frames at random");
  lose->add_option("link", request.target, link_help)->required();
  lose->add_option("percent", request.amount, "Share of the frames: 1% or 0.1")->required();
  sides(lose);
  CLI::App* mtu =
      add(Verb::mtu, "Let larger packets vanish, as in a switch that is set up wrongly");
  mtu->add_option("link", request.target, link_help)->required();
  mtu->add_option("bytes", request.amount, "Largest IP packet that passes")->required();
  CLI::App* kill = add(Verb::kill, "End a host without warning");
  kill->add_option("host", request.target, "Host: h1, h2, …")->required();
}

nlohmann::json to_json(const Request& request) {
  return {{"verb", to_text(request.verb)}, {"target", request.target},
          {"from", request.side.sender},   {"to", request.side.receiver},
          {"silent", request.silent},      {"cable", request.cable},
          {"amount", request.amount},      {"lasts", request.lasts}};
}

Result<Request> request_from_json(const nlohmann::json& from) {
  Request request;
  const auto text = [&](const char* key, std::string& into) {
    if (!from.contains(key)) {
      return true;
    }
    if (!from[key].is_string()) {
      return false;
    }
    into = from[key].get<std::string>();
    return true;
  };
  std::string verb;
  if (!from.is_object() || !text("verb", verb) || !text("target", request.target) ||
      !text("from", request.side.sender) || !text("to", request.side.receiver) ||
      !text("amount", request.amount) || !text("lasts", request.lasts) ||
      (from.contains("silent") && !from["silent"].is_boolean()) ||
      (from.contains("cable") && !from["cable"].is_boolean())) {
    return fail(Errc::invalid_argument, "the request is not an object of known types");
  }
  request.silent = from.value("silent", false);
  request.cable = from.value("cable", false);
  for (const auto& [value, name] : verbs) {
    if (verb == name) {
      request.verb = value;
      return request;
    }
  }
  return fail(Errc::invalid_argument, fmt::format("there is no request '{}'", verb));
}

std::string to_text(const Request& request) {
  std::string text = to_text(request.verb);
  for (const std::string& word : {request.target, request.amount}) {
    text += word.empty() ? "" : " " + word;
  }
  text += request.silent ? " --silent" : "";
  text += request.cable ? " --cable" : "";
  text += request.lasts.empty() ? "" : " --for " + request.lasts;
  text += request.side.sender.empty() ? "" : " --from " + request.side.sender;
  text += request.side.receiver.empty() ? "" : " --to " + request.side.receiver;
  return text;
}

Result<Duration> parse_time(std::string_view text) {
  const auto time = with_unit(text);
  constexpr double longest_s = 86400;
  if (time) {
    const double seconds = time->first * (time->second == "ms" ? 1e-3 : 1);
    if ((time->second == "s" || time->second == "ms") && seconds <= longest_s) {
      return Duration(static_cast<int64_t>(seconds * 1e9));
    }
  }
  return fail(Errc::invalid_argument,
              fmt::format("'{}' is no time; write 2s or 250ms, at most a day", text));
}

Result<uint64_t> parse_rate(std::string_view text) {
  const auto rate = with_unit(text);
  constexpr std::pair<const char*, double> units[] = {
      {"bit", 1}, {"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}};
  for (const auto& [unit, factor] : units) {
    const double bits = rate && rate->second == unit ? rate->first * factor : 0;
    if (bits >= 1000 && bits <= 1e12) {
      return static_cast<uint64_t>(bits);
    }
  }
  return fail(
      Errc::invalid_argument,
      fmt::format("'{}' is no rate; write 500kbit, 100mbit or 2.5gbit (1kbit to 1000gbit)", text));
}

Result<uint32_t> parse_loss(std::string_view text) {
  const auto percent = with_unit(text);
  if (percent && (percent->second == "%" || percent->second.empty()) && percent->first <= 100) {
    return static_cast<uint32_t>(std::lround(percent->first / 100 * loss_whole));
  }
  return fail(Errc::invalid_argument,
              fmt::format("'{}' is no share of frames; write a percentage from 0 to 100", text));
}

Result<uint32_t> parse_mtu(std::string_view text) {
  const auto bytes = with_unit(text);
  constexpr double least = 68;  // RFC 791
  constexpr double most = 65535;
  if (bytes && bytes->second.empty() && bytes->first >= least && bytes->first <= most) {
    return static_cast<uint32_t>(bytes->first);
  }
  return fail(Errc::invalid_argument,
              fmt::format("'{}' is no MTU; write bytes, {} to {}", text, least, most));
}

Result<LinkState> changed(const LinkState& state, const LinkChoice& choice,
                          const Request& request) {
  LinkState next = state;
  const bool one_way = !request.side.sender.empty() || !request.side.receiver.empty();
  Direction change;
  if (request.verb == Verb::slow) {
    auto rate = parse_rate(request.amount);
    if (!rate) {
      return rate.error();
    }
    change.bits_per_second = *rate;
  }
  if (request.verb == Verb::lose) {
    auto loss = parse_loss(request.amount);
    if (!loss) {
      return loss.error();
    }
    change.loss = *loss;
  }
  if (request.verb == Verb::mtu) {
    auto mtu = parse_mtu(request.amount);
    if (!mtu) {
      return mtu.error();
    }
    next.mtu = *mtu;
  }
  if (!request.lasts.empty()) {
    if (auto time = parse_time(request.lasts); !time) {
      return time.error();
    }
  }
  if (request.verb == Verb::cut && one_way && !request.silent) {
    return fail(Errc::invalid_argument,
                "a cable that is pulled is dead in both directions; cut one direction with "
                "--silent");
  }
  for (size_t i = 0; i < 2; ++i) {
    if (!choice.direction[i]) {
      continue;
    }
    Direction& direction = next.direction[i];
    switch (request.verb) {
      case Verb::cut:
        direction.blocked = direction.blocked || request.silent;
        break;
      case Verb::heal:
        if (request.cable) {
          direction.blocked = false;
        } else {
          direction = {};
        }
        break;
      case Verb::slow:
        direction.bits_per_second = change.bits_per_second;
        break;
      case Verb::lose:
        direction.loss = change.loss;
        break;
      case Verb::none:
      case Verb::mtu:
      case Verb::kill:
      case Verb::show:
      case Verb::stop:
        break;
    }
  }
  if (request.verb == Verb::cut && !request.silent) {
    next.carrier = false;
  }
  if (request.verb == Verb::heal && !one_way) {
    next.carrier = true;
    next.mtu = request.cable ? next.mtu : 0;
  }
  return next;
}

Result<std::vector<ScriptStep>> parse_script(std::string_view text) {
  std::vector<ScriptStep> steps;
  while (!text.empty()) {
    const size_t end = text.find_first_of("\n;,");
    std::string_view line = text.substr(0, end);
    // A comment goes to the end of the line, whatever separators are in it.
    if (const size_t hash = line.find('#'); hash != std::string_view::npos) {
      line = line.substr(0, hash);
      const size_t newline = text.find('\n');
      text = newline == std::string_view::npos ? std::string_view() : text.substr(newline + 1);
    } else {
      text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    }
    line = trim(line);
    if (line.empty()) {
      continue;
    }
    auto step = parse_step(line);
    if (!step) {
      return step.error();
    }
    steps.push_back(std::move(*step));
  }
  std::stable_sort(steps.begin(), steps.end(),
                   [](const auto& a, const auto& b) { return a.after < b.after; });
  return steps;
}

}  // namespace nccl_ha::tools::lab
