#include "actors/receive_channel.h"

#include <cstddef>

#include "runtime/base/check.h"

namespace nccl_ha {

ReceiveChannel::ReceiveChannel(uint64_t domain, fabric::Attachment at, Driver* driver,
                               const CounterPlace& counters, const fabric::RailDevices& devices)
    : Channel(domain, at, counters, "receive", devices) {
  for (size_t i = 0; i < receives_max; ++i) {
    slots_[i].index = static_cast<uint16_t>(i);
    slots_[i].channel = this;
    slots_[i].driver = driver;
    free_[i] = static_cast<uint16_t>(receives_max - 1 - i);
  }
  free_count_ = receives_max;
  for (size_t i = 0; i < flushes_max; ++i) {
    ReceiveRequest& slot = slots_[receives_max + i];
    slot.index = static_cast<uint16_t>(receives_max + i);
    slot.channel = this;
    slot.driver = driver;
    slot.is_flush = true;
    free_flushes_[i] = slot.index;
  }
  free_flush_count_ = flushes_max;
}

ReceiveRequest* ReceiveChannel::acquire_flush() {
  return free_flush_count_ == 0 ? nullptr : &slots_[free_flushes_[--free_flush_count_]];
}

ReceiveRequest* ReceiveChannel::acquire() {
  return free_count_ == 0 ? nullptr : &slots_[free_[--free_count_]];
}

[[gnu::hot]] void ReceiveChannel::submit(ReceiveRequest& request) {
  next_group_ += request.is_flush ? 0 : 1;
  request.state.store(RequestState::pending, std::memory_order_relaxed);
  submitted_.push(request.index);
}

void ReceiveChannel::release(ReceiveRequest& request) {
  if (request.is_flush) {
    NHA_DASSERT(free_flush_count_ < flushes_max, "more flushes released than there are");
    request.state.store(RequestState::free, std::memory_order_relaxed);
    free_flushes_[free_flush_count_++] = request.index;
    return;
  }
  NHA_DASSERT(free_count_ < receives_max, "more requests released than there are");
  request.state.store(RequestState::free, std::memory_order_relaxed);
  free_[free_count_++] = request.index;
}

}  // namespace nccl_ha
