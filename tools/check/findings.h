// What may be wrong with a host, and what to do about it.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "runtime/base/config.h"
#include "runtime/fabric/interfaces.h"
#include "tools/common/cabling.h"
#include "tools/common/host_view.h"
#include "tools/common/mesh_sight.h"
#include "tools/common/plugin_search.h"

namespace nccl_ha::tools {

/// error: the job will not run, or not as configured.  warning: it runs worse than it could, or may
/// fail later.  hint: worth a look.
enum class Level : uint8_t { error, warning, hint };
const char* to_text(Level level);

struct Finding {
  Level level = Level::hint;
  std::string what;
  std::string remedy;  ///< what to do, never empty
};
nlohmann::json to_json(const Finding& finding);
/// Nothing for what no finding looks like.
std::optional<Finding> finding_from_json(const nlohmann::json& from);

inline constexpr uint64_t memlock_unlimited = UINT64_MAX;

/// How the kernel treats IPv4 on an interface (net.ipv4.conf; -1: unknown).
struct Ipv4Rules {
  int64_t rp_filter = -1;
  int64_t arp_ignore = -1;
  int64_t arp_announce = -1;
};

/// What a look at a host gives.
struct HostFacts {
  std::string name;
  Config config;
  std::vector<std::string> setting_warnings;
  std::vector<fabric::NetInterface> all_interfaces;
  std::vector<fabric::NetInterface> interfaces;  ///< those that the settings choose
  std::vector<fabric::NetInterface> lost;  ///< the settings would choose them, but they are down
  std::map<std::string, Ipv4Rules> ipv4;   ///< by interface, what is in force
  /// By interface, which other one takes what is sent from its address into its own subnet.
  std::map<std::string, std::string> leaves_by;
  RdmaView rdma;
  KernelSupport kernel;
  uint64_t memlock_bytes = memlock_unlimited;
  bool may_lock = false;  ///< CAP_IPC_LOCK: the limit does not count
  size_t cpus_usable = 1;
  std::vector<int> cpus;  ///< by number, those that this process may use
  size_t cpus_online = 1;
  std::vector<int> cpu_nodes;               ///< NUMA nodes of the usable processors
  std::map<std::string, size_t> governors;  ///< frequency governor, number of processors
  bool nvidia = false;                      ///< the NVIDIA driver is loaded
  PluginSight plugin;
  std::vector<Miscabling> miscabled;
  /// Cables join it to others: what is wrong with them is said where both ends are known.
  bool on_mesh = false;
};

/// What two PCI devices share beside the host.
enum class SharedPci : uint8_t { nothing, one_card, one_switch };
/// By their folders in sysfs; an empty one shares nothing.  Pure.
SharedPci shared_pci(const std::string& one, const std::string& other);

/// Where no host is found over cables nothing is said: perhaps no other host looks now.
std::vector<Miscabling> miscablings_of(const Result<MeshSight>& mesh);
/// The same, and discovers by itself if it has to.
std::vector<Miscabling> look_at_cabling(const HostFacts& facts);

/// Looks at this host, but for `miscabled`.  An error where the settings are wrong or nothing can
/// be used at all.
Result<HostFacts> look_at_host();

/// Pure.
std::vector<Finding> judge(const HostFacts& facts);

}  // namespace nccl_ha::tools
