#include "runtime/fabric/nic_board.h"

#include <algorithm>
#include <utility>

namespace nccl_ha::fabric {

void NicBoard::enter(Reader* reader) {
  std::lock_guard lock(mutex_);
  desks_.push_back({reader, {}});
}

void NicBoard::leave(Reader* reader) {
  std::lock_guard lock(mutex_);
  std::erase_if(desks_, [&](const Desk& desk) { return desk.reader == reader; });
}

void NicBoard::post(const NicNotice& notice, const Reader* from) {
  std::lock_guard lock(mutex_);
  for (Desk& desk : desks_) {
    if (desk.reader == from) {
      continue;
    }
    desk.notices.push_back(notice);
    if (desk.notices.size() > kept_max) {
      desk.notices.pop_front();
    }
    desk.reader->on_notice();
  }
}

std::vector<NicNotice> NicBoard::take(Reader* reader) {
  std::lock_guard lock(mutex_);
  const auto desk = std::find_if(desks_.begin(), desks_.end(),
                                 [&](const Desk& one) { return one.reader == reader; });
  if (desk == desks_.end()) {
    return {};
  }
  const auto notices = std::exchange(desk->notices, {});
  return {notices.begin(), notices.end()};
}

}  // namespace nccl_ha::fabric
