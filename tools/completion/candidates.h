// What can follow a part of a command line.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): the library's
class App;
}

namespace nccl_ha::tools {

/// A candidate that stands for any file's name.
inline constexpr const char* any_file = "@file";

/// What only the running machine knows.
struct CompletionSources {
  std::function<std::vector<std::string>()> labs;   ///< names of labs
  std::function<std::vector<std::string>()> links;  ///< of the labs that run
  std::function<std::vector<std::string>()> hosts;  ///< of the labs that run
};

/// Commands and options for whose values there are candidates though `app` has none such.
std::vector<std::string> places_without_a_meaning(const CLI::App& app);

/// The words that can stand where `words.back()` is begun; `words` follow the program's name and
/// are not empty.  Sorted, and all of them begin with that word, but for any_file.
std::vector<std::string> completion_candidates(const CLI::App& app,
                                               const std::vector<std::string>& words,
                                               const CompletionSources& sources);

}  // namespace nccl_ha::tools
