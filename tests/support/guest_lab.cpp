#include "tests/support/guest_lab.h"

#include <filesystem>

namespace nccl_ha::tests {

ToolRun guests(const std::string& tool, std::vector<std::string> options, const std::string& script,
               const Environment& environment) {
  std::vector<std::string> all{"lab", "roce", "--timeout", guests_timeout};
  all.insert(all.end(), options.begin(), options.end());
  all.insert(all.end(), {"--", "bash", "-c", script});
  return run_program(tool, all, environment, guests_limit);
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

std::string beside(const std::string& tool, const char* program) {
  return std::filesystem::path(tool).parent_path() / program;
}

}  // namespace nccl_ha::tests
