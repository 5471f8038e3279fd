#include "relay/provider_hops.h"

#include <fmt/format.h>
#include <net/if.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "runtime/base/log.h"
#include "runtime/fabric/datagram/udp_factory.h"

namespace nccl_ha::relay {
namespace {

/// Long enough that a device which never works costs connections little, and short enough that one
/// which works again is used.
constexpr Duration avoided_for = std::chrono::seconds(60);

/// Link-local networks of all cables look the same, but name the interface.
std::string interface_of(const IpAddress& address) {
  char name[IF_NAMESIZE] = {};
  const bool named = address.link_local() && address.scope_id != 0 &&
                     if_indextoname(address.scope_id, name) != nullptr;
  return named ? name : "";
}

}  // namespace

std::vector<HopPlace> ProviderHops::places(const sockaddr* local) const {
  std::vector<HopPlace> found;
  const auto address = IpAddress::from_sockaddr(local);
  for (size_t i = 0; address && i < provider_.devices().size(); ++i) {
    const fabric::Attachment at = provider_.live_at(i, provider_.devices()[i].kind);
    const bool own = !provider_.is_universal(at.kind) && provider_.traits(at).hops == 0;
    if (own && lies_above(at, *address)) {
      const fabric::PathTraits traits = provider_.traits(at);
      found.push_back({at, !traits.keys_per_device, traits.reaches_gpu_memory});
    }
  }
  found.push_back({{0, fabric::datagram_kind}, true});
  return found;
}

void ProviderHops::avoid(const HopPlace& place, NodeId neighbour, Instant now,
                         const std::string& why) {
  if (provider_.is_universal(place.at.kind)) {
    const std::lock_guard lock(mutex_);
    std::erase_if(avoided_, [&](const auto& one) { return one.first.second == neighbour; });
    return;
  }
  NHA_LOG_WARN("a hop over {} to {} did not come up, datagrams are used there for {} s: {}",
               provider_.devices()[place.at.device].name, text(neighbour),
               avoided_for / std::chrono::seconds(1), why);
  const std::lock_guard lock(mutex_);
  std::erase_if(avoided_, [&](const auto& one) { return one.second <= now; });
  avoided_[{place.at.device, neighbour}] = now + avoided_for;
}

bool ProviderHops::avoids(const HopPlace& place, NodeId neighbour, Instant now) const {
  const std::lock_guard lock(mutex_);
  const auto found = avoided_.find({place.at.device, neighbour});
  return !provider_.is_universal(place.at.kind) && found != avoided_.end() && now < found->second;
}

/// The device's port, or the interface beneath it, has that address.
bool ProviderHops::lies_above(const fabric::Attachment& at, const IpAddress& address) const {
  const std::string& netdev = provider_.devices()[at.device].netdev;
  if (address.link_local()) {
    return !netdev.empty() && interface_of(address) == netdev;
  }
  const auto same = [&](const IpAddress& own) { return own.same_as(address); };
  const auto interfaces = provider_.interfaces();
  const auto beneath =
      std::find_if(interfaces->begin(), interfaces->end(),
                   [&](const fabric::NetInterface& one) { return one.name == netdev; });
  if (beneath != interfaces->end()) {
    return std::any_of(beneath->addresses.begin(), beneath->addresses.end(), same);
  }
  const auto places = provider_.places(at);
  return std::any_of(places.begin(), places.end(), [&](const fabric::Place& place) {
    return place.at.kind == at.kind && place.at.device == at.device && same(place.address);
  });
}

Result<fabric::OwnedPath> ProviderHops::make_hop(Context& context, const HopPlace& place,
                                                 const sockaddr* local,
                                                 const fabric::PathOptions& options,
                                                 fabric::PathOwner* owner) {
  if (datagrams_ == nullptr || place.at.kind != fabric::datagram_kind) {
    return provider_.create_path(context, place.at, local, options, owner);
  }
  fabric::PathOptions own = options;
  own.nic = datagrams_->nic_of({}, local);
  return datagrams_->create_path(context, place.at, local, own, owner);
}

Result<std::shared_ptr<fabric::OwnMemory>> ProviderHops::own_memory(const HopPlace& place,
                                                                    uint64_t domain,
                                                                    std::shared_ptr<void> bytes,
                                                                    size_t length) {
  if (place.direct) {
    return fabric::TableMemory::make(provider_.memory(), domain, std::move(bytes), length);
  }
  if (provider_.is_busy(place.at)) {
    return fail(Errc::system,
                fmt::format("RDMA device {} takes long with something: does its firmware hang?",
                            provider_.devices()[place.at.device].name),
                EBUSY);
  }
  return provider_.own_memory(place.at, domain, std::move(bytes), length, true);
}

}  // namespace nccl_ha::relay
