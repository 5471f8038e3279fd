#include "runtime/fabric/interface_table.h"

#include <algorithm>
#include <utility>

namespace nccl_ha::fabric {
namespace {

bool is_port_of(const NetInterface& one, const NetInterface& before) {
  return !before.pci_path.empty() && one.pci_path == before.pci_path &&
         one.port.port_name == before.port.port_name && one.lies_on.size() == before.lies_on.size();
}

bool has_name_of(const NetInterface& one, const NetInterface& before) {
  return one.name == before.name && (before.pci_path.empty() || one.pci_path.empty());
}

bool has_mac_of(const NetInterface& one, const NetInterface& before) {
  return before.mac != decltype(before.mac){} && one.mac == before.mac &&
         one.leads_to == before.leads_to && one.lies_on.size() == before.lies_on.size();
}

/// While nothing else is up, also these are chosen.
bool leads_nowhere(const NetInterface& one, const std::vector<NetInterface>& before) {
  const bool to_container = one.leads_to == LinkClass::pair && one.only_self_assigned() &&
                            !before.empty() && before.front().leads_to == LinkClass::nic;
  return one.loopback || one.leads_to == LinkClass::internal || to_container;
}

bool differ(const NetInterface& one, const NetInterface& other) {
  return one.name != other.name || one.ifindex != other.ifindex || one.mtu != other.mtu ||
         one.addresses != other.addresses || one.link_local != other.link_local ||
         one.cables != other.cables;
}

}  // namespace

std::vector<NetInterface> renewed(const std::vector<NetInterface>& before,
                                  const std::vector<NetInterface>& now) {
  std::vector<NetInterface> list = before;
  std::vector<bool> found(before.size());
  std::vector<bool> taken(now.size());
  for (auto* const fits : {is_port_of, has_name_of, has_mac_of}) {
    for (size_t i = 0; i < before.size(); ++i) {
      for (size_t at = 0; at < now.size() && !found[i]; ++at) {
        if (taken[at] || !fits(now[at], before[i])) {
          continue;
        }
        found[i] = taken[at] = true;
        list[i] = now[at];
        list[i].guid = before[i].guid;  // NCCL knows the device by it
        list[i].offered = before[i].offered;
        list[i].why_not = before[i].why_not;
      }
    }
  }
  for (size_t i = 0; i < before.size(); ++i) {
    if (!found[i]) {
      list[i].up = false;
      list[i].ifindex = 0;  // the kernel may give it to another one
    }
  }
  for (size_t at = 0; at < now.size(); ++at) {
    if (taken[at] || leads_nowhere(now[at], before)) {
      continue;
    }
    // Hosts of containers have new interfaces all the time: the list stays short.
    size_t place = 0;
    while (place < before.size() && (found[place] || before[place].offered)) {
      ++place;
    }
    if (place == before.size()) {
      list.push_back(now[at]);
      place = list.size() - 1;
    } else {
      list[place] = now[at];
      found[place] = true;
    }
    list[place].offered = false;
    list[place].why_not = "it came when the job had begun";
  }
  return list;
}

void InterfaceTable::set(List list) {
  std::lock_guard lock(mutex_);
  list_ = std::make_shared<const List>(std::move(list));
}

std::shared_ptr<const InterfaceTable::List> InterfaceTable::now() const {
  std::lock_guard lock(mutex_);
  return list_;
}

bool InterfaceTable::renew(const List& now) {
  std::lock_guard lock(mutex_);
  List list = renewed(*list_, now);
  const bool changed =
      !std::ranges::equal(list, *list_, [](const auto& a, const auto& b) { return !differ(a, b); });
  list_ = std::make_shared<const List>(std::move(list));
  return changed;
}

}  // namespace nccl_ha::fabric
