#include "tools/check/mesh_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace nccl_ha::tools {
namespace {

constexpr size_t hosts_least = 3;  ///< two hosts are compared device by device

bool is_half_of(const MeshPort& one, const MeshPort& other) {
  return !one.nic.empty() && one.nic == other.nic && one.nic_port == other.nic_port;
}

class Planner {
 public:
  explicit Planner(const std::vector<MeshSheet>& sheets) : sheets_(sheets) {}

  MeshPlan run() {
    merge_states();
    heard_cables();
    one_way_cables();
    cables_by_network();
    other_halves();
    left_over();
    std::stable_sort(plan_.cables.begin(), plan_.cables.end(),
                     [](const MeshCable& a, const MeshCable& b) {
                       return std::pair(a.ends[0].rank, a.ends[1].rank) <
                              std::pair(b.ends[0].rank, b.ends[1].rank);
                     });
    plan_.is_mesh = is_mesh();
    arrange_rounds();
    return std::move(plan_);
  }

 private:
  const MeshPort& port(CableEnd end) const { return sheets_[end.rank].ports[end.port]; }

  /// Each rank's own word counts for it, and any rank's for hosts that take no part in the check.
  void merge_states() {
    std::vector<relay::LinkState> states;
    for (const MeshSheet& sheet : sheets_) {
      for (relay::LinkState state : sheet.states) {
        if (state.origin == sheet.self) {
          const bool by_processes = sheet.origin == MeshSight::Origin::own;
          state.relays = by_processes ? sheet.takes_no_part.empty() : state.relays;
          states.push_back(std::move(state));
        }
      }
    }
    for (const MeshSheet& sheet : sheets_) {
      states.insert(states.end(), sheet.states.begin(), sheet.states.end());
    }
    plan_.topology = relay::Topology::make(std::move(states));
    for (uint32_t rank = 0; rank < sheets_.size(); ++rank) {
      plan_.nodes.push_back(plan_.topology.find(sheets_[rank].self));
      if (plan_.nodes.back()) {
        rank_of_.emplace(*plan_.nodes.back(), rank);
      }
    }
  }

  std::optional<CableEnd> end_at(uint32_t rank, uint32_t ifindex) const {
    const auto& ports = sheets_[rank].ports;
    const auto found = std::find_if(ports.begin(), ports.end(),
                                    [&](const MeshPort& one) { return one.ifindex == ifindex; });
    if (found == ports.end()) {
      return std::nullopt;
    }
    return CableEnd{rank, static_cast<size_t>(found - ports.begin())};
  }

  void add(CableEnd one, CableEnd other, bool heard, bool other_is_deaf = false) {
    const bool turned = other.rank < one.rank;
    MeshCable cable;
    cable.ends = turned ? std::array{other, one} : std::array{one, other};
    cable.heard = heard;
    if (other_is_deaf) {
      cable.deaf = turned ? 0 : 1;
    }
    used_.insert({one.rank, one.port});
    used_.insert({other.rank, other.port});
    plan_.cables.push_back(cable);
  }
  bool is_free(CableEnd end) const { return !used_.contains({end.rank, end.port}); }

  bool from_file() const {
    return std::any_of(sheets_.begin(), sheets_.end(),
                       [](const MeshSheet& one) { return one.origin == MeshSight::Origin::file; });
  }

  void heard_cables() {
    for (const auto& [node, rank] : rank_of_) {
      std::map<uint32_t, size_t> ends;
      for (const relay::TopologyLink& link : plan_.topology.links(node)) {
        most_heard_ = std::max(most_heard_, ++ends[link.interface]);
        const auto peer = rank_of_.find(link.node);
        if (from_file() || peer == rank_of_.end() || peer->second < rank) {
          continue;
        }
        const auto own = end_at(rank, link.interface);
        const auto theirs = end_at(peer->second, link.peer_interface);
        if (own && theirs) {
          add(*own, *theirs, true);
        }
      }
    }
  }

  void one_way_cables() {
    for (uint32_t rank = 0; rank < sheets_.size(); ++rank) {
      for (const OneWay& one : sheets_[rank].one_way) {
        const auto node = plan_.topology.find(one.node);
        const auto peer = node ? rank_of_.find(*node) : rank_of_.end();
        const auto own = end_at(rank, one.interface);
        const auto theirs =
            peer == rank_of_.end() ? std::nullopt : end_at(peer->second, one.peer_interface);
        if (own && theirs && is_free(*own) && is_free(*theirs)) {
          add(*own, *theirs, false, true);
        }
      }
    }
  }

  void cables_by_network() {
    std::map<std::string, std::vector<CableEnd>> members;
    for (uint32_t rank = 0; rank < sheets_.size(); ++rank) {
      for (size_t i = 0; i < sheets_[rank].ports.size(); ++i) {
        for (const std::string& network : sheets_[rank].ports[i].networks) {
          members[network].push_back({rank, i});
        }
      }
    }
    for (const auto& [network, ends] : members) {
      std::set<uint32_t> hosts;
      bool in_mesh = false;
      for (const CableEnd& end : ends) {
        hosts.insert(end.rank);
        in_mesh |= port(end).in_mesh;
      }
      most_in_network_ = std::max(most_in_network_, in_mesh ? hosts.size() : 0);
      if (ends.size() == 2 && hosts.size() == 2 && in_mesh && is_free(ends[0]) &&
          is_free(ends[1])) {
        add(ends[0], ends[1], from_file() && adjacent(ends[0].rank, ends[1].rank));
      }
    }
  }

  bool adjacent(uint32_t one, uint32_t other) const {
    return plan_.nodes[one] && plan_.nodes[other] &&
           plan_.topology.adjacent(*plan_.nodes[one], *plan_.nodes[other]);
  }

  /// Where one half of a port has a neighbour, the other halves have the same one.
  void other_halves() {
    const std::vector<MeshCable> known = plan_.cables;
    for (const MeshCable& cable : known) {
      std::array<std::vector<CableEnd>, 2> halves;
      for (size_t end = 0; end < 2; ++end) {
        const uint32_t rank = cable.ends[end].rank;
        for (size_t i = 0; i < sheets_[rank].ports.size(); ++i) {
          const CableEnd other{rank, i};
          if (is_free(other) && is_half_of(port(other), port(cable.ends[end]))) {
            halves[end].push_back(other);
          }
        }
      }
      if (halves[0].size() == 1 && halves[1].size() == 1) {
        add(halves[0].front(), halves[1].front(), false);
      }
    }
  }

  /// Two hosts that have a port with a link on which they hear nobody, and no network that says
  /// where it leads.
  void left_over() {
    std::map<std::pair<uint32_t, std::string>, std::vector<CableEnd>> ports;
    for (uint32_t rank = 0; rank < sheets_.size(); ++rank) {
      for (size_t i = 0; i < sheets_[rank].ports.size(); ++i) {
        const MeshPort& one = sheets_[rank].ports[i];
        if (is_free({rank, i}) && one.link && one.in_mesh && one.networks.empty()) {
          ports[{rank, one.nic.empty() ? one.name : one.nic + one.nic_port}].push_back({rank, i});
        }
      }
    }
    if (ports.size() != 2) {
      return;
    }
    const auto& [first, one] = *ports.begin();
    const auto& [second, other] = *ports.rbegin();
    for (size_t i = 0; first.first != second.first && i < std::min(one.size(), other.size()); ++i) {
      add(one[i], other[i], false);
    }
  }

  bool is_mesh() const {
    size_t hosts = rank_of_.size();
    bool in_middle = false;  // a host with cables to two others, on two interfaces
    for (const auto& [node, rank] : rank_of_) {
      hosts = std::max(hosts, plan_.topology.component(node).size());
      in_middle |= plan_.topology.degree(node) > 1;
    }
    return std::max(hosts, sheets_.size()) >= hosts_least && !plan_.cables.empty() &&
           most_heard_ <= 1 && (most_in_network_ < hosts_least || in_middle);
  }

  void arrange_rounds() {
    std::vector<std::set<uint32_t>> busy;
    for (size_t i = 0; i < plan_.cables.size(); ++i) {
      const auto& ends = plan_.cables[i].ends;
      const bool usable = std::all_of(ends.begin(), ends.end(), [&](CableEnd end) {
        return port(end).is_device && port(end).link && port(end).addressed;
      });
      if (!usable || networks_apart(port(ends[0]), port(ends[1]))) {
        continue;
      }
      size_t round = 0;
      while (round < busy.size() &&
             (busy[round].contains(ends[0].rank) || busy[round].contains(ends[1].rank))) {
        ++round;
      }
      busy.resize(std::max(busy.size(), round + 1));
      plan_.rounds.resize(busy.size());
      busy[round].insert({ends[0].rank, ends[1].rank});
      plan_.rounds[round].push_back(i);
    }
  }

  const std::vector<MeshSheet>& sheets_;
  MeshPlan plan_;
  std::map<uint32_t, uint32_t> rank_of_;        ///< by node; of several ranks the first
  std::set<std::pair<uint32_t, size_t>> used_;  ///< ranks and ports that have a cable
  size_t most_heard_ = 0;                       ///< neighbours on one interface
  size_t most_in_network_ = 0;                  ///< hosts
};

}  // namespace

bool networks_apart(const MeshPort& one, const MeshPort& other) {
  const bool common =
      std::any_of(one.networks.begin(), one.networks.end(), [&](const std::string& network) {
        return std::find(other.networks.begin(), other.networks.end(), network) !=
               other.networks.end();
      });
  return !common && !one.networks.empty() && !other.networks.empty();
}

std::string cable_name(const MeshCable& cable, const std::vector<MeshSheet>& sheets) {
  const auto name = [&](CableEnd end) { return sheets[end.rank].ports[end.port].name; };
  return name(cable.ends[0]) + "/" + name(cable.ends[1]);
}

MeshPlan plan_mesh(const std::vector<MeshSheet>& sheets) { return Planner(sheets).run(); }

}  // namespace nccl_ha::tools
