// What the accepting side's actor shares with its caller.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "actors/channel.h"
#include "actors/index_ring.h"
#include "actors/request.h"

namespace nccl_ha {

/// Receiving side of a connection.
class ReceiveChannel final : public Channel {
 public:
  static constexpr size_t slot_count = receives_max + flushes_max;

  /// `driver`: of its requests; null: nobody calls test() for them.
  ReceiveChannel(uint64_t domain, fabric::Attachment at, Driver* driver = nullptr,
                 const CounterPlace& counters = {}, const fabric::RailDevices& devices = {});

  /// Caller.  A free slot to fill in, or nullptr; submit() puts it into the ring, and the
  /// driver is told next.
  ReceiveRequest* acquire();
  /// The same for a flush; those have slots of their own, because a flush cannot be put off.
  ReceiveRequest* acquire_flush();
  void submit(ReceiveRequest& request);
  /// Caller.  The number that the actor gives to the group of the next receive.
  uint64_t next_group() const { return next_group_; }
  void release(ReceiveRequest& request);
  size_t open() const { return receives_max - free_count_; }

  // Actor's side.
  bool next_submitted(uint16_t* index) { return submitted_.pop(index); }
  ReceiveRequest& slot(uint16_t index) { return slots_[index]; }

 private:
  std::array<ReceiveRequest, slot_count> slots_;
  IndexRing<slot_count> submitted_;
  alignas(64) std::array<uint16_t, receives_max> free_;
  size_t free_count_ = 0;
  uint64_t next_group_ = 0;
  std::array<uint16_t, flushes_max> free_flushes_;
  size_t free_flush_count_ = 0;
};

}  // namespace nccl_ha
