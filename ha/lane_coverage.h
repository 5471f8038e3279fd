// Which events lanes have met in which of their states: what simulations have seen of ha/lane.h.
//
// In the product saw() is nothing.  Programs that simulate link lane.cpp built once more
// with NHA_LANE_COVERAGE.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "ha/lane.h"

namespace nccl_ha::ha {

enum class SenderEvent : uint8_t {
  ready,
  failed,
  suspect,
  old_suspect,
  drained,
  unproven,
  proven,
  fenced,
  reopened,
  rebuilt,
  old_rebuilt,
};
enum class ReceiverEvent : uint8_t { ready, failed, drained, down, rebuild };

/// How often; by state and event.  Any thread.
struct LaneCoverage {
  static constexpr size_t sender_states = 4;
  static constexpr size_t sender_events = 11;
  static constexpr size_t receiver_states = 5;
  static constexpr size_t receiver_events = 5;
  std::array<std::array<std::atomic<uint64_t>, sender_events>, sender_states> sender{};
  std::array<std::array<std::atomic<uint64_t>, receiver_events>, receiver_states> receiver{};
};
/// All zero where nothing is counted.
LaneCoverage& lane_coverage();

#if defined(NHA_LANE_COVERAGE)
inline void saw(SenderLane::State state, SenderEvent event) {
  lane_coverage().sender[static_cast<size_t>(state)][static_cast<size_t>(event)].fetch_add(
      1, std::memory_order_relaxed);
}
inline void saw(ReceiverLane::State state, ReceiverEvent event) {
  lane_coverage().receiver[static_cast<size_t>(state)][static_cast<size_t>(event)].fetch_add(
      1, std::memory_order_relaxed);
}
#else
constexpr void saw(SenderLane::State, SenderEvent) {}
constexpr void saw(ReceiverLane::State, ReceiverEvent) {}
#endif

}  // namespace nccl_ha::ha
