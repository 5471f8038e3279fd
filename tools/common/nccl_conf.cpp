#include "tools/common/nccl_conf.h"

#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

namespace nccl_ha::tools {
namespace {

/// NCCL takes a name and a value as they stand: nothing is trimmed.
void read_conf_file(const std::string& file, const GetEnv& get, NcclConf& conf) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const size_t equals = line.find('=');
    if (line.starts_with('#') || equals == std::string::npos) {
      continue;
    }
    const std::string name = line.substr(0, equals);
    if (name.empty() || name.find_first_of(" \t") != std::string::npos) {
      conf.problems.push_back(
          fmt::format("{}: '{}' has no effect: NCCL takes '{}' for the name of the variable", file,
                      line, name));
      continue;
    }
    if (!get(name) && conf.file_of(name).empty()) {
      conf.variables.push_back({name, line.substr(equals + 1), file});
    }
  }
}

}  // namespace

std::string NcclConf::file_of(const std::string& variable) const {
  const auto found = std::find_if(variables.begin(), variables.end(),
                                  [&](const ConfVariable& one) { return one.name == variable; });
  return found == variables.end() ? "" : found->file;
}

NcclConf read_nccl_conf(const GetEnv& get, const std::string& home, const std::string& system) {
  NcclConf conf;
  const std::string named = get("NCCL_CONF_FILE").value_or("");
  if (named.empty() && !home.empty()) {
    read_conf_file(home + "/.nccl.conf", get, conf);
  } else if (!named.empty() && access(named.c_str(), R_OK) != 0) {
    conf.problems.push_back(
        fmt::format("NCCL_CONF_FILE={} cannot be read, and NCCL goes on without it", named));
  } else if (!named.empty()) {
    read_conf_file(named, get, conf);
  }
  read_conf_file(system, get, conf);
  return conf;
}

NcclConf take_nccl_conf() {
  const passwd* user = getpwuid(getuid());
  NcclConf conf = read_nccl_conf(process_environment(), user == nullptr ? "" : user->pw_dir);
  for (const ConfVariable& one : conf.variables) {
    setenv(one.name.c_str(), one.value.c_str(), 0);
  }
  return conf;
}

}  // namespace nccl_ha::tools
