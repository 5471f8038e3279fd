#include "tools/check/host_facts.h"

#include <fmt/format.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "runtime/base/cpu.h"
#include "runtime/fabric/provider.h"
#include "tools/check/interface_facts.h"

namespace nccl_ha::tools {
namespace {

using fabric::NetInterface;

bool may_lock_memory() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  return syscall(SYS_capget, &header, data) == 0 && (data[0].effective & (1U << CAP_IPC_LOCK)) != 0;
}

/// Those that the settings would choose if they were up.
std::vector<NetInterface> lost_interfaces(const std::vector<NetInterface>& all,
                                          const Config& config) {
  std::vector<NetInterface> as_if_up = all;
  for (NetInterface& interface : as_if_up) {
    interface.up = true;
  }
  std::vector<NetInterface> lost;
  const auto wanted = fabric::select_offered(as_if_up, config.ifname, config.socket_family);
  for (size_t i = 0; wanted && i < all.size(); ++i) {
    const bool chosen = std::any_of(wanted->begin(), wanted->end(),
                                    [&](const auto& one) { return one.name == all[i].name; });
    if (!all[i].up && chosen && all[i].leads_to <= fabric::LinkClass::pair) {
      lost.push_back(all[i]);
    }
  }
  return lost;
}

std::vector<int> nodes_of(const std::vector<int>& cpus) {
  std::set<int> nodes;
  for (const int cpu : cpus) {
    nodes.insert(numa_node_of_cpu(cpu));
  }
  return {nodes.begin(), nodes.end()};
}

std::map<std::string, size_t> governors() {
  std::map<std::string, size_t> counts;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/devices/system/cpu", error)) {
    std::string governor;
    std::ifstream(entry.path() / "cpufreq/scaling_governor") >> governor;
    if (!governor.empty()) {
      ++counts[governor];
    }
  }
  return counts;
}

uint64_t limit_of(decltype(RLIMIT_NOFILE) resource) {
  rlimit limit{};
  return getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY ? limit.rlim_cur
                                                                             : unlimited;
}

/// Folders that the settings name.
std::vector<FolderFacts> look_at_folders(const Config& config) {
  std::vector<FolderFacts> folders;
  for (const auto& [variable, path] : {std::pair("HA_NCCL_COUNTERS_DIR", config.counters_dir),
                                       std::pair("HA_NCCL_TRACE_DIR", config.trace_dir)}) {
    if (path.empty()) {
      continue;
    }
    std::error_code error;
    const bool is_folder = std::filesystem::is_directory(path, error);
    std::string why_not;
    if (!is_folder) {
      why_not = error ? error.message() : "it is no folder";
    } else if (access(path.c_str(), W_OK | X_OK) != 0) {
      why_not = strerror(errno);
    }
    folders.push_back({variable, path, why_not});
  }
  return folders;
}

uint64_t free_bytes_of(const char* path) {
  struct statvfs about {};
  const bool limited = statvfs(path, &about) == 0 && about.f_blocks > 0;
  return limited ? uint64_t{about.f_bavail} * about.f_frsize : unlimited;
}

}  // namespace

std::vector<Miscabling> miscablings_of(const Result<MeshSight>& mesh) {
  const auto self = mesh ? mesh->topology.find(mesh->self) : std::nullopt;
  return self ? judge_cabling(mesh->topology, *self, list_port_functions())
              : std::vector<Miscabling>();
}

std::vector<Miscabling> look_at_cabling(const HostFacts& facts) {
  constexpr auto neighbours_answer_within = std::chrono::seconds(3);
  return list_port_functions().empty()
             ? std::vector<Miscabling>()
             : miscablings_of(
                   look_at_mesh(facts.config, facts.all_interfaces, neighbours_answer_within));
}

Result<HostFacts> look_at_host() {
  HostFacts facts;
  char name[256] = "?";
  gethostname(name, sizeof name - 1);
  facts.name = name;
  facts.conf = take_nccl_conf();
  facts.setting_warnings = facts.conf.problems;
  auto config = load_config(Environment{}, &facts.setting_warnings);
  if (!config) {
    return config.error();
  }
  facts.config = std::move(*config);
  if (auto known = fabric::check_fabric_name(facts.config); !known) {
    return known.error();
  }
  auto rdma = look_at_rdma(facts.config);
  if (!rdma) {
    return rdma.error();
  }
  facts.rdma = std::move(*rdma);
  auto all = fabric::list_interfaces();
  if (!all) {
    return all.error();
  }
  auto chosen = fabric::select_offered(*all, facts.config.ifname, facts.config.socket_family);
  if (!chosen) {
    return chosen.error();
  }
  facts.interfaces = std::move(*chosen);
  facts.lost = lost_interfaces(*all, facts.config);
  for (const NetInterface& interface : facts.interfaces) {
    facts.ipv4[interface.name] = ipv4_rules(interface.name);
    if (const std::string other = other_way_out(interface); !other.empty()) {
      facts.leaves_by[interface.name] = other;
    }
  }
  facts.kernel = probe_kernel(facts.config);
  facts.memlock_bytes = limit_of(RLIMIT_MEMLOCK);
  facts.open_files = limit_of(RLIMIT_NOFILE);
  facts.may_lock = may_lock_memory();
  const std::vector<int> cpus = usable_cpus();
  facts.cpus_usable = processor_share().usable();
  facts.cpus = usable_cpus();
  facts.cpus_online = static_cast<size_t>(std::max(sysconf(_SC_NPROCESSORS_ONLN), 1L));
  facts.cpu_nodes = nodes_of(cpus);
  facts.governors = governors();
  std::error_code error;
  facts.nvidia = std::filesystem::exists("/proc/driver/nvidia/version", error);
  facts.plugin = look_for_plugin(process_environment());
  facts.folders = look_at_folders(facts.config);
  facts.shm_free_bytes = free_bytes_of("/dev/shm");
  facts.all_interfaces = std::move(*all);
  return facts;
}

}  // namespace nccl_ha::tools
