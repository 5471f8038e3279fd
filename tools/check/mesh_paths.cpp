#include "tools/check/mesh_paths.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "relay/routes.h"
#include "relay/shape.h"

namespace nccl_ha::tools {
namespace {

using Pair = std::pair<uint32_t, uint32_t>;  ///< of ranks, the lower one first

constexpr size_t pairs_told = 4;

/// The pairs that reach each other, over a cable or over others.
class Reach {
 public:
  /// Hosts that take no part in relaying count, unless `all_take_part`.
  Reach(const MeshPlan& plan, const std::vector<MeshSheet>& sheets, bool all_take_part,
        std::optional<size_t> relays_max = std::nullopt)
      : plan_(plan), sheets_(sheets), all_take_part_(all_take_part), relays_max_(relays_max) {
    std::vector<relay::LinkState> states = states_of(plan.topology);
    for (relay::LinkState& state : states) {
      state.relays |= all_take_part && is_rank(state.origin);
    }
    topology_ = relay::Topology::make(std::move(states));
    for (uint32_t one = 0; one < sheets.size(); ++one) {
      if (!plan.nodes[one]) {
        continue;
      }
      relay::RouteOptions options;
      options.relays_max = relays_max_.value_or(sheets[one].relays_max);
      const auto table = relay::RouteTable::make(topology_, sheets[one].self, options);
      for (uint32_t other = one + 1; other < sheets.size(); ++other) {
        if (plan.nodes[other] && *plan.nodes[other] != *plan.nodes[one]) {
          sort_in({one, other}, table);
        }
      }
    }
  }

  const std::vector<Pair>& apart() const { return apart_; }
  const std::vector<Pair>& relayed() const { return relayed_; }

 private:
  bool is_rank(relay::NodeId node) const {
    return std::any_of(sheets_.begin(), sheets_.end(),
                       [&](const MeshSheet& one) { return one.self == node; });
  }
  bool takes_part(uint32_t rank) const {
    return all_take_part_ || sheets_[rank].takes_no_part.empty();
  }
  void sort_in(Pair pair, const relay::RouteTable& table) {
    if (plan_.topology.adjacent(*plan_.nodes[pair.first], *plan_.nodes[pair.second])) {
      return;
    }
    const relay::RouteEntry* entry = table.find(sheets_[pair.second].self);
    const bool reached = takes_part(pair.first) && takes_part(pair.second) && entry != nullptr &&
                         !entry->routes.empty();
    (reached ? relayed_ : apart_).push_back(pair);
  }

  const MeshPlan& plan_;
  const std::vector<MeshSheet>& sheets_;
  bool all_take_part_;
  std::optional<size_t> relays_max_;
  relay::Topology topology_;
  std::vector<Pair> apart_;
  std::vector<Pair> relayed_;
};

class PathJudge {
 public:
  PathJudge(const MeshPlan& plan, const std::vector<MeshSheet>& sheets,
            const std::vector<std::string>& names, std::vector<Finding>& found)
      : plan_(plan), sheets_(sheets), names_(names), found_(found) {}

  void run() {
    const bool cable_is_lost = std::any_of(
        found_.begin(), found_.end(), [](const Finding& one) { return one.level == Level::error; });
    bool known = cable_is_lost;
    for (uint32_t rank = 0; rank < sheets_.size(); ++rank) {
      if (!sheets_[rank].error.empty()) {
        known = true;
        add(Level::error,
            fmt::format("{} cannot look for its neighbours: {}", names_[rank], sheets_[rank].error),
            "mend that first: a job does not find the neighbours either; UDP on lo must not be "
            "filtered");
      }
      known |= sheets_[rank].udp_port != sheets_.front().udp_port;
    }
    const std::vector<Pair> now = Reach(plan_, sheets_, false).apart();
    const std::vector<Pair> if_all = Reach(plan_, sheets_, true).apart();
    const std::vector<Pair> if_far =
        Reach(plan_, sheets_, true, plan_.topology.nodes().size()).apart();
    if (now.size() > if_all.size()) {
      not_relaying(now, if_all);
    }
    if (if_all.size() > if_far.size()) {
      too_far(if_all, if_far);
    }
    const bool doubled = !known && to_one_host(!if_far.empty());
    if (!known && !doubled) {
      if_far.empty() ? shape() : apart();
    }
  }

 private:
  void add(Level level, std::string what, std::string remedy) {
    found_.push_back({level, std::move(what), std::move(remedy)});
  }

  static std::vector<Pair> without(const std::vector<Pair>& all, const std::vector<Pair>& some) {
    std::vector<Pair> rest;
    std::copy_if(all.begin(), all.end(), std::back_inserter(rest), [&](const Pair& one) {
      return std::find(some.begin(), some.end(), one) == some.end();
    });
    return rest;
  }

  std::string text(const std::vector<Pair>& pairs) const {
    std::vector<std::string> texts;
    for (size_t i = 0; i < std::min(pairs.size(), pairs_told); ++i) {
      texts.push_back(fmt::format("{} and {}", names_[pairs[i].first], names_[pairs[i].second]));
    }
    if (pairs.size() > pairs_told) {
      texts.push_back(fmt::format("{} more pairs", pairs.size() - pairs_told));
    }
    return fmt::format("{}", fmt::join(texts, ", "));
  }

  void not_relaying(const std::vector<Pair>& now, const std::vector<Pair>& if_all) {
    std::map<std::string, std::vector<std::string>> by_setting;
    for (uint32_t rank = 0; rank < sheets_.size(); ++rank) {
      if (!sheets_[rank].takes_no_part.empty()) {
        by_setting[sheets_[rank].takes_no_part].push_back(names_[rank]);
      }
    }
    std::vector<std::string> hosts;
    for (const auto& [setting, names] : by_setting) {
      hosts.push_back(fmt::format("{} on {}", setting, fmt::join(names, ", ")));
    }
    const std::string who =
        hosts.empty() ? "a relay node does not relay" : fmt::format("{}", fmt::join(hosts, "; "));
    add(Level::error,
        fmt::format("{}: no cable joins these hosts, and no relay does: {}", who,
                    text(without(now, if_all))),
        hosts.empty() ? "look at `nccl-ha relay status` on the hosts between"
                      : "remove the setting: a host that has it neither relays for others nor uses "
                        "relays");
  }

  void too_far(const std::vector<Pair>& if_all, const std::vector<Pair>& if_far) {
    add(Level::error,
        fmt::format("more hosts lie between than HA_NCCL_MESH_MAX_HOPS={} allows: {}",
                    sheets_.front().relays_max, text(without(if_all, if_far))),
        "raise HA_NCCL_MESH_MAX_HOPS on all hosts, or add a cable");
  }

  /// The ports of one host that lead to another one.
  std::set<std::string> ports_to(uint32_t rank, uint32_t other) const {
    std::set<std::string> ports;
    for (const MeshCable& cable : plan_.cables) {
      for (size_t end = 0; cable.heard && end < 2; ++end) {
        if (cable.ends[end].rank == rank && cable.ends[1 - end].rank == other) {
          const MeshPort& port = sheets_[rank].ports[cable.ends[end].port];
          ports.insert(port.nic.empty() ? port.name : port.nic_port);
        }
      }
    }
    return ports;
  }

  /// All ports of a host lead to the same one, where they should lead to several.
  bool to_one_host(bool some_apart) {
    std::vector<std::string> texts;
    for (uint32_t rank = 0; rank < sheets_.size(); ++rank) {
      for (uint32_t other = 0; other < sheets_.size(); ++other) {
        const std::set<std::string> ports = ports_to(rank, other);
        const bool own_only = plan_.nodes[rank] && plan_.topology.degree(*plan_.nodes[rank]) == 1;
        const bool told = other < rank && ports_to(other, rank).size() > 1 &&
                          plan_.topology.degree(*plan_.nodes[other]) == 1;
        if (ports.size() > 1 && own_only && !told && (some_apart || is_meant_otherwise(rank))) {
          texts.push_back(fmt::format("ports {} of {} {} lead to {}", fmt::join(ports, " and "),
                                      names_[rank], ports.size() == 2 ? "both" : "all",
                                      names_[other]));
        }
      }
    }
    if (texts.empty()) {
      return false;
    }
    add(some_apart ? Level::error : Level::warning,
        fmt::format("{}, though there are {} hosts{}", fmt::join(texts, ", "), sheets_.size(),
                    some_apart ? ": no cable joins " + groups() : ""),
        "in a ring each host has a cable to the one before and one to the one behind it: move one "
        "of these");
    return true;
  }

  bool is_meant_otherwise(uint32_t rank) const {
    const auto& ports = sheets_[rank].ports;
    return sheets_[rank].expected == "ring" ||
           std::any_of(ports.begin(), ports.end(),
                       [](const auto& one) { return !one.nic.empty(); });
  }

  /// The hosts that cables join, group by group.
  std::string groups() const {
    std::map<uint32_t, std::vector<std::string>> by_first;
    for (uint32_t rank = 0; rank < sheets_.size(); ++rank) {
      if (plan_.nodes[rank]) {
        by_first[plan_.topology.component(*plan_.nodes[rank]).front()].push_back(names_[rank]);
      }
    }
    std::vector<std::string> texts;
    for (const auto& [first, names] : by_first) {
      texts.push_back(fmt::format("{}", fmt::join(names, ", ")));
    }
    return fmt::format("{}", fmt::join(texts, " with "));
  }

  void apart() {
    std::vector<std::string> deaf;
    for (uint32_t rank = 0; rank < sheets_.size(); ++rank) {
      std::vector<std::string> ports;
      for (const MeshPort& port : sheets_[rank].ports) {
        if (port.in_mesh && port.link) {
          ports.push_back(port.name);
        }
      }
      if (plan_.nodes[rank] && plan_.topology.degree(*plan_.nodes[rank]) == 0 && !ports.empty()) {
        deaf.push_back(fmt::format("{} hears no neighbour on {}, though there is a link",
                                   names_[rank], fmt::join(ports, ", ")));
      }
    }
    if (!deaf.empty()) {
      add(Level::error, fmt::format("no cable joins {}: {}", groups(), fmt::join(deaf, "; ")),
          fmt::format("let UDP through there, both ways, with port {} (HA_NCCL_MESH_PORT): look at "
                      "nft list ruleset and iptables -S; HA_NCCL_MESH_KEY_FILE has to be the same",
                      sheets_.front().udp_port));
      return;
    }
    add(Level::error, fmt::format("no cable joins {}", groups()),
        "plug in a cable between them, or look at HA_NCCL_MESH_IFNAME");
  }

  void shape() {
    for (uint32_t rank = 0; rank < sheets_.size(); ++rank) {
      const auto expected = relay::parse_shape(sheets_[rank].expected);
      if (!expected || !*expected || !plan_.nodes[rank]) {
        continue;
      }
      const auto wrong = relay::findings(plan_.topology, *plan_.nodes[rank], **expected);
      if (!wrong.empty()) {
        add(Level::warning, fmt::format("{}", fmt::join(wrong, "; ")),
            "plug in the cable that is missing, or correct HA_NCCL_MESH_TOPOLOGY");
      }
      return;
    }
  }

  const MeshPlan& plan_;
  const std::vector<MeshSheet>& sheets_;
  const std::vector<std::string>& names_;
  std::vector<Finding>& found_;
};

}  // namespace

void judge_paths(const MeshPlan& plan, const std::vector<MeshSheet>& sheets,
                 const std::vector<std::string>& names, std::vector<Finding>& found) {
  PathJudge(plan, sheets, names, found).run();
}

MeshSummary summary_of(const MeshPlan& plan, const std::vector<MeshSheet>& sheets) {
  MeshSummary summary;
  summary.hosts = sheets.size();
  summary.cables = static_cast<size_t>(std::count_if(
      plan.cables.begin(), plan.cables.end(), [](const MeshCable& one) { return one.heard; }));
  summary.pairs_relayed = Reach(plan, sheets, false).relayed().size();
  const auto first = std::find_if(plan.nodes.begin(), plan.nodes.end(),
                                  [](const auto& node) { return node.has_value(); });
  if (first != plan.nodes.end()) {
    summary.shape = relay::to_text(relay::shape_of(plan.topology, **first));
    summary.hosts = plan.topology.component(**first).size();
  }
  const auto with_node =
      static_cast<size_t>(std::count_if(sheets.begin(), sheets.end(), [](const MeshSheet& one) {
        return one.origin == MeshSight::Origin::relay_node;
      }));
  summary.relays = with_node == sheets.size() ? "the relay nodes"
                   : with_node == 0           ? "the processes of a job (HA_NCCL_MESH_RELAY=auto)"
                                    : "relay nodes, and where none runs the processes of a job";
  return summary;
}

}  // namespace nccl_ha::tools
