#include "relay/routed_peers.h"

#include <algorithm>

#include "runtime/fabric/kernel_route.h"

namespace nccl_ha::relay {
namespace {

constexpr Duration true_for = std::chrono::seconds(1);
constexpr size_t known_max = 4096;

bool is_routed(const std::vector<fabric::NetInterface>& own, const IpAddress& to) {
  return std::ranges::any_of(own, [&](const fabric::NetInterface& one) {
    return std::ranges::any_of(one.addresses, [&](const IpAddress& from) {
      return fabric::interface_towards(to, from) == one.ifindex;
    });
  });
}

}  // namespace

bool RoutedPeers::any(const std::vector<fabric::NetInterface>& own,
                      const std::vector<IpAddress>& addresses) {
  const Instant now = SteadyClock().now();
  const std::lock_guard lock(mutex_);
  if (known_.size() >= known_max) {
    known_.clear();
  }
  return std::ranges::any_of(addresses, [&](const IpAddress& to) {
    auto& [routed, until] = known_[to.text()];
    if (until <= now) {
      routed = is_routed(own, to);
      until = now + true_for;
    }
    return routed;
  });
}

}  // namespace nccl_ha::relay
