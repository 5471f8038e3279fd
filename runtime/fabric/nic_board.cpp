#include "runtime/fabric/nic_board.h"

#include <algorithm>
#include <utility>

namespace nccl_ha::fabric {

bool NicBoard::enter(Reader* reader) {
  std::lock_guard lock(mutex_);
  subscriptions_.push_back({reader, {}});
  return subscriptions_.size() == 1;
}

void NicBoard::unsubscribe(Reader* reader) {
  std::lock_guard lock(mutex_);
  std::erase_if(subscriptions_,
                [&](const Subscription& subscription) { return subscription.reader == reader; });
}

void NicBoard::post(const NicNotice& notice, const Reader* from) {
  std::lock_guard lock(mutex_);
  for (Subscription& subscription : subscriptions_) {
    if (subscription.reader == from) {
      continue;
    }
    auto& notices = subscription.notices;
    const auto is_hint = [](const NicNotice& one) { return one.kind != NicNotice::Kind::renewed; };
    if (is_hint(notice) || std::ranges::all_of(notices, is_hint)) {
      notices.push_back(notice);
    }
    if (notices.size() > kept_max) {
      notices.erase(std::ranges::find_if(notices, is_hint));
    }
    subscription.reader->on_notice();
  }
}

std::vector<NicNotice> NicBoard::take(Reader* reader) {
  std::lock_guard lock(mutex_);
  const auto subscription =
      std::find_if(subscriptions_.begin(), subscriptions_.end(),
                   [&](const Subscription& one) { return one.reader == reader; });
  if (subscription == subscriptions_.end()) {
    return {};
  }
  const auto notices = std::exchange(subscription->notices, {});
  return {notices.begin(), notices.end()};
}

void NicBoard::ask_renewal() {
  std::function<void()> renew;
  {
    std::lock_guard lock(mutex_);
    renew = renew_;
  }
  if (renew) {
    renew();
  }
}

void NicBoard::renew_by(std::function<void()> renew) {
  std::lock_guard lock(mutex_);
  renew_ = std::move(renew);
}

}  // namespace nccl_ha::fabric
