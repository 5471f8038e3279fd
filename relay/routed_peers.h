// To which addresses the kernel has a route by an interface with cables.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/fabric/interfaces.h"

namespace nccl_ha::relay {

/// Whoever waits for a peer asks again and again: an answer of the kernel's is taken for true for a
/// second.  Any thread.
class RoutedPeers {
 public:
  /// One of `addresses` is routed by one of `own`.
  bool any(const std::vector<fabric::NetInterface>& own, const std::vector<IpAddress>& addresses);

 private:
  std::mutex mutex_;
  std::map<std::string, std::pair<bool, Instant>> known_;  ///< by address
};

}  // namespace nccl_ha::relay
