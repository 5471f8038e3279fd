// The groups of receives that are posted and not yet complete.
#pragma once

#include <array>
#include <cstdint>

#include "actors/connection/limits.h"
#include "actors/request.h"
#include "ha/ledger.h"

namespace nccl_ha {

/// Groups are numbered in the order of posting and may end in another one.  One thread.
class OpenReceives {
 public:
  uint64_t posted() const { return posted_; }
  /// Every group below has been received whole.
  uint64_t completed() const { return completed_; }
  bool has_room() const { return posted_ - completed_ < groups_apart_max; }
  bool all_complete() const { return posted_ == completed_; }
  /// Null: the group is complete.  From completed() on, below posted().
  ReceiveRequest* at(uint64_t number) const { return open_[number % cts_slots]; }
  ReceiveRequest* oldest() const { return at(completed_); }
  /// Of how many buffers it is, also when it is complete.
  uint8_t buffers_of(uint64_t number) const { return buffers_[number % cts_slots]; }

  /// Gives the next number.  There is room.
  uint64_t add(ReceiveRequest& request) {
    const uint64_t number = posted_++;
    open_[number % cts_slots] = &request;
    buffers_[number % cts_slots] = request.count;
    return number;
  }
  /// True: there was no room, and now there is.
  bool complete(uint64_t number) {
    open_[number % cts_slots] = nullptr;
    const bool waited = !has_room();
    while (completed_ < posted_ && open_[completed_ % cts_slots] == nullptr) {
      ++completed_;
    }
    return waited && has_room();
  }
  /// It is what that number was given to.
  bool is_open(uint64_t number, const ReceiveRequest& request) const {
    return number - completed_ < posted_ - completed_ && at(number) == &request;
  }
  /// What has arrived of the open ones, for a fence.
  ha::ArrivalReport arrivals() const;

 private:
  uint64_t posted_ = 0;
  uint64_t completed_ = 0;
  std::array<ReceiveRequest*, cts_slots> open_{};
  std::array<uint8_t, cts_slots> buffers_{};
};

}  // namespace nccl_ha
