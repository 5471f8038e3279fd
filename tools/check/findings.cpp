#include "tools/check/findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/base/cpu.h"
#include "runtime/base/setting_rules.h"
#include "runtime/fabric/provider.h"
#include "tools/check/job_findings.h"

namespace nccl_ha::tools {
namespace {

using fabric::NetInterface;
using fabric::verbs::LinkLayer;
using fabric::verbs::PortInfo;

/// RoCE's largest MTU with its headers needs an Ethernet MTU above this.
constexpr uint32_t roce_mtu = 4096;
constexpr uint32_t roce_ethernet_mtu = 4200;

class Judge {
 public:
  Judge(const HostFacts& facts, const Demands& demands)
      : facts_(facts), config_(facts.config), demands_(demands) {}

  std::vector<Finding> run() {
    found_ = judge_job(facts_, demands_);
    for (const std::string& warning : facts_.setting_warnings) {
      add(Level::warning, warning, "correct the variable, or remove it");
    }
    rdma_presence();
    for (const ChosenPort& port : facts_.rdma.ports) {
      rdma_port(port);
    }
    nic_retries();
    gpu();
    if (!facts_.on_mesh) {
      speeds();
      lost_rails();
    }
    shared_hardware();
    failover();
    shared_subnets();
    shared_ways_out();
    for (const Miscabling& one : facts_.miscabled) {
      add(Level::warning, one.what, one.remedy);
    }
    if (facts_.rdma.ports.empty() || config_.fabric == "datagram") {
      datagram_buffers();
    }
    processors();
    return std::move(found_);
  }

 private:
  void add(Level level, std::string what, std::string remedy, std::vector<RailAt> rails = {}) {
    found_.push_back({level, std::move(what), std::move(remedy), std::move(rails)});
  }

  static constexpr const char* rail_is_lost =
      ": a rail is lost, and connections have one less to fail over to";

  static std::string name_of(const PortInfo& port) {
    return fmt::format("RDMA port {}:{}{}", port.device, port.port,
                       port.netdev.empty() ? "" : " (" + port.netdev + ")");
  }

  bool rdma_is_wanted() const {
    return fabric::fabric_is_forced(config_) || (config_.fabric == "auto" && !config_.ib_disable);
  }

  /// The interface of a port that is down has an address: it is meant to carry traffic.
  bool is_lost_rail(const PortInfo& port) const {
    return std::any_of(facts_.lost.begin(), facts_.lost.end(),
                       [&](const NetInterface& one) { return one.name == port.netdev; });
  }

  void rdma_presence() {
    if (!rdma_is_wanted()) {
      return;
    }
    const bool forced = fabric::fabric_is_forced(config_);
    for (const PortInfo& port : facts_.rdma.down) {
      const bool lost = is_lost_rail(port);
      add(lost || (forced && facts_.rdma.ports.empty()) ? Level::error : Level::warning,
          fmt::format("{} is {}{}", name_of(port), port.state, lost ? rail_is_lost : ""),
          port.link == LinkLayer::infiniband
              ? "check the cable, and that a subnet manager runs (sminfo); or leave the port out "
                "with HA_NCCL_IB_HCA"
              : fmt::format("check the cable and `ip link show {0}`; bring it up with `ip link set "
                            "{0} up`, or leave the port out with HA_NCCL_IB_HCA",
                            port.netdev.empty() ? "its interface" : port.netdev),
          {{0, port.device}});
    }
    for (const PortInfo& port : facts_.rdma.without_gid) {
      add(forced && facts_.rdma.ports.empty() ? Level::error : Level::warning,
          fmt::format("{} has {} GIDs, but none that the settings allow", name_of(port),
                      port.gids.size()),
          "give its interface an IP address, and look at HA_NCCL_IB_GID_INDEX and "
          "HA_NCCL_IB_ADDR_RANGE");
    }
    const bool none =
        facts_.rdma.ports.empty() && facts_.rdma.down.empty() && facts_.rdma.without_gid.empty();
    if (none) {
      std::string why;
      for (const std::string& note : facts_.rdma.notes) {
        why += (why.empty() ? "" : "; ") + note;
      }
      add(forced ? Level::error : Level::hint, "no RDMA: " + why,
          forced ? "install a driver and rdma-core, or set HA_NCCL_FABRIC=auto"
                 : "nothing, where there is no RDMA NIC: datagrams over UDP are used");
    }
  }

  void rdma_port(const ChosenPort& port) {
    const std::string name = name_of(port.info);
    if (port.info.link == LinkLayer::ethernet && port.gid) {
      if (!port.gid->roce_v2) {
        add(Level::warning, fmt::format("{} would use RoCE v1", name),
            "RoCE v1 does not cross routers: set HA_NCCL_IB_ROCE_VERSION_NUM=2, and let the "
            "driver offer v2 GIDs");
      }
      if (fabric::verbs::gid_link_local(port.gid->bytes)) {
        add(Level::warning,
            fmt::format("{} would use GID {}, a link-local address", name, port.gid->index),
            fmt::format("give {} an IP address, so that peers in other subnets can be reached",
                        port.info.netdev.empty() ? "its interface" : port.info.netdev));
      }
    }
    if (port.info.mtu < roce_mtu) {
      add(Level::warning,
          fmt::format("{} has an MTU of {}, {} are possible", name, port.info.mtu, roce_mtu),
          port.info.link == LinkLayer::infiniband
              ? "let the subnet manager configure an MTU of 4096"
              : fmt::format("set the MTU of {} and of all switch ports to at least {}",
                            port.info.netdev.empty() ? "its interface" : port.info.netdev,
                            roce_ethernet_mtu));
    }
    if (port.info.numa_node >= 0 && !facts_.cpu_nodes.empty() &&
        std::find(facts_.cpu_nodes.begin(), facts_.cpu_nodes.end(), port.info.numa_node) ==
            facts_.cpu_nodes.end()) {
      add(Level::hint,
          fmt::format("{} is on NUMA node {}, but no processor that this process may use is", name,
                      port.info.numa_node),
          "bind the rank to that node (numactl, --cpu-bind, cgroup cpuset)");
    }
  }

  void nic_retries() {
    if (const auto slow = slow_retries(config_); slow && !facts_.rdma.ports.empty()) {
      add(Level::warning, slow->what, slow->remedy);
    }
  }

  void gpu() {
    if (!facts_.nvidia) {
      return;
    }
    for (const ChosenPort& port : facts_.rdma.ports) {
      if (!port.gpu_memory) {
        add(Level::warning,
            fmt::format("{} cannot reach GPU memory; every byte takes the way through host memory",
                        name_of(port.info)),
            "load nvidia_peermem, or use a driver and kernel with DMA-BUF (open kernel modules)");
      }
    }
  }

  void speeds() {
    std::set<int64_t> speeds;
    std::string text;
    for (const ChosenPort& port : facts_.rdma.ports) {
      speeds.insert(port.info.speed_mbps);
      text += fmt::format("{}{} {} Mbit/s", text.empty() ? "" : ", ", name_of(port.info),
                          port.info.speed_mbps);
    }
    if (speeds.size() > 1) {
      add(Level::warning, "rails differ in speed: " + text,
          "look for a cable or port that came up slower than its equals (ethtool, ibstat)");
    }
  }

  /// An interface with an address is meant to carry traffic; what is down carries none, and the
  /// plugin does without it in silence.
  void lost_rails() {
    const auto is_beneath = [&](const NetInterface& interface) {
      return std::any_of(facts_.rdma.down.begin(), facts_.rdma.down.end(),
                         [&](const PortInfo& port) { return port.netdev == interface.name; });
    };
    for (const NetInterface& interface : facts_.lost) {
      const bool beneath = is_beneath(interface);
      if (beneath ? rdma_is_wanted() : !facts_.rdma.ports.empty()) {
        continue;  // its port's finding tells of it, or it would carry no data
      }
      add(Level::error,
          fmt::format("{} ({}) is down{}", interface.name, interface.addresses.front().text(),
                      rail_is_lost),
          fmt::format(
              "check the cable and switch port and `ip link show {0}`; bring it up with `ip "
              "link set {0} up`, or leave it out with HA_NCCL_IFNAME",
              interface.name),
          {{0, interface.name}});
    }
    const bool only_loopback = !facts_.interfaces.empty() && facts_.rdma.ports.empty() &&
                               std::all_of(facts_.interfaces.begin(), facts_.interfaces.end(),
                                           [](const NetInterface& one) { return one.loopback; });
    if (only_loopback && config_.ifname.empty()) {
      add(Level::warning, "no network interface is up but loopback: no other host is reached",
          "check cables and `ip address`");
    }
  }

  struct Placed {
    std::string name;
    std::string pci_path;
  };
  std::vector<Placed> placed_rails() const {
    std::vector<Placed> rails;
    for (const ChosenPort& port : facts_.rdma.ports) {
      rails.push_back({name_of(port.info), port.info.pci_path});
    }
    for (const NetInterface& interface : facts_.interfaces) {
      if (facts_.rdma.ports.empty()) {
        rails.push_back({interface.name, interface.pci_path});
      }
    }
    return rails;
  }

  /// What takes two rails with it when it fails.
  void shared_hardware() {
    const std::vector<Placed> rails = placed_rails();
    for (size_t i = 0; i < rails.size(); ++i) {
      for (size_t j = i + 1; j < rails.size(); ++j) {
        const SharedPci shared = shared_pci(rails[i].pci_path, rails[j].pci_path);
        if (shared == SharedPci::one_switch) {
          add(Level::hint,
              fmt::format("{} and {} are behind one PCI switch: they share its bandwidth and fail "
                          "with it",
                          rails[i].name, rails[j].name),
              "put the NICs into slots of different PCI roots, where the host has them");
        }
      }
    }
  }

  void failover() {
    if (!config_.enable_backup) {
      add(Level::hint,
          "failover is switched off (HA_NCCL_ENABLE_BACKUP=0): a path that fails ends its "
          "connection, and the job",
          "leave HA_NCCL_ENABLE_BACKUP at 1, unless that is wanted");
    }
  }

  bool carries_data(const NetInterface& interface) const {
    if (facts_.rdma.ports.empty()) {
      return true;
    }
    return std::any_of(facts_.rdma.ports.begin(), facts_.rdma.ports.end(),
                       [&](const ChosenPort& port) { return port.info.netdev == interface.name; });
  }

  /// Two interfaces in one subnet: the kernel answers for either on both unless told otherwise.
  void shared_subnets() {
    const auto& all = facts_.interfaces;
    for (size_t i = 0; i < all.size(); ++i) {
      for (size_t j = i + 1; j < all.size(); ++j) {
        // ARP and rp_filter are IPv4's; link-local networks of IPv6 look alike on each cable.
        const bool share = !all[i].addresses.empty() && !all[j].addresses.empty() &&
                           all[i].addresses.front().family == 4 &&
                           all[i].addresses.front().same_subnet(all[j].addresses.front()) &&
                           carries_data(all[i]) && carries_data(all[j]);
        if (!share) {
          continue;
        }
        for (const NetInterface* interface : {&all[i], &all[j]}) {
          const auto rules = facts_.ipv4.find(interface->name);
          const bool strict = rules != facts_.ipv4.end() && rules->second.rp_filter == 1;
          const bool loose_arp = rules != facts_.ipv4.end() &&
                                 (rules->second.arp_ignore == 0 || rules->second.arp_announce == 0);
          if (strict || loose_arp) {
            add(strict ? Level::error : Level::warning,
                fmt::format("{} and {} are in one subnet, and {} {}", all[i].name, all[j].name,
                            interface->name,
                            strict ? "drops what arrives from it by the other's route (rp_filter=1)"
                                   : "answers ARP for the other's address"),
                fmt::format("use a subnet for each rail, or: sysctl -w "
                            "net.ipv4.conf.{0}.rp_filter=2 net.ipv4.conf.{0}.arp_ignore=1 "
                            "net.ipv4.conf.{0}.arp_announce=2",
                            interface->name),
                {{0, all[i].name}, {0, all[j].name}});
          }
        }
      }
    }
  }

  /// The plugin chooses the NIC of an address wherever the routes let it.
  void shared_ways_out() {
    for (const auto& [interface, other] : facts_.leaves_by) {
      add(Level::warning,
          fmt::format("what is sent from the address of {} leaves by {}, as the routes say: both "
                      "fail together",
                      interface, other),
          fmt::format("use a subnet for each rail, or give {} a route that is as good as that of "
                      "{}: look at `ip rule` and `ip route`, for IPv6 at the metrics",
                      interface, other),
          {{0, interface}});
    }
    std::map<std::pair<std::string, std::string>, std::vector<const StrayRoute*>> by_way;
    for (const StrayRoute& one : facts_.stray_routes) {
      if (!facts_.leaves_by.contains(one.interface)) {
        by_way[{one.interface, one.leaves_by}].push_back(&one);
      }
    }
    for (const auto& [way, routes] : by_way) {
      std::string to;
      for (const StrayRoute* one : routes) {
        to += fmt::format("{}{} ({})", to.empty() ? "" : ", ", one->to, one->to_host);
      }
      add(Level::warning,
          fmt::format("traffic from {} to {} leaves by {}: a route prefers that", way.first, to,
                      way.second),
          fmt::format("look at `ip route get {}` and `ip rule`, and remove the route",
                      routes.front()->to),
          {{0, way.first}});
    }
  }

  void datagram_buffers() {
    if (facts_.kernel.granted_bytes >= 0 &&
        facts_.kernel.granted_bytes < config_.dgram_socket_bytes) {
      add(Level::warning,
          fmt::format("the kernel grants {} bytes to a socket, {} are wanted: datagrams will be "
                      "lost under load",
                      facts_.kernel.granted_bytes, config_.dgram_socket_bytes),
          fmt::format("sysctl -w net.core.rmem_max={0} net.core.wmem_max={0}",
                      config_.dgram_socket_bytes));
    }
    if (!facts_.kernel.segmentation) {
      add(Level::hint, "this kernel has no UDP segmentation offload",
          "a kernel from 4.18 on needs much less processor time per datagram");
    }
  }

  void processors() {
    size_t slow = 0;
    std::string names;
    for (const auto& [governor, count] : facts_.governors) {
      if (governor != "performance") {
        slow += count;
        names += (names.empty() ? "" : ", ") + governor;
      }
    }
    if (slow > 0) {
      add(Level::hint,
          fmt::format("{} of {} processors change their frequency by load (governor {})", slow,
                      facts_.cpus_online, names),
          "cpupower frequency-set -g performance: latency varies less");
    }
    look_at_cpu_list();
    const auto workers = static_cast<size_t>(std::max<int64_t>(config_.progress_threads, 1));
    if (config_.use_progress_thread && facts_.cpus_usable <= workers) {
      add(Level::hint,
          fmt::format("{} and NCCL's own threads share {}", counted(workers, "progress thread"),
                      counted(facts_.cpus_usable, "processor")),
          "NCCL's threads do the work; give each rank more processors for overlap");
    }
  }

  void look_at_cpu_list() {
    // One that cannot be read is the settings' own finding.
    const auto listed = parse_cpu_list(config_.progress_cpus);
    std::string missing;
    for (const int cpu : listed ? *listed : std::vector<int>()) {
      if (std::find(facts_.cpus.begin(), facts_.cpus.end(), cpu) == facts_.cpus.end()) {
        missing += fmt::format("{}{}", missing.empty() ? "" : ", ", cpu);
      }
    }
    if (!missing.empty()) {
      add(Level::warning,
          fmt::format("HA_NCCL_PROGRESS_CPUS={}: this process may not use {}, but {}",
                      config_.progress_cpus, missing, fmt::join(facts_.cpus, ", ")),
          "name processors that are there and that the job is given (taskset, cpuset of the "
          "container, Slurm's binding); a progress thread without one is not pinned");
    }
  }

  const HostFacts& facts_;
  const Config& config_;
  const Demands& demands_;
  std::vector<Finding> found_;
};

}  // namespace

const char* to_text(Level level) {
  switch (level) {
    case Level::error:
      return "error";
    case Level::warning:
      return "warning";
    case Level::hint:
      return "hint";
  }
  return "unknown";
}

SharedPci shared_pci(const std::string& one, const std::string& other) {
  if (one.empty() || other.empty()) {
    return SharedPci::nothing;
  }
  // /sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0: a root, its bridges, the device at the end.
  const auto bridges_of = [](const std::string& path) {
    std::vector<std::string> parts;
    for (const auto& part : std::filesystem::path(path)) {
      const std::string text = part.string();
      const bool address =
          std::count(text.begin(), text.end(), ':') == 2 && text.find('.') != std::string::npos;
      if (address) {
        parts.push_back(text);
      }
    }
    return parts;
  };
  const std::vector<std::string> a = bridges_of(one);
  const std::vector<std::string> b = bridges_of(other);
  if (a.empty() || b.empty()) {
    return SharedPci::nothing;
  }
  const auto slot = [](const std::string& address) { return address.substr(0, address.find('.')); };
  if (slot(a.back()) == slot(b.back())) {
    return SharedPci::one_card;
  }
  // Beneath the root port there is at least the switch's own upstream port.
  return a.size() > 2 && b.size() > 2 && a[0] == b[0] && a[1] == b[1] ? SharedPci::one_switch
                                                                      : SharedPci::nothing;
}

nlohmann::json to_json(const Finding& finding) {
  nlohmann::json rails = nlohmann::json::array();
  for (const RailAt& one : finding.rails) {
    rails.push_back(one.rail);
  }
  return {{"level", to_text(finding.level)},
          {"what", finding.what},
          {"remedy", finding.remedy},
          {"rails", std::move(rails)}};
}

std::optional<Finding> finding_from_json(const nlohmann::json& from) {
  for (const char* key : {"level", "what", "remedy"}) {
    if (!from.is_object() || !from.contains(key) || !from[key].is_string()) {
      return std::nullopt;
    }
  }
  for (const Level level : {Level::error, Level::warning, Level::hint}) {
    if (from["level"] == to_text(level)) {
      Finding finding{level, from["what"], from["remedy"], {}};
      for (const auto& rail : from.value("rails", nlohmann::json::array())) {
        finding.rails.push_back({0, rail.is_string() ? rail.get<std::string>() : ""});
      }
      return finding;
    }
  }
  return std::nullopt;
}

std::string counted(size_t number, const std::string& noun) {
  return fmt::format("{} {}{}", number, noun, number == 1 ? "" : "s");
}

std::vector<Finding> judge(const HostFacts& facts, const Demands& demands) {
  return Judge(facts, demands).run();
}

}  // namespace nccl_ha::tools
