// From the words of a command line to an exit status.
#pragma once

#include <cstddef>
#include <string>

namespace CLI {  // NOLINT(readability-identifier-naming): the library's
class App;
}

namespace nccl_ha::tools {

/// Lines of at most `columns` characters where words allow it.  What goes on stands below what its
/// line explains: behind the first gap of two blanks, or behind its indentation; no line begins
/// with the name of an option for that.  What goes on of a remark ("# ...") is one, too.
std::string wrapped_help(const std::string& text, size_t columns);

/// What to use in place of an option of another program that `command` does not have; empty:
/// nothing is known of it.
using ReplacementOf = std::string (*)(const std::string& command, const std::string& word);

/// Parses the words, which runs the callback of the command that they name, and gives the program's
/// exit status: 2, after a message, where the words are wrong or the work could not be done.
int run_application(CLI::App& app, int argc, char** argv, ReplacementOf known = nullptr);

}  // namespace nccl_ha::tools
