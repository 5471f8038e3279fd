// From the words of a command line to an exit status.
#pragma once

#include <string>

namespace CLI {  // NOLINT(readability-identifier-naming): the library's
class App;
}

namespace nccl_ha::tools {

/// What to use in place of an option of another program that `command` does not have; empty:
/// nothing is known of it.
using ReplacementOf = std::string (*)(const std::string& command, const std::string& word);

/// Parses the words, which runs the callback of the command that they name, and gives the program's
/// exit status: 2, after a message, where the words are wrong or the work could not be done.
int run_application(CLI::App& app, int argc, char** argv, ReplacementOf known = nullptr);

}  // namespace nccl_ha::tools
