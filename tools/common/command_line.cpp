#include "tools/common/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <sstream>
#include <system_error>
#include <vector>

#include "tools/common/nearest.h"
#include "tools/common/output.h"
#include "tools/common/refused.h"

namespace nccl_ha::tools {
namespace {

constexpr size_t help_columns = 80;
/// A command line that cannot be used, or work that could not be done.
constexpr int status_not_done = 2;

/// The last of the subcommands that the words led to.
const CLI::App& reached(const CLI::App& app) {
  const CLI::App* at = &app;
  for (auto subs = at->get_subcommands(); !subs.empty(); subs = at->get_subcommands()) {
    at = subs.back();
  }
  return *at;
}

std::string command_of(const CLI::App& app) {
  const CLI::App& at = reached(app);
  std::string name = at.get_name();
  for (const CLI::App* up = at.get_parent(); up != nullptr; up = up->get_parent()) {
    name = fmt::format("{} {}", up->get_name(), name);
  }
  return name;
}

/// What could stand where `word` does.
std::vector<std::string> words_of(const CLI::App& app, const std::string& word) {
  std::vector<std::string> known;
  if (!word.starts_with('-')) {
    for (const CLI::App* one : app.get_subcommands([](const CLI::App*) { return true; })) {
      if (!one->get_group().empty()) {
        known.push_back(one->get_name());
      }
    }
    return known;
  }
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      known.push_back("--" + name);
    }
  }
  return known;
}

/// What is wrong with the words of the command line.
std::string wrong_words(const CLI::App& app, const CLI::ParseError& error, ReplacementOf known) {
  std::vector<std::string> unknown = app.remaining(true);
  unknown.erase(std::remove(unknown.begin(), unknown.end(), "--"), unknown.end());
  // Words after the one that is wrong were not looked at yet.
  // Its name is the command's where words are left over.
  const auto kind_of_error = static_cast<CLI::ExitCodes>(error.get_exit_code());
  if (unknown.empty() || (kind_of_error != CLI::ExitCodes::ExtrasError &&
                          kind_of_error != CLI::ExitCodes::RequiredError)) {
    return error.what();
  }
  const std::string word = unknown.front().substr(0, unknown.front().find('='));
  const CLI::App& at = reached(app);
  if (std::string replacement = known == nullptr ? "" : known(at.get_name(), word);
      !replacement.empty()) {
    return replacement;
  }
  const bool subcommands = !at.get_subcommands([](const CLI::App*) { return true; }).empty();
  const char* kind = word.starts_with('-') ? "option" : subcommands ? "command" : "argument";
  return fmt::format("there is no {} '{}' here{}", kind, word,
                     did_you_mean(word, words_of(at, word)));
}

/// Says why a command did not do its work.
int not_done(const CLI::App& app, const std::string& command, const std::string& why,
             const char* help, bool as_json, int status) {
  std::fprintf(stderr, "%s: %s\n%s", command.c_str(), why.c_str(), help);
  if (as_json) {
    // "trace critical", as in what the command prints where it works.
    std::string name = command_of(app);
    if (const size_t space = name.find(' '); space != std::string::npos) {
      name.erase(0, space + 1);
    }
    print_failure(name, why);
  }
  return status;
}

int parse_and_run(CLI::App& app, int argc, char** argv, ReplacementOf known) {
  const bool as_json = asks_for_json(argc, argv);
  try {
    app.parse(argc, argv);
  } catch (const Refused& refused) {
    return not_done(app, refused.command(), refused.error(), "", as_json, refused.get_exit_code());
  } catch (const CLI::RuntimeError& error) {
    // The subcommand has printed what went wrong; only its status is left to pass on.
    return error.get_exit_code();
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      // --help, --version.  Through stdio, so that it is noticed where the text could not be
      // written.
      std::ostringstream text;
      const int status = app.exit(error, text, text);
      std::fputs(wrapped_help(text.str(), help_columns).c_str(), stdout);
      return status;
    }
    const std::string command = command_of(app);
    const std::string help = fmt::format("`{} --help` tells what can be asked for.\n", command);
    return not_done(app, command, wrong_words(app, error, known), help.c_str(), as_json,
                    status_not_done);
  } catch (const std::bad_alloc&) {
    return not_done(app, command_of(app),
                    "out of memory; limits are RLIMIT_AS (ulimit -v) and a control group's "
                    "memory.max",
                    "", as_json, status_not_done);
  } catch (const std::exception& error) {
    const auto* failed = dynamic_cast<const std::system_error*>(&error);
    if (failed != nullptr && std::ferror(stdout) != 0) {
      note_output_error(failed->code().value());
      return status_not_done;
    }
    // What no command foresaw.
    return not_done(
        app, command_of(app),
        fmt::format("it cannot go on, which is a mistake of this program: {}", error.what()), "",
        as_json, status_not_done);
  }
  return 0;
}

}  // namespace

std::string wrapped_help(const std::string& text, size_t columns) {
  std::istringstream in(text);
  std::string out;
  for (std::string line; std::getline(in, line);) {
    const bool remark = line.starts_with("# ");
    const size_t begin = remark ? 2 : std::min(line.find_first_not_of(' '), line.size());
    const size_t gap = line.find("  ", begin);
    const size_t explained = gap == std::string::npos ? gap : line.find_first_not_of(' ', gap);
    const size_t indent =
        explained == std::string::npos || explained > columns / 2 ? begin : explained;
    while (line.size() > columns) {
      size_t blank = line.rfind(' ', columns);
      while (blank != std::string::npos && blank > indent && line[blank + 1] == '-') {
        blank = line.rfind(' ', blank - 1);
      }
      if (blank == std::string::npos || blank <= indent) {
        blank = line.find(' ', std::max(columns, indent));  // a word that is longer than that
      }
      if (blank == std::string::npos) {
        break;
      }
      out += line.substr(0, blank) + '\n';
      line = (remark ? "# " : "") + std::string(remark ? indent - 2 : indent, ' ') +
             line.substr(blank + 1);
    }
    out += line + '\n';
  }
  return out;
}

int run_application(CLI::App& app, int argc, char** argv, ReplacementOf known) {
  const int status = parse_and_run(app, argc, argv, known);
  return finish_output() ? status : std::max(status, status_not_done);
}

}  // namespace nccl_ha::tools
