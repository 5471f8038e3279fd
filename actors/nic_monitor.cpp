#include "actors/nic_monitor.h"

#include <utility>

#include "runtime/log.h"

namespace nccl_ha {

std::shared_ptr<NicMonitor> NicMonitor::of(Context& context) {
  auto& slot = context.shared[static_cast<size_t>(Context::Shared::nic_monitor)];
  if (auto known = std::static_pointer_cast<NicMonitor>(slot.lock())) {
    return known;
  }
  auto made = std::make_shared<NicMonitor>();
  auto watch = context.streams().watch_links(made.get());
  if (watch) {
    made->watch_ = std::move(*watch);
  } else {
    NHA_LOG_DEBUG("links are not watched: {}", watch.error().message());
  }
  slot = made;
  return made;
}

void NicMonitor::on_link(const std::string& interface, bool up) {
  // A member may leave when it is told.
  const std::vector<Member*> told = members_;
  for (Member* member : told) {
    if (up) {
      member->on_link_up(interface);
    } else {
      member->on_link_down(interface);
    }
  }
}

void NicMonitor::suspect(const Member* from, const std::string& interface,
                         const std::string& peer) {
  const std::vector<Member*> told = members_;
  for (Member* member : told) {
    if (member != from) {
      member->on_suspicion(interface, peer);
    }
  }
}

}  // namespace nccl_ha
