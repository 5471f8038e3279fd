// What a work request id says.
#pragma once

#include <cstdint>

namespace nccl_ha::fabric::verbs {

/// An id of a queue pair that is gone must not be taken for one of its successor, so it carries a
/// generation.
struct WorkId {
  enum class Lane : uint8_t { send = 0, receive = 1, flush = 2 };
  uint32_t path = 0;  ///< slot in the port's table
  uint16_t generation = 0;
  Lane lane = Lane::send;
  uint32_t position = 0;  ///< in the lane's ring, modulo 2^22

  static constexpr uint32_t position_mask = (1U << 22) - 1;
  constexpr uint64_t pack() const {
    return uint64_t{generation} << 48 | uint64_t{path & 0xFFFFFFU} << 24 |
           uint64_t{static_cast<uint8_t>(lane)} << 22 | (position & position_mask);
  }
  static constexpr WorkId unpack(uint64_t id) {
    return {static_cast<uint32_t>(id >> 24) & 0xFFFFFFU, static_cast<uint16_t>(id >> 48),
            static_cast<Lane>((id >> 22) & 3U), static_cast<uint32_t>(id) & position_mask};
  }
};

/// Those of one lane, packed but for the position: a post needs no more.
class WorkIds {
 public:
  /// `one`: at any position.
  constexpr WorkIds(const WorkId& one) : lane_(one.pack() & ~uint64_t{WorkId::position_mask}) {}
  constexpr uint64_t at(uint32_t position) const {
    return lane_ | (position & WorkId::position_mask);
  }

 private:
  uint64_t lane_;
};

static_assert(WorkId::unpack(WorkId{5, 9, WorkId::Lane::flush, 77}.pack()).position == 77);
static_assert(WorkIds(WorkId{5, 9, WorkId::Lane::flush, 77}).at(78) ==
              WorkId{5, 9, WorkId::Lane::flush, 78}.pack());

}  // namespace nccl_ha::fabric::verbs
