#include "tools/check/mesh_findings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "tools/check/fold.h"
#include "tools/check/mesh_paths.h"

namespace nccl_ha::tools {
namespace {

/// RoCE's largest MTU of 4096 with its headers needs an Ethernet MTU above this.
constexpr int64_t mtu_for_roce = 4200;

/// What a cable may have, the causes before what comes of them.
enum class Ill : uint8_t {
  nothing,
  disabled,
  no_address,
  left_out,
  no_link,
  networks_apart,
  unheard,
  no_device,
  mtu_differs,
  small_mtu,
  slower,
  fails,
  lossy,
  warned,
};

struct Case {
  Ill ill = Ill::nothing;
  std::optional<size_t> end;  ///< where it is, if at one end
  std::string said;           ///< by the plugin
};

class CableJudge {
 public:
  CableJudge(const MeshPlan& plan, const std::vector<MeshSheet>& sheets,
             const std::vector<PairResult>& tried, const std::vector<std::string>& names)
      : plan_(plan), sheets_(sheets), names_(names) {
    for (const PairResult& pair : tried) {
      tried_[static_cast<size_t>(pair.device)] = &pair;
    }
    for (const MeshCable& cable : plan.cables) {
      for (const CableEnd end : cable.ends) {
        ++mtus_[port(end).mtu];
      }
    }
  }

  std::vector<Finding> run() {
    std::map<Ill, std::vector<size_t>> by_ill;
    for (size_t i = 0; i < plan_.cables.size(); ++i) {
      cases_.push_back(look_at(i));
      by_ill[cases_.back().ill].push_back(i);
    }
    by_ill.erase(Ill::nothing);
    for (const auto& [ill, cables] : by_ill) {
      // What all of these cables have in common is the one place to look at.
      std::map<uint32_t, std::vector<size_t>> of_hosts;
      std::vector<size_t> rest;
      const auto common = common_host(cables);
      for (const size_t cable : cables) {
        const auto end = cases_[cable].end;
        if (end) {
          of_hosts[plan_.cables[cable].ends[*end].rank].push_back(cable);
        } else if (common && ill != Ill::small_mtu && ill != Ill::warned) {
          of_hosts[*common].push_back(cable);
        } else {
          rest.push_back(cable);
        }
      }
      for (const auto& [host, some] : of_hosts) {
        tell(ill, host, some);
      }
      if (ill == Ill::small_mtu) {
        tell_small_mtu(rest);
      } else {
        for (const size_t cable : rest) {
          tell(ill, std::nullopt, {cable});
        }
      }
    }
    ports_without_cable();
    slow_ones();
    return std::move(found_);
  }

 private:
  const MeshPort& port(CableEnd end) const { return sheets_[end.rank].ports[end.port]; }

  std::vector<const MeshPort*> halves_of(CableEnd end) const {
    std::vector<const MeshPort*> halves;
    for (const MeshPort& one : sheets_[end.rank].ports) {
      if (!one.nic.empty() && one.nic == port(end).nic && one.nic_port == port(end).nic_port) {
        halves.push_back(&one);
      }
    }
    return halves;
  }

  /// Another function of that port works.
  bool is_idle_half(CableEnd end) const {
    return std::any_of(plan_.cables.begin(), plan_.cables.end(), [&](const MeshCable& cable) {
      return cable.heard && std::any_of(cable.ends.begin(), cable.ends.end(), [&](CableEnd one) {
               return one.rank == end.rank && one.port != end.port && !port(end).nic.empty() &&
                      port(one).nic == port(end).nic && port(one).nic_port == port(end).nic_port;
             });
    });
  }

  Case look_at(size_t number) const {
    const MeshCable& cable = plan_.cables[number];
    const auto where = [&](auto&& is_so) -> std::optional<size_t> {
      for (size_t end = 0; end < 2; ++end) {
        if (is_so(port(cable.ends[end]))) {
          return end;
        }
      }
      return std::nullopt;
    };
    const PairResult* pair = tried_.contains(number) ? tried_.at(number) : nullptr;
    if (const auto end = where([](const MeshPort& one) { return !one.enabled; })) {
      return {Ill::disabled, end, ""};
    }
    if (!cable.heard) {
      if (const auto end = where([](const MeshPort& one) { return !one.addressed; })) {
        return {Ill::no_address, end, ""};
      }
      if (const auto end = where([](const MeshPort& one) { return !one.in_mesh; })) {
        return {Ill::left_out, end, ""};
      }
    }
    if (where([](const MeshPort& one) { return !one.link; })) {
      return {Ill::no_link, std::nullopt, ""};
    }
    if (networks_apart(port(cable.ends[0]), port(cable.ends[1]))) {
      return {Ill::networks_apart, std::nullopt, ""};
    }
    if (!cable.heard) {
      // A host that cannot look hears nobody: that is said of the host.
      const bool both_look = std::all_of(cable.ends.begin(), cable.ends.end(), [&](CableEnd end) {
        return sheets_[end.rank].error.empty();
      });
      return {both_look ? Ill::unheard : Ill::nothing, cable.deaf,
              pair == nullptr ? "" : pair->error};
    }
    if (const auto end = where([](const MeshPort& one) { return !one.is_device; })) {
      return {Ill::no_device, end, ""};
    }
    return look_at_working(cable, pair);
  }

  Case look_at_working(const MeshCable& cable, const PairResult* pair) const {
    const MeshPort& one = port(cable.ends[0]);
    const MeshPort& other = port(cable.ends[1]);
    if (one.mtu != other.mtu) {
      // The odd one is where few interfaces have what it has.
      const size_t first = mtus_.at(one.mtu);
      const size_t second = mtus_.at(other.mtu);
      return {Ill::mtu_differs,
              first == second ? std::nullopt : std::optional<size_t>(first < second ? 0 : 1), ""};
    }
    if (!one.nic.empty() && one.mtu < mtu_for_roce) {
      return {Ill::small_mtu, std::nullopt, ""};
    }
    for (size_t end = 0; end < 2; ++end) {
      const int64_t speed = port(cable.ends[end]).speed_mbps;
      int64_t best = port(cable.ends[1 - end]).speed_mbps;
      for (const MeshPort* half : halves_of(cable.ends[end])) {
        best = std::max(best, half->link ? half->speed_mbps : 0);
      }
      if (speed != 0 && speed < best) {
        return {Ill::slower, end, fmt::format("{} Mbit/s, not {}", speed, best)};
      }
    }
    if (pair == nullptr || pair->explained) {
      return {};
    }
    if (!pair->error.empty()) {
      return {Ill::fails, std::nullopt, pair->error};
    }
    if (is_lossy(*pair)) {
      return {Ill::lossy, std::nullopt,
              fmt::format("{} of {} datagrams were lost", pair->segments_lost, pair->segments)};
    }
    std::set<std::string> said;
    const std::string lines = warnings_of(*pair, said);
    return {lines.empty() ? Ill::nothing : Ill::warned, std::nullopt, lines};
  }

  /// The one host at which all of several cables end.
  std::optional<uint32_t> common_host(const std::vector<size_t>& cables) const {
    std::map<uint32_t, size_t> counts;
    for (const size_t cable : cables) {
      for (const CableEnd end : plan_.cables[cable].ends) {
        ++counts[end.rank];
      }
    }
    std::vector<uint32_t> all;
    for (const auto& [host, count] : counts) {
      if (count == cables.size() && cables.size() > 1) {
        all.push_back(host);
      }
    }
    return all.size() == 1 ? std::optional(all.front()) : std::nullopt;
  }

  std::string end_text(CableEnd end) const {
    return fmt::format("{} ({})", names_[end.rank], port(end).name);
  }
  std::string cable_text(size_t number) const {
    const auto& ends = plan_.cables[number].ends;
    return fmt::format("the cable between {} and {}", end_text(ends[0]), end_text(ends[1]));
  }
  /// Of cables that end at `host`: its interfaces, and what is at the other ends.
  std::pair<std::vector<std::string>, std::vector<std::string>> sides(
      uint32_t host, const std::vector<size_t>& cables) const {
    std::pair<std::vector<std::string>, std::vector<std::string>> out;
    for (const size_t cable : cables) {
      const auto& ends = plan_.cables[cable].ends;
      const size_t own = ends[0].rank == host ? 0 : 1;
      out.first.push_back(is_idle_half(ends[own])
                              ? fmt::format("{} (one of {} ways to port {})", port(ends[own]).name,
                                            halves_of(ends[own]).size(), port(ends[own]).nic_port)
                              : port(ends[own]).name);
      out.second.push_back(end_text(ends[1 - own]));
    }
    return out;
  }
  bool all_idle_halves(uint32_t host, const std::vector<size_t>& cables) const {
    return std::all_of(cables.begin(), cables.end(), [&](size_t cable) {
      const auto& ends = plan_.cables[cable].ends;
      return is_idle_half(ends[ends[0].rank == host ? 0 : 1]);
    });
  }

  void tell(Ill ill, std::optional<uint32_t> host, const std::vector<size_t>& cables) {
    const uint32_t at = host.value_or(plan_.cables[cables.front()].ends[0].rank);
    const auto [own, theirs] = sides(at, cables);
    const std::string ports = fmt::format("{} of {}", listed(own), names_[at]);
    const bool several = cables.size() > 1;
    const bool halves = all_idle_halves(at, cables);
    // The other half of the port carries everything.
    const Level level = halves ? Level::warning : Level::error;
    const std::string lost = halves ? std::string("half of the port is idle")
                                    : fmt::format("nothing goes over the cable{} to {}",
                                                  several ? "s" : "", listed(theirs));
    const std::string where =
        host ? fmt::format("the cable{} of {} to {}", several ? "s" : "", ports, listed(theirs))
             : cable_text(cables.front());
    const std::string& said = cases_[cables.front()].said;
    switch (ill) {
      case Ill::nothing:
      case Ill::small_mtu:
        return;
      case Ill::disabled:
        add(level, fmt::format("{} {} down: {}", ports, several ? "are" : "is", lost),
            fmt::format("ip link set {} up, and look at the configuration of that host",
                        port_name(at, cables.front())));
        return;
      case Ill::no_address:
        add(level, fmt::format("{} {} no address: {}", ports, several ? "have" : "has", lost),
            "let it have a link-local address of IPv6, or one of IPv4");
        return;
      case Ill::left_out:
        add(level,
            sheets_[at].ifname.empty()
                ? fmt::format("{} {} not taken for a cable, as others are faster: {}", ports,
                              several ? "are" : "is", lost)
                : fmt::format("HA_NCCL_MESH_IFNAME={} leaves out {}: {}", sheets_[at].ifname, ports,
                              lost),
            "name it too in HA_NCCL_MESH_IFNAME, or in HA_NCCL_IFNAME where that is not set");
        return;
      case Ill::no_link:
        add(level,
            fmt::format("{} {} no link{}", where, several ? "have" : "has",
                        halves ? ": half of the port is idle" : ""),
            "plug it in at both ends; look at `ip link show` and `ethtool` on both hosts");
        return;
      case Ill::networks_apart:
        tell_networks(host, cables, where);
        return;
      case Ill::unheard:
        tell_unheard(level, host, cables, where);
        return;
      case Ill::no_device:
        add(Level::warning,
            fmt::format("{} {} no device of the plugin's: {}", ports, several ? "have" : "has",
                        lost),
            "look at HA_NCCL_IFNAME and HA_NCCL_IB_HCA, and at `nccl-ha info` on that host");
        return;
      case Ill::mtu_differs:
        tell_mtu(at, cables, ports, theirs);
        return;
      case Ill::slower:
        add(Level::warning, fmt::format("{} {} {}", ports, several ? "have" : "has", said),
            fmt::format("compare `ethtool {}` on both hosts: cable, speed and FEC",
                        port_name(at, cables.front())));
        return;
      case Ill::fails:
        add(Level::error, fmt::format("{} {}: {}", where, several ? "fail" : "fails", said),
            remedy_for(said));
        return;
      case Ill::lossy:
        add(Level::warning,
            fmt::format("{} {} packets: {}", where, several ? "lose" : "loses", said),
            "look at errors and drops with `ethtool -S` at both ends; clean or replace cable and "
            "transceivers");
        return;
      case Ill::warned:
        add(Level::warning, fmt::format("{}: {}", where, said), remedy_for(said));
        return;
    }
  }

  const std::string& port_name(uint32_t host, size_t cable) const {
    const auto& ends = plan_.cables[cable].ends;
    return port(ends[ends[0].rank == host ? 0 : 1]).name;
  }

  std::string addresses_of(CableEnd end) const {
    return fmt::format("{} ({}) has {}", names_[end.rank], port(end).name,
                       fmt::join(port(end).addresses, ", "));
  }

  /// Two cables whose networks are right if one host's ends are exchanged.
  bool are_swapped(uint32_t host, const std::vector<size_t>& cables) const {
    if (cables.size() != 2) {
      return false;
    }
    std::array<std::array<CableEnd, 2>, 2> own_first{};
    for (size_t i = 0; i < 2; ++i) {
      const auto& ends = plan_.cables[cables[i]].ends;
      own_first[i] = ends[0].rank == host ? ends : std::array{ends[1], ends[0]};
    }
    return !networks_apart(port(own_first[0][0]), port(own_first[1][1])) &&
           !networks_apart(port(own_first[1][0]), port(own_first[0][1]));
  }

  void tell_networks(std::optional<uint32_t> host, const std::vector<size_t>& cables,
                     const std::string& where) {
    std::vector<std::string> ends;
    for (const size_t cable : cables) {
      ends.push_back(fmt::format("{}, {}", addresses_of(plan_.cables[cable].ends[0]),
                                 addresses_of(plan_.cables[cable].ends[1])));
    }
    const std::string text = fmt::format("{}", fmt::join(ends, "; "));
    if (host && are_swapped(*host, cables)) {
      const auto own = sides(*host, cables).first;
      add(Level::error,
          fmt::format("the cables of {} of {} are swapped: {}", listed(own), names_[*host], text),
          "exchange the two cables at that host, or the addresses of the two interfaces");
      return;
    }
    add(Level::error,
        fmt::format("{} {} ends in different networks: {}", where,
                    cables.size() > 1 ? "have" : "has", text),
        "give both ends of a cable addresses of one network, which no other cable has");
  }

  void tell_unheard(Level level, std::optional<uint32_t> host, const std::vector<size_t>& cables,
                    const std::string& where) {
    const bool of_ports = std::any_of(sheets_.begin(), sheets_.end(), [&](const auto& one) {
      return one.udp_port != sheets_.front().udp_port;
    });
    if (of_ports) {
      return;  // another finding says so
    }
    std::set<bool> keys;
    for (const size_t cable : cables) {
      for (const CableEnd end : plan_.cables[cable].ends) {
        keys.insert(sheets_[end.rank].has_key);
      }
    }
    const bool is_deaf = host && cases_[cables.front()].end.has_value();
    const std::string& said = cases_[cables.front()].said;
    const auto [own, theirs] = host ? sides(*host, cables) : decltype(sides(0, cables))();
    std::string what =
        is_deaf
            ? fmt::format(
                  "{} does not hear {} on {}, though it is heard there: its incoming UDP "
                  "is dropped",
                  names_[*host], listed(theirs), listed(own))
            : fmt::format("{} {} nothing: there is a link, but the hosts do not hear each other",
                          where, cables.size() > 1 ? "carry" : "carries");
    if (keys.size() > 1) {
      what += "; HA_NCCL_MESH_KEY_FILE is set at one end only";
    }
    const std::string port = fmt::format(
        "let UDP through on it, both ways, with port {} (HA_NCCL_MESH_PORT): look at nft "
        "list ruleset and iptables -S; HA_NCCL_MESH_KEY_FILE has to be the same",
        sheets_.front().udp_port);
    const bool cable_is_to_blame =
        !is_deaf && !said.empty() && said.find("UDP is not filtered") == std::string::npos;
    add(level, said.empty() || is_deaf ? what : what + ": " + said,
        cable_is_to_blame ? std::string(remedy_for(said)) : port);
  }

  void tell_mtu(uint32_t host, const std::vector<size_t>& cables, const std::string& ports,
                const std::vector<std::string>& theirs) {
    const auto& ends = plan_.cables[cables.front()].ends;
    const size_t own = ends[0].rank == host ? 0 : 1;
    add(Level::warning,
        fmt::format("the MTU differs: {} bytes at {}, {} at {}", port(ends[own]).mtu, ports,
                    port(ends[1 - own]).mtu, listed(theirs)),
        "set the same MTU at both ends of a cable, 9000 where the NICs allow it");
  }

  void tell_small_mtu(const std::vector<size_t>& cables) {
    std::vector<std::string> texts;
    for (const size_t cable : cables) {
      const auto& ends = plan_.cables[cable].ends;
      texts.push_back(fmt::format("{} and {} ({} bytes)", end_text(ends[0]), end_text(ends[1]),
                                  port(ends[0]).mtu));
    }
    if (!texts.empty()) {
      add(Level::warning,
          fmt::format("the MTU is small between {}: RoCE's packets get a quarter of their largest "
                      "size or less",
                      fmt::join(texts, ", ")),
          "ip link set DEVICE mtu 9000, on both hosts");
    }
  }

  /// With an address, so that somebody meant it to carry traffic, and no other end is known.
  void ports_without_cable() {
    std::set<std::pair<uint32_t, size_t>> used;
    for (const MeshCable& cable : plan_.cables) {
      for (const CableEnd end : cable.ends) {
        used.insert({end.rank, end.port});
      }
    }
    for (uint32_t rank = 0; rank < sheets_.size(); ++rank) {
      for (size_t i = 0; i < sheets_[rank].ports.size(); ++i) {
        const MeshPort& one = sheets_[rank].ports[i];
        if (one.in_mesh && !one.link && !one.addresses.empty() && !used.contains({rank, i})) {
          add(Level::error,
              fmt::format("{} ({}) of {} is down", one.name, fmt::join(one.addresses, ", "),
                          names_[rank]),
              fmt::format("check its cable and `ip link show {}`, or leave it out with "
                          "HA_NCCL_IFNAME",
                          one.name));
        }
      }
    }
  }

  /// Compared with the other cables, those that have nothing else.
  void slow_ones() {
    std::vector<PairResult> good;
    for (const auto& [number, pair] : tried_) {
      if (cases_[number].ill == Ill::nothing) {
        good.push_back(*pair);
        good.back().device = 0;
        good.back().seen_by = static_cast<uint32_t>(number);
      }
    }
    for (const Outlier& one : find_outliers(good)) {
      found_.push_back(finding_of(one, cable_text(one.pair->seen_by)));
    }
  }

  void add(Level level, std::string what, std::string remedy) {
    found_.push_back({level, std::move(what), std::move(remedy), {}});
  }

  const MeshPlan& plan_;
  const std::vector<MeshSheet>& sheets_;
  const std::vector<std::string>& names_;
  std::map<size_t, const PairResult*> tried_;  ///< by cable
  std::map<int64_t, size_t> mtus_;             ///< how many ends have it
  std::vector<Case> cases_;                    ///< by cable
  std::vector<Finding> found_;
};

}  // namespace

std::vector<Finding> judge_mesh(const MeshPlan& plan, const std::vector<MeshSheet>& sheets,
                                const std::vector<PairResult>& tried,
                                const std::vector<std::string>& names) {
  std::vector<Finding> found = CableJudge(plan, sheets, tried, names).run();
  judge_paths(plan, sheets, names, found);
  std::stable_sort(found.begin(), found.end(),
                   [](const Finding& a, const Finding& b) { return a.level < b.level; });
  return found;
}

}  // namespace nccl_ha::tools
