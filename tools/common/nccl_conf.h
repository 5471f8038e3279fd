// The files from which NCCL takes variables before it looks for a plugin.
#pragma once

#include <string>
#include <vector>

#include "tools/common/environment.h"

namespace nccl_ha::tools {

struct ConfVariable {
  std::string name;
  std::string value;
  std::string file;
};

struct NcclConf {
  std::vector<ConfVariable> variables;  ///< those that have an effect: nothing else set them before
  std::vector<std::string> problems;  ///< lines and files without the effect that they seem to have

  /// The file that set this variable; empty: none did.
  std::string file_of(const std::string& variable) const;
};

/// What NCCL finds in NCCL_CONF_FILE, or else in .nccl.conf of the user's folder `home`, and then
/// in /etc/nccl.conf (`system`, but for tests).  A variable of the environment, or of an earlier
/// file, stays as it is.
NcclConf read_nccl_conf(const GetEnv& get, const std::string& home,
                        const std::string& system = "/etc/nccl.conf");

/// The same for this process, as its user: puts the variables into its environment, as NCCL does in
/// a job.
NcclConf take_nccl_conf();

}  // namespace nccl_ha::tools
