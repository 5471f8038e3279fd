#include "relay/mesh_routes.h"

#include <algorithm>
#include <span>

#include "relay/shape.h"
#include "relay/topology_file.h"

namespace nccl_ha::relay {
namespace {

/// How many hosts two ways have in common.
size_t common(const Route& route, const std::vector<NodeId>& relays) {
  return static_cast<size_t>(std::count_if(
      route.nodes.begin() + 1, route.nodes.end() - 1,
      [&](NodeId node) { return std::find(relays.begin(), relays.end(), node) != relays.end(); }));
}

std::vector<NodeId> hosts_between(const Route& route) {
  return {route.nodes.begin() + 1, route.nodes.end() - 1};
}

}  // namespace

std::optional<NextHop> MeshRoutes::find(NodeId neighbour) const {
  const auto view = board_->read();
  if (!view) {
    return std::nullopt;
  }
  std::vector<const Neighbour*> cables;
  for (const Neighbour& one : view->neighbours) {
    if (one.node == neighbour) {
      cables.push_back(&one);
    }
  }
  if (cables.empty()) {
    return std::nullopt;
  }
  NextHop found;
  const Neighbour& one = *cables[turns_.fetch_add(1, std::memory_order_relaxed) % cables.size()];
  found.relay = one.address;
  found.key = one.key;
  found.relay.set_port(port_);
  return found;
}

bool MeshRoutes::is_at(NodeId neighbour, const IpAddress& from) const {
  const auto view = board_->read();
  const auto node = view ? view->topology.find(neighbour) : std::nullopt;
  const auto own =
      node ? std::span(view->topology.nodes()[*node].addresses) : std::span<const IpAddress>();
  const bool told =
      std::any_of(own.begin(), own.end(), [&](const IpAddress& one) { return one.same_as(from); });
  return view &&
         std::any_of(view->neighbours.begin(), view->neighbours.end(), [&](const Neighbour& one) {
           return one.node == neighbour && (told || one.speaks_from(from)) &&
                  (!from.link_local() || from.scope_id == one.interface);
         });
}

bool MeshRoutes::lives(NodeId neighbour, uint32_t incarnation) const {
  const auto view = board_->read();
  return view &&
         std::any_of(view->neighbours.begin(), view->neighbours.end(), [&](const Neighbour& one) {
           // A topology file says nothing of lives.
           return one.node == neighbour && (one.incarnation == incarnation || one.incarnation == 0);
         });
}

std::optional<NodeId> MeshRoutes::self() const {
  const auto view = board_->read();
  return view ? std::optional(view->self) : std::nullopt;
}

std::string MeshRoutes::name_of(NodeId node) const {
  const auto view = board_->read();
  const auto found = view ? view->topology.find(node) : std::nullopt;
  return found ? label(view->topology.nodes()[*found]) : text(node);
}

bool MeshRoutes::any() const {
  const auto view = board_->read();
  return view && !view->rests && !view->looks && view->topology.nodes().size() > 2;
}

/// mutex_ is held.
void MeshRoutes::look() {
  const auto view = board_->read();
  if (view && view != view_) {
    view_ = view;
    table_ = RouteTable::make(view->topology, view->self, options_);
  }
}

MeshRoutes::Ways& MeshRoutes::ways_of(const Key& key) {
  const auto [found, is_new] = ways_.try_emplace(key);
  if (is_new) {
    oldest_.push_back(key);
    if (oldest_.size() > connections_max) {
      ways_.erase(oldest_.front());
      oldest_.pop_front();
    }
  }
  return found->second;
}

const Route* MeshRoutes::choose(const RouteEntry& entry, const Ways& ways, size_t number) {
  const Taken& own = ways[number];
  std::vector<const Route*> free;
  std::vector<const Route*> refused;
  size_t sharing = 0;
  for (size_t i = 0; i < entry.routes.size(); ++i) {
    const Route& route = entry.routes[i];
    if (route.relays() == 0) {
      continue;  // whoever asks wants a way that is none of the cables
    }
    if (std::ranges::find(own.refused, hosts_between(route)) != own.refused.end()) {
      refused.push_back(&route);
      continue;
    }
    const NodeId first = route.nodes[1];
    if (!own.relays.empty() && own.relays.front() == first) {
      return &route;
    }
    const bool taken = std::any_of(ways.begin(), ways.end(), [&](const Taken& way) {
      return &way != &own && !way.relays.empty() && way.relays.front() == first;
    });
    if (!taken) {
      free.push_back(&route);
      sharing += i < entry.sharing ? 1 : 0;
    }
  }
  if (free.empty()) {
    const auto oldest = std::ranges::min_element(refused, {}, [&](const Route* route) {
      return std::ranges::find(own.refused, hosts_between(*route)) - own.refused.begin();
    });
    return oldest == refused.end() ? nullptr : *oldest;
  }
  const bool first_of_all =
      std::all_of(ways.begin(), ways.end(), [](const Taken& way) { return way.relays.empty(); });
  if (first_of_all && sharing > 0 && sharing == entry.sharing) {
    return free[rotations_[entry.destination].next(shares(entry))];
  }
  return *std::min_element(free.begin(), free.end(), [&](const Route* one, const Route* other) {
    const auto in_common = [&](const Route& route) {
      size_t sum = 0;
      for (const Taken& way : ways) {
        sum += common(route, way.relays);
      }
      return sum;
    };
    return in_common(*one) < in_common(*other);
  });
}

std::vector<NodeId> MeshRoutes::relays_to(NodeId destination, const Way& way) {
  const std::lock_guard lock(mutex_);
  look();
  const RouteEntry* entry = table_.find(destination);
  if (entry == nullptr || way.number >= ways_max) {
    return {};
  }
  Ways& ways = ways_of({way.connection, destination});
  Taken& own = ways[way.number];
  std::erase_if(own.refused, [&](const std::vector<NodeId>& relays) {
    return std::ranges::find(entry->routes, relays, hosts_between) == entry->routes.end();
  });
  const Route* chosen = choose(*entry, ways, way.number);
  if (chosen == nullptr) {
    return {};
  }
  own.relays = hosts_between(*chosen);
  std::erase(own.refused, own.relays);  // it is the newest one if it is refused again
  return own.relays;
}

void MeshRoutes::refused(NodeId destination, const Way& way) {
  const std::lock_guard lock(mutex_);
  const auto known = ways_.find({way.connection, destination});
  if (known != ways_.end() && way.number < ways_max) {
    Taken& own = known->second[way.number];
    if (!own.relays.empty() && std::ranges::find(own.refused, own.relays) == own.refused.end()) {
      own.refused.push_back(own.relays);
    }
  }
}

const TopologyNode* MeshRoutes::host_at(const std::vector<IpAddress>& addresses) const {
  const auto host = view_ ? find_host(view_->topology, addresses) : std::nullopt;
  return host ? &view_->topology.nodes()[*host] : nullptr;
}

size_t MeshRoutes::ways(const std::vector<IpAddress>& addresses) {
  const std::lock_guard lock(mutex_);
  look();
  const TopologyNode* host = host_at(addresses);
  const RouteEntry* entry = host != nullptr ? table_.find(host->id) : nullptr;
  if (entry == nullptr || entry->routes.empty() || entry->direct()) {
    return 1;
  }
  std::vector<NodeId> firsts;
  for (size_t i = 0; i < entry->sharing; ++i) {
    const NodeId first = entry->routes[i].nodes[1];
    if (std::find(firsts.begin(), firsts.end(), first) == firsts.end()) {
      firsts.push_back(first);
    }
  }
  return std::clamp<size_t>(firsts.size(), 1, ways_max);
}

MeshRoutes::Reach MeshRoutes::reach(const std::vector<IpAddress>& addresses) {
  const std::lock_guard lock(mutex_);
  look();
  const TopologyNode* host = host_at(addresses);
  if (host == nullptr) {
    return Reach::unknown;
  }
  if (host->id == view_->self) {
    return Reach::itself;
  }
  const RouteEntry* entry = table_.find(host->id);
  if (entry == nullptr || entry->routes.empty()) {
    return Reach::none;
  }
  return entry->direct() ? Reach::cable : Reach::relays;
}

}  // namespace nccl_ha::relay
