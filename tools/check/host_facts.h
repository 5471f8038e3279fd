// What a look at a host gives.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/config.h"
#include "runtime/fabric/interfaces.h"
#include "tools/common/cabling.h"
#include "tools/common/host_view.h"
#include "tools/common/mesh_sight.h"
#include "tools/common/nccl_conf.h"
#include "tools/common/plugin_search.h"

namespace nccl_ha::tools {

inline constexpr uint64_t unlimited = UINT64_MAX;

/// How the kernel treats IPv4 on an interface (net.ipv4.conf; -1: unknown).
struct Ipv4Rules {
  int64_t rp_filter = -1;
  int64_t arp_ignore = -1;
  int64_t arp_announce = -1;
};

/// Packets from an interface's own address to a rail of another host, in a network that both have,
/// leave by another interface.
struct StrayRoute {
  std::string interface;
  std::string leaves_by;
  std::string to;  ///< an address
  std::string to_host;
};

/// A folder that a setting names.
struct FolderFacts {
  std::string variable;
  std::string path;
  std::string why_not;  ///< nothing can be written there; empty: it can
};

struct HostFacts {
  std::string name;
  Config config;
  NcclConf conf;
  std::vector<std::string> setting_warnings;
  std::vector<fabric::NetInterface> all_interfaces;
  std::vector<fabric::NetInterface> interfaces;  ///< those that the settings choose
  std::vector<fabric::NetInterface> lost;  ///< the settings would choose them, but they are down
  std::map<std::string, Ipv4Rules> ipv4;   ///< by interface, what is in force
  /// By interface, which other one takes what is sent from its address into its own subnet.
  std::map<std::string, std::string> leaves_by;
  std::vector<StrayRoute> stray_routes;
  RdmaView rdma;
  KernelSupport kernel;
  uint64_t memlock_bytes = unlimited;
  uint64_t open_files = unlimited;  ///< descriptors that this process may have
  bool may_lock = false;            ///< CAP_IPC_LOCK: the limit does not count
  size_t cpus_usable = 1;
  std::vector<int> cpus;  ///< by number, those that this process may use
  size_t cpus_online = 1;
  std::vector<int> cpu_nodes;               ///< NUMA nodes of the usable processors
  std::map<std::string, size_t> governors;  ///< frequency governor, number of processors
  bool nvidia = false;                      ///< the NVIDIA driver is loaded
  PluginSight plugin;
  std::vector<FolderFacts> folders;
  uint64_t shm_free_bytes = unlimited;  ///< of /dev/shm
  std::vector<Miscabling> miscabled;
  /// Cables join it to others: what is wrong with them is said where both ends are known.
  bool on_mesh = false;
};

/// Where no host is found over cables nothing is said: perhaps no other host looks now.
std::vector<Miscabling> miscablings_of(const Result<MeshSight>& mesh);
/// The same, and discovers by itself if it has to.
std::vector<Miscabling> look_at_cabling(const HostFacts& facts);

/// Looks at this host, but for `miscabled` and `stray_routes`, with the variables of NCCL's files
/// (tools/common/nccl_conf.h).  An error where the settings are wrong or nothing can be used at
/// all.
Result<HostFacts> look_at_host();

}  // namespace nccl_ha::tools
