// How a process reaches its peers, and what it says where it does not.
#include <fmt/format.h>

#include <algorithm>

#include "relay/discovery_actor.h"
#include "relay/mesh_client.h"
#include "relay/process_mesh.h"

namespace nccl_ha::relay {
namespace {

/// A peer that discovery has not heard of by then is no part of the mesh.
constexpr Duration patience_max = std::chrono::seconds(10);

}  // namespace

bool ProcessMesh::shares_subnet(const std::vector<IpAddress>& addresses) const {
  return std::any_of(own_.begin(), own_.end(), [&](const fabric::NetInterface& one) {
    return std::any_of(one.addresses.begin(), one.addresses.end(), [&](const IpAddress& mine) {
      // Of link-local networks each cable has the same one.
      return !mine.link_local() &&
             std::any_of(addresses.begin(), addresses.end(),
                         [&](const IpAddress& theirs) { return mine.same_subnet(theirs); });
    });
  });
}

/// A cable may lead there that nobody has been heard on yet.
bool ProcessMesh::may_be_near(const std::vector<IpAddress>& addresses) const {
  const auto alike = [](const IpAddress& one) { return one.link_local(); };
  return shares_subnet(addresses) ||
         (std::any_of(addresses.begin(), addresses.end(), alike) &&
          std::any_of(own_.begin(), own_.end(), [&](const fabric::NetInterface& one) {
            return std::any_of(one.addresses.begin(), one.addresses.end(), alike);
          }));
}

ProcessMesh::Reach ProcessMesh::reach(const std::vector<IpAddress>& addresses, Instant now,
                                      bool waits) const {
  if (!takes_part()) {
    return Reach::cable;
  }
  const auto known = routes_->reach(addresses);
  const auto view = automatic_ ? board_->read() : nullptr;
  const bool looks =
      automatic_ && (view == nullptr || view->looks) && now - began_ < FirstTold::patience;
  if (known == MeshRoutes::Reach::cable || known == MeshRoutes::Reach::itself) {
    // A connection that begins before there is a mesh has no other way behind its cable.
    return looks && known == MeshRoutes::Reach::cable ? Reach::unknown : Reach::cable;
  }
  if (automatic_ && known != MeshRoutes::Reach::relays) {
    return looks && !is_this_host(addresses) ? Reach::unknown : reach_by_itself(addresses);
  }
  const bool near = shares_subnet(addresses);
  if (view != nullptr && view->crowded && near) {
    return Reach::cable;  // a switch has more hosts than a host hears
  }
  // Others may have told of the peer before its own cable was heard.
  if (known != MeshRoutes::Reach::relays || (near && now - began_ < patience(addresses, now))) {
    return Reach::unknown;
  }
  if (waits && !fixed_ && may_be_near(addresses) && search_.told.is_news(addresses, now)) {
    return Reach::unknown;
  }
  search_.found.store(true, std::memory_order_release);
  return Reach::relays;
}

/// Nobody has told of a way, which need not mean that there is none: where a switch is, nobody
/// tells.  Where no address leads there, this host asks.
ProcessMesh::Reach ProcessMesh::reach_by_itself(const std::vector<IpAddress>& addresses) const {
  if (is_this_host(addresses) || shares_subnet(addresses) || routed_.any(own_, addresses)) {
    return Reach::cable;
  }
  seek();
  return Reach::unknown;
}

bool ProcessMesh::out_of_reach(const std::vector<IpAddress>& addresses) const {
  return !own_.empty() && !is_this_host(addresses) && !shares_subnet(addresses) &&
         !routed_.any(own_, addresses);
}

void ProcessMesh::seek() const {
  if (!search_.seeks.exchange(true, std::memory_order_acq_rel)) {
    search_.since.store(SteadyClock().now(), std::memory_order_release);
    say_need(true);
  }
}

void ProcessMesh::give_up() const {
  if (search_.seeks.load(std::memory_order_acquire) &&
      !search_.found.load(std::memory_order_acquire)) {
    say_need(false);
  }
}

void ProcessMesh::say_need(bool needs) const {
  const std::lock_guard lock(node_mutex_);
  if (worker_ != nullptr && discovery_) {
    worker_->post({*discovery_, DiscoveryActor::need, needs ? 1U : 0U});
  } else if (worker_ != nullptr && client_) {
    worker_->post({*client_, MeshClient::need, needs ? 1U : 0U});
  }
}

bool ProcessMesh::is_this_host(const std::vector<IpAddress>& addresses) const {
  return std::any_of(own_.begin(), own_.end(), [&](const fabric::NetInterface& one) {
    return std::any_of(one.addresses.begin(), one.addresses.end(), [&](const IpAddress& mine) {
      return std::any_of(addresses.begin(), addresses.end(),
                         [&](const IpAddress& theirs) { return mine.same_as(theirs); });
    });
  });
}

bool ProcessMesh::is_management(const sockaddr* own) const {
  return automatic_ && own->sa_family != AF_UNSPEC && !own_.empty() &&
         !fabric::find_interface(own_, own);
}

Duration ProcessMesh::patience(const std::vector<IpAddress>& addresses, Instant now) const {
  if (shares_subnet(addresses)) {
    return std::chrono::milliseconds(2 * config_.mesh_hello_ms);
  }
  const auto most =
      std::min<Duration>(patience_max, std::chrono::milliseconds(config_.connect_timeout_ms / 2));
  const Instant since = search_.since.load(std::memory_order_acquire);
  // Whoever was not found in that time need not be waited for by each connection.
  return automatic_ && since != Instant{} ? std::max(since + most - now, Duration(0)) : most;
}

bool ProcessMesh::hears(const sockaddr* peer) const {
  const auto view = board_->read();
  const auto wanted = IpAddress::from_sockaddr(peer);
  return view && wanted &&
         std::any_of(view->neighbours.begin(), view->neighbours.end(), [&](const Neighbour& one) {
           const auto heard = IpAddress::from_sockaddr(one.address.get());
           return heard && heard->family == wanted->family && heard->bytes == wanted->bytes &&
                  one.interface == wanted->scope_id;
         });
}

/// What discovery knows: hosts by name, and what is said of those that do not relay.
std::string ProcessMesh::heard() const {
  if (!takes_part()) {
    return config_.mesh_relay == "off" || !config_.mesh_enable_relay
               ? "discovery is off (HA_NCCL_MESH_RELAY, HA_NCCL_MESH_ENABLE_RELAY)"
           : job_->current()->size() == 0
               ? "discovery does not run, as this NCCL (older than 2.28) does not tell plugins "
                 "which "
                 "hosts are of one job: HA_NCCL_MESH_RELAY=inline lets everybody on the cables join"
               : "discovery does not run";
  }
  const auto view = board_->read();
  const std::string port = fmt::format("UDP port {} (HA_NCCL_MESH_PORT)", config_.mesh_port);
  if (view == nullptr) {
    return fmt::format("another process of this host has {} and does not tell what it knows", port);
  }
  std::string names;
  for (const TopologyNode& host : view->topology.nodes()) {
    if (host.id != view->self) {
      names += fmt::format("{}{}{}", names.empty() ? "" : ", ",
                           host.name.empty() ? text(host.id) : host.name,
                           host.relays ? "" : " (does not relay)");
    }
  }
  std::string cables;
  for (const fabric::NetInterface& one : own_) {
    cables += fmt::format("{}{}", cables.empty() ? "" : ", ", one.name);
  }
  return names.empty() ? fmt::format("discovery over {} hears no host on {}", port, cables)
                       : fmt::format("discovery knows {}", names);
}

std::string ProcessMesh::why_no_way(const std::vector<IpAddress>& addresses) const {
  std::string theirs;
  for (const IpAddress& one : addresses) {
    theirs += fmt::format("{}{}", theirs.empty() ? "" : ", ", one.text());
  }
  std::string ours;
  for (const fabric::NetInterface& one : own_) {
    for (const IpAddress& address : one.addresses) {
      ours += fmt::format("{}{}/{} ({})", ours.empty() ? "" : ", ", address.text(),
                          address.prefix_len, one.name);
    }
  }
  return fmt::format(
      "the peer has {}, and this host {}: no network in common that has cables; {}; run nccl-ha "
      "relay on all hosts, or start the job with this plugin and HA_NCCL_MESH_RELAY=auto on all of "
      "them (docs/mesh.md)",
      theirs, ours.empty() ? "none with a cable" : ours, heard());
}

}  // namespace nccl_ha::relay
