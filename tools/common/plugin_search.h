// Where the plugin is: for this program, and for NCCL.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "tools/common/environment.h"

namespace nccl_ha::tools {

/// The name under which NCCL, and `--plugin`, know our own plugin.
inline constexpr const char* own_plugin_name = "ha";
inline constexpr const char* own_plugin_file = "libnccl-net-ha.so";

struct FoundPlugin {
  std::string file;    ///< with its folder, as far as the loader tells
  std::string origin;  ///< in words: what led there
};

/// Folders where a program in `folder` has its plugin, in order: beside it, then where the build
/// and `cmake --install` put libraries.
std::vector<std::string> plugin_folders(const std::string& folder);

/// Our own plugin beside a program in `folder`; nothing where there is none.
std::optional<FoundPlugin> plugin_beside(const std::string& folder);
/// The same for this program.
std::optional<FoundPlugin> plugin_beside_program();

/// What NCCL tries for NCCL_NET_PLUGIN=NAME, in order: NAME itself, then libnccl-net-NAME.so.
std::vector<std::string> nccl_file_names(const std::string& name);

/// As NCCL finds NAME: a path as it is, other names along LD_LIBRARY_PATH and the system's library
/// folders.  Loads and unloads it; the error is the loader's.
Result<FoundPlugin> plugin_of_loader(const std::string& name, const GetEnv& get);

/// Why the loader leaves a file alone that is there: for another kind of processor, say; empty:
/// its header is no reason.  The loader itself says of some that they do not exist.
std::string misfit_of(const std::string& file);

/// What this program and a job on this host would load.
struct PluginSight {
  std::string asked;                   ///< NCCL_NET_PLUGIN; empty: not set
  std::string network;                 ///< NCCL_NET; empty: not set
  std::optional<FoundPlugin> here;     ///< beside this program
  std::optional<FoundPlugin> of_nccl;  ///< by NCCL's rules: `asked`, or our own name
  std::string why_not;         ///< where of_nccl is empty: the loader's words, or misfit_of()
  bool misfit = false;         ///< the file is there, and made for another system
  bool other_file = false;     ///< of_nccl is not the file that lies beside this program
  bool system_folder = false;  ///< ldconfig looks into the folder of `here`

  /// NCCL is told by NCCL_NET to use another network than the plugin's.
  bool other_network() const;
  /// NCCL was told to use none, or told nothing.
  bool asks_for_none() const;
  /// With NCCL_NET_PLUGIN set NCCL loads the file beside this program, or there is none beside it.
  bool agree() const { return of_nccl && !other_file; }
  /// What NCCL would do, in a line.
  std::string text() const;
  /// What makes NCCL load our plugin; empty where there is nothing to do.
  std::string remedy() const;
};
PluginSight look_for_plugin(const GetEnv& get);

}  // namespace nccl_ha::tools
