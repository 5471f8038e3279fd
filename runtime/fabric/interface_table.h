// The interfaces of a host that are in use, which change while they are.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/fabric/interfaces.h"

namespace nccl_ha::fabric {

/// What has become of `before`: each in its place, with what changed of it, found again by its port
/// of a PCI device, its name or its MAC address; then those that have come since, which only stand
/// by.  One that is gone stays as it was, but down, and without a number; if it was not offered,
/// one that comes takes its place.  `now`: select_interfaces() of today.  Pure.
std::vector<NetInterface> renewed(const std::vector<NetInterface>& before,
                                  const std::vector<NetInterface>& now);

/// A place in the list keeps its NIC for as long as there is one.  Any thread.
class InterfaceTable {
 public:
  using List = std::vector<NetInterface>;
  InterfaceTable() : list_(std::make_shared<const List>()) {}

  void set(List list);
  /// Stays as it is while it is held.
  std::shared_ptr<const List> now() const;
  /// True: something that paths depend on has changed.
  bool renew(const List& now);

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const List> list_;
};

}  // namespace nccl_ha::fabric
