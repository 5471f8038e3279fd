#include "tools/check/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>

namespace nccl_ha::tools {
namespace {

constexpr double clock_apart_s = 1;

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    text += (text.empty() ? "" : ", ") + word;
  }
  return text;
}

/// A setting that hosts must have alike, and what comes of it when they do not.
struct Agreement {
  const char* variable;
  Level level;
  const char* consequence;
};
constexpr Agreement agreements[] = {
    {"HA_NCCL_ENABLE_BACKUP", Level::warning,
     "connections with a host that has 0 are not replaced when their path fails"},
    {"HA_NCCL_SHADOW_PATHS", Level::warning,
     "no more fallback paths can be joined than the host with the fewest has"},
    {"HA_NCCL_SHADOW_DATAGRAMS", Level::warning,
     "datagrams take over from RDMA only where both hosts have 1"},
    {"HA_NCCL_FABRIC", Level::warning, "hosts may have no fabric in common"},
    {"HA_NCCL_JOIN_PORT_HALVES", Level::warning, "devices of the hosts do not correspond"},
    {"HA_NCCL_RAIL_MODE", Level::warning, "hosts split their data differently"},
    {"HA_NCCL_ISLAND_PREFIX_LEN", Level::warning, "hosts do not agree on who is in one island"},
    // Worse where hosts reach each other over others only.
    {"HA_NCCL_MESH_PORT", Level::warning, "hosts do not find each other as neighbours"},
    {"HA_NCCL_MESH_ENABLE_RELAY", Level::warning,
     "a host that has 0 neither relays nor is relayed to"},
};
/// What names devices, processors or files of one host may differ.
constexpr const char* of_one_host[] = {"HA_NCCL_IFNAME",           "HA_NCCL_IB_HCA",
                                       "HA_NCCL_PROGRESS_CPUS",    "HA_NCCL_COUNTERS_DIR",
                                       "HA_NCCL_PROGRESS_THREADS", "HA_NCCL_DEBUG",
                                       "HA_NCCL_AGENT_DIR",        "HA_NCCL_HCA_SOUT",
                                       "HA_NCCL_HCA_SUP",          "HA_NCCL_OOB_IF",
                                       "HA_NCCL_MESH_IFNAME",      "HA_NCCL_MESH_PEERS",
                                       "HA_NCCL_MESH_PAGE",        "HA_NCCL_MESH_RELAY",
                                       "HA_NCCL_MESH_KEY_FILE",    "HA_NCCL_MESH_TOPOLOGY_FILE"};

class Comparison {
 public:
  Comparison(const std::vector<HostSheet>& sheets, const std::vector<std::string>& names,
             bool on_mesh)
      : sheets_(sheets), names_(names), on_mesh_(on_mesh) {}

  std::vector<Finding> run() {
    same_names();
    versions();
    plugins();
    settings();
    addresses();
    if (!on_mesh_) {
      crossed();
      chosen_apart();
      bare_rails();
      one_network();
      lone_networks();
      of_networks();
    }
    clocks();
    return std::move(found_);
  }

 private:
  void add(Level level, std::string what, std::string remedy, std::vector<RailAt> rails = {}) {
    found_.push_back({level, std::move(what), std::move(remedy), std::move(rails)});
  }

  /// The hosts by what `of` says of each, the commonest first; empty where all say the same.
  std::vector<std::pair<std::string, std::vector<std::string>>> groups(
      const std::function<std::string(const HostSheet&)>& of) const {
    std::map<std::string, std::vector<std::string>> by_value;
    for (size_t i = 0; i < sheets_.size(); ++i) {
      by_value[of(sheets_[i])].push_back(names_[i]);
    }
    std::vector<std::pair<std::string, std::vector<std::string>>> out(by_value.begin(),
                                                                      by_value.end());
    std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) {
      return a.second.size() > b.second.size();
    });
    return out.size() > 1 ? out : decltype(out)();
  }

  static std::string text(
      const std::vector<std::pair<std::string, std::vector<std::string>>>& grouped) {
    std::string out;
    for (const auto& [value, hosts] : grouped) {
      out += fmt::format("{}{} on {}", out.empty() ? "" : "; ", value.empty() ? "nothing" : value,
                         joined(hosts));
    }
    return out;
  }

  void same_names() {
    for (size_t i = 0; i < sheets_.size(); ++i) {
      for (size_t j = i + 1; j < sheets_.size(); ++j) {
        if (sheets_[i].machine == sheets_[j].machine) {
          add(Level::hint, fmt::format("ranks {} and {} are on one host, {}", i, j, names_[i]),
              "start one rank of the check on each host");
        } else if (sheets_[i].name == sheets_[j].name) {
          add(Level::warning,
              fmt::format("ranks {} and {} are on two hosts that are both called {}", i, j,
                          sheets_[i].name),
              "give each host a name of its own: logs, metrics and meshes tell hosts by it");
        }
      }
    }
  }

  /// Whether each two hosts share a version of the plugin's protocol.
  bool any_two_connect() const {
    int64_t oldest = 0;
    int64_t newest = std::numeric_limits<int64_t>::max();
    for (const HostSheet& sheet : sheets_) {
      oldest = std::max(oldest, sheet.protocol_oldest);
      newest = std::min(newest, sheet.protocol);
    }
    return oldest <= newest;
  }

  void versions() {
    if (!any_two_connect()) {
      const auto range = [](const HostSheet& s) {
        return s.protocol_oldest == s.protocol
                   ? fmt::format("{}", s.protocol)
                   : fmt::format("{} to {}", s.protocol_oldest, s.protocol);
      };
      add(Level::error, "hosts share no version of the plugin's protocol: " + text(groups(range)),
          "install the same version of nccl-ha on all hosts");
      return;
    }
    if (const auto apart = groups([](const HostSheet& s) { return s.version; }); !apart.empty()) {
      add(Level::warning, "versions of nccl-ha differ: " + text(apart),
          "install the same version of nccl-ha on all hosts");
    } else if (const auto builds = groups([](const HostSheet& s) { return s.commit; });
               !builds.empty()) {
      add(Level::hint, "builds of nccl-ha differ: " + text(builds),
          "install the same package of nccl-ha on all hosts");
    }
  }

  /// NCCL takes its own network where it is not told to load a plugin.
  void plugins() {
    std::vector<std::string> without;
    std::string with;
    for (size_t i = 0; i < sheets_.size(); ++i) {
      if (!sheets_[i].asks_for_plugin) {
        without.push_back(names_[i]);
      } else if (with.empty()) {
        with = fmt::format("{} on {}", sheets_[i].plugin_asked, names_[i]);
      }
    }
    if (!without.empty() && !with.empty()) {
      const std::string& other = sheets_[rank_of(without.front())].plugin_asked;
      add(Level::error,
          fmt::format("NCCL_NET_PLUGIN differs: {}, {} on {}: NCCL takes its own network there and "
                      "does not reach the other hosts",
                      with, other.empty() ? "not set" : other, joined(without)),
          "set NCCL_NET_PLUGIN alike on all hosts, in the job's environment or /etc/nccl.conf");
    }
  }

  /// Two hosts, each with networks, that have none in common: relay nodes have to be between.
  bool some_share_no_network() const {
    std::vector<std::set<std::string>> of_hosts;
    for (const HostSheet& sheet : sheets_) {
      std::set<std::string> networks = networks_of(sheet);
      for (const std::set<std::string>& other : of_hosts) {
        const bool common = std::any_of(networks.begin(), networks.end(),
                                        [&](const auto& one) { return other.contains(one); });
        if (!common && !networks.empty() && !other.empty()) {
          return true;
        }
      }
      of_hosts.push_back(std::move(networks));
    }
    return false;
  }

  void settings() {
    std::set<std::string> others;
    for (const HostSheet& sheet : sheets_) {
      for (const auto& [variable, value] : sheet.settings) {
        others.insert(variable);
      }
    }
    const auto grouped = [&](const std::string& variable) {
      return groups([&](const HostSheet& sheet) {
        const auto found = sheet.settings.find(variable);
        return found == sheet.settings.end() ? std::string("(not known)") : found->second;
      });
    };
    for (const Agreement& one : agreements) {
      others.erase(one.variable);
      // Which hosts do not reach each other for that is said where paths are judged.
      if (on_mesh_ && one.variable == std::string_view("HA_NCCL_MESH_ENABLE_RELAY")) {
        continue;
      }
      if (const auto apart = grouped(one.variable); !apart.empty()) {
        const bool of_mesh = one.variable == std::string_view("HA_NCCL_MESH_PORT");
        add(of_mesh && some_share_no_network() ? Level::error : one.level,
            fmt::format("{} differs: {}: {}", one.variable, text(apart), one.consequence),
            fmt::format("set {} to the same value on all hosts, in the job's environment or the "
                        "site's profile",
                        one.variable));
      }
    }
    for (const char* variable : of_one_host) {
      others.erase(variable);
    }
    std::string differ;
    for (const std::string& variable : others) {
      if (const auto apart = grouped(variable); !apart.empty()) {
        differ += fmt::format("{}{} ({})", differ.empty() ? "" : ", ", variable, text(apart));
      }
    }
    if (!differ.empty()) {
      add(Level::hint, "settings differ between hosts: " + differ,
          "set them alike, unless the hosts are meant to differ");
    }
  }

  void addresses() {
    std::map<std::string, std::vector<std::pair<size_t, std::string>>> holders;
    for (size_t i = 0; i < sheets_.size(); ++i) {
      for (const RailSheet& rail : sheets_[i].rails) {
        for (const std::string& address : rail.addresses) {
          holders[address].emplace_back(i, rail.name);
        }
      }
    }
    for (const auto& [address, where] : holders) {
      std::set<std::string> machines;
      std::vector<std::string> places;
      std::vector<RailAt> rails;
      for (const auto& [host, rail] : where) {
        rails.push_back({host, rail});
        if (machines.insert(sheets_[host].machine).second) {
          places.push_back(fmt::format("{} ({})", names_[host], rail));
        }
      }
      if (machines.size() > 1) {
        add(Level::error, fmt::format("{} is the address of several: {}", address, joined(places)),
            "give each interface an address of its own: traffic to this one goes to either of "
            "them",
            std::move(rails));
      }
    }
  }

  static std::string setting(const HostSheet& sheet, const char* variable) {
    const auto found = sheet.settings.find(variable);
    return found == sheet.settings.end() ? "" : found->second;
  }
  size_t rank_of(const std::string& name) const {
    return static_cast<size_t>(std::find(names_.begin(), names_.end(), name) - names_.begin());
  }
  static std::set<std::string> networks_of(const HostSheet& sheet) {
    std::set<std::string> networks;
    for (const RailSheet& rail : sheet.rails) {
      networks.insert(rail.networks.begin(), rail.networks.end());
    }
    return networks;
  }
  static std::vector<std::string> first_networks(const HostSheet& sheet) {
    std::vector<std::string> networks;
    for (const RailSheet& rail : sheet.rails) {
      networks.push_back(rail.networks.empty() ? "" : rail.networks.front());
    }
    return networks;
  }

  /// The same networks in another order.
  void crossed() {
    std::map<std::vector<std::string>, std::vector<size_t>> by_order;
    for (size_t i = 0; i < sheets_.size(); ++i) {
      by_order[first_networks(sheets_[i])].push_back(i);
    }
    std::map<std::set<std::string>, std::vector<std::pair<size_t, size_t>>> alike;  // hosts, first
    for (const auto& [order, hosts] : by_order) {
      const std::set<std::string> networks(order.begin(), order.end());
      if (networks.size() == order.size() && order.size() > 1 && !networks.contains("")) {
        alike[networks].emplace_back(hosts.size(), hosts.front());
      }
    }
    for (auto& [networks, orders] : alike) {
      std::stable_sort(orders.begin(), orders.end(),
                       [](const auto& a, const auto& b) { return a.first > b.first; });
      for (size_t k = 1; k < orders.size(); ++k) {
        std::vector<std::string> wrong;
        std::vector<RailAt> rails;
        for (const size_t host : by_order[first_networks(sheets_[orders[k].second])]) {
          wrong.push_back(names_[host]);
          add_displaced(host, orders[0].second, rails);
        }
        add(Level::error,
            fmt::format("rails are crossed: {} on {}, {} on {}", order_text(orders[0].second),
                        names_[orders[0].second], order_text(orders[k].second), joined(wrong)),
            "give the n-th device of all hosts the same network: change the addresses or the "
            "cables, or choose devices in the same order with HA_NCCL_IFNAME or HA_NCCL_IB_HCA",
            std::move(rails));
      }
    }
  }

  /// The rails of `host` that are tried with one of `other` in another network.
  void add_displaced(size_t host, size_t other, std::vector<RailAt>& rails) const {
    const auto own = first_networks(sheets_[host]);
    const auto theirs = first_networks(sheets_[other]);
    for (size_t i = 0; i < std::min(own.size(), theirs.size()); ++i) {
      if (own[i] != theirs[i]) {
        rails.push_back({host, sheets_[host].rails[i].name});
      }
    }
  }

  bool shares_a_network(size_t host) const {
    const auto own = networks_of(sheets_[host]);
    for (size_t other = 0; other < sheets_.size(); ++other) {
      const auto theirs = networks_of(sheets_[other]);
      if (other != host && std::any_of(own.begin(), own.end(), [&](const auto& network) {
            return theirs.contains(network);
          })) {
        return true;
      }
    }
    return own.empty();
  }

  /// A setting that chooses devices differs, and leaves a host alone in its networks.
  void chosen_apart() {
    for (const char* variable : {"HA_NCCL_IFNAME", "HA_NCCL_IB_HCA"}) {
      const auto apart = groups([&](const HostSheet& sheet) { return setting(sheet, variable); });
      std::vector<RailAt> rails;
      std::vector<std::string> alone;
      for (size_t i = 0; i < sheets_.size() && !apart.empty(); ++i) {
        if (shares_a_network(i) || !chosen_apart_.insert(i).second) {
          continue;
        }
        alone.push_back(names_[i]);
        for (const RailSheet& rail : sheets_[i].rails) {
          rails.push_back({i, rail.name});
        }
      }
      if (!alone.empty()) {
        add(Level::warning,
            fmt::format("{} differs: {}: no other host is in the networks of {}", variable,
                        text(apart), joined(alone)),
            fmt::format("let {} choose devices in the same networks on all hosts", variable),
            std::move(rails));
      }
    }
  }

  /// An Ethernet rail without an address, or with one that it gave itself, where others have a
  /// network.
  void bare_rails() {
    std::map<std::string, size_t> hosts_in;
    for (const HostSheet& sheet : sheets_) {
      for (const std::string& network : networks_of(sheet)) {
        ++hosts_in[network];
      }
    }
    for (size_t i = 0; i < sheets_.size(); ++i) {
      std::vector<std::string> bare;
      std::vector<RailAt> rails;
      for (const RailSheet& rail : sheets_[i].rails) {
        if (rail.networks.empty() && !rail.mac.empty()) {
          bare.push_back(rail.name);
          rails.push_back({i, rail.name});
        }
      }
      std::vector<std::string> missing;
      for (const auto& [network, hosts] : hosts_in) {
        if (hosts + 1 == sheets_.size() && !networks_of(sheets_[i]).contains(network)) {
          missing.push_back(network);
        }
      }
      if (bare.empty() || missing.empty()) {
        continue;
      }
      const size_t other = i == 0 ? 1 : 0;
      add_displaced(i, other, rails);
      add(Level::warning,
          fmt::format("{} of {} has only a link-local address; all other hosts have one in {}",
                      joined(bare), names_[i], joined(missing)),
          fmt::format("look at `ip address show {}`: a DHCP client that has ended, an address that "
                      "was removed",
                      bare.front()),
          std::move(rails));
    }
  }

  std::string order_text(size_t host) const {
    std::vector<std::string> rails;
    for (const RailSheet& rail : sheets_[host].rails) {
      rails.push_back(fmt::format("{} in {}", rail.name, rail.networks.front()));
    }
    return joined(rails);
  }

  /// Two rails in one network, where other hosts have a network for each.
  void one_network() {
    std::vector<std::pair<size_t, std::string>> doubled;
    for (size_t i = 0; i < sheets_.size(); ++i) {
      std::set<std::string> seen;
      for (const std::string& network : first_networks(sheets_[i])) {
        if (!network.empty() && !seen.insert(network).second) {
          doubled.emplace_back(i, network);
          break;
        }
      }
    }
    if (doubled.size() == sheets_.size()) {
      return;
    }
    for (const auto& [host, network] : doubled) {
      std::vector<std::string> rails;
      std::vector<RailAt> places;
      for (const RailSheet& rail : sheets_[host].rails) {
        if (!rail.networks.empty() && rail.networks.front() == network) {
          rails.push_back(rail.name);
          places.push_back({host, rail.name});
        }
      }
      add(Level::warning,
          fmt::format("{} of {} are both in {}; other hosts have a network for each rail",
                      joined(rails), names_[host], network),
          "give each rail an address in its own network: one switch that fails would take both",
          std::move(places));
    }
  }

  /// A rail in a network of its own, where the other hosts share one.
  void lone_networks() {
    size_t most = 0;
    for (const HostSheet& sheet : sheets_) {
      most = std::max(most, sheet.rails.size());
    }
    std::map<std::string, std::set<size_t>> members;
    for (size_t i = 0; i < sheets_.size(); ++i) {
      for (const RailSheet& rail : sheets_[i].rails) {
        for (const std::string& network : rail.networks) {
          members[network].insert(i);
        }
      }
    }
    for (size_t index = 0; index < most; ++index) {
      std::map<std::string, std::vector<size_t>> by_network;
      for (size_t i = 0; i < sheets_.size(); ++i) {
        if (index < sheets_[i].rails.size() && !sheets_[i].rails[index].networks.empty()) {
          by_network[sheets_[i].rails[index].networks.front()].push_back(i);
        }
      }
      const auto shared = std::max_element(
          by_network.begin(), by_network.end(),
          [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
      if (shared == by_network.end() || shared->second.size() * 2 <= sheets_.size()) {
        continue;
      }
      for (const auto& [network, hosts] : by_network) {
        if (network != shared->first && members[network].size() == 1 &&
            !chosen_apart_.contains(hosts.front())) {
          const size_t host = hosts.front();
          add(Level::warning,
              fmt::format("{} of {} is in {}, where no other host is; the other hosts have that "
                          "rail in {}",
                          sheets_[host].rails[index].name, names_[host], network, shared->first),
              "correct its address or prefix length", {{host, sheets_[host].rails[index].name}});
        }
      }
    }
  }

  /// MTU and speed of those in one network.
  void of_networks() {
    std::map<std::string, std::vector<std::pair<size_t, const RailSheet*>>> members;
    for (size_t i = 0; i < sheets_.size(); ++i) {
      for (const RailSheet& rail : sheets_[i].rails) {
        if (!rail.networks.empty()) {
          members[rail.networks.front()].emplace_back(i, &rail);
        }
      }
    }
    for (const auto& [network, rails] : members) {
      differ(network, rails, "MTU", "bytes", &RailSheet::mtu,
             "set the same MTU on all interfaces and switch ports of the rail");
      differ(network, rails, "speed", "Mbit/s", &RailSheet::speed_mbps,
             "look for a cable or port that came up slower than its equals (ethtool, ibstat)");
    }
  }

  void differ(const std::string& network,
              const std::vector<std::pair<size_t, const RailSheet*>>& rails, const char* what,
              const char* unit, int64_t RailSheet::*value, const char* remedy) {
    std::map<int64_t, std::vector<std::string>> by_value;
    for (const auto& [host, rail] : rails) {
      by_value[rail->*value].push_back(fmt::format("{} ({})", names_[host], rail->name));
    }
    if (by_value.size() < 2) {
      return;
    }
    std::string text;
    for (const auto& [number, places] : by_value) {
      text += fmt::format("{}{} {} on {}", text.empty() ? "" : "; ", number, unit, joined(places));
    }
    add(Level::warning, fmt::format("the {} differs in {}: {}", what, network, text), remedy);
  }

  void clocks() {
    std::vector<double> times;
    for (const HostSheet& sheet : sheets_) {
      times.push_back(sheet.clock_s);
    }
    std::sort(times.begin(), times.end());
    const double middle = times[times.size() / 2];
    for (size_t i = 0; i < sheets_.size() && sheets_.size() > 1; ++i) {
      const double apart = sheets_[i].clock_s - middle;
      if (std::fabs(apart) > clock_apart_s) {
        add(Level::warning,
            fmt::format("the clock of {} is {:.1f} s {}", names_[i], std::fabs(apart),
                        apart < 0 ? "behind" : "ahead"),
            "let chrony or another NTP client set it: logs of several hosts cannot be put in "
            "order");
      }
    }
  }

  const std::vector<HostSheet>& sheets_;
  const std::vector<std::string>& names_;
  const bool on_mesh_;
  std::set<size_t> chosen_apart_;  ///< hosts of which a setting says why no other shares a network
  std::vector<Finding> found_;
};

}  // namespace

std::vector<std::string> distinct_names(const std::vector<HostSheet>& sheets) {
  std::map<std::string, size_t> count;
  for (const HostSheet& sheet : sheets) {
    ++count[sheet.name];
  }
  std::vector<std::string> names;
  for (size_t i = 0; i < sheets.size(); ++i) {
    names.push_back(count[sheets[i].name] > 1 ? fmt::format("{}#{}", sheets[i].name, i)
                                              : sheets[i].name);
  }
  return names;
}

std::vector<Finding> compare(const std::vector<HostSheet>& sheets,
                             const std::vector<std::string>& names, bool on_mesh) {
  return sheets.empty() ? std::vector<Finding>() : Comparison(sheets, names, on_mesh).run();
}

}  // namespace nccl_ha::tools
