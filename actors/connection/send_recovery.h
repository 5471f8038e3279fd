// The connecting side when a path fails: fence, judge what arrived, move traffic, have a new path
// made.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "actors/connection/path_renewal.h"
#include "actors/connection/sender.h"
#include "actors/connection/side.h"
#include "actors/control.h"
#include "ha/detour.h"
#include "ha/lane.h"
#include "ha/ledger.h"
#include "ha/serving_set.h"
#include "runtime/engine/timer_wheel.h"

namespace nccl_ha {

/// Drives a ha::SenderLane for each lane, and decides which lanes carry traffic (ha::ServingSet).
/// One thread.
class SendRecovery final : public Sender::Owner, private PathRenewal::Owner {
 public:
  class Owner {
   public:
    /// What waits for the peer may have changed.
    virtual void on_steps_taken() = 0;
    /// The last eager message has arrived.
    virtual void on_all_sent() = 0;

   protected:
    ~Owner() = default;
  };

  SendRecovery(const ConnectionParts& parts, Sender& sender, Owner& owner);
  ~SendRecovery() { stop(); }
  SendRecovery(const SendRecovery&) = delete;
  SendRecovery& operator=(const SendRecovery&) = delete;
  PathRenewal& renewal() { return renewal_; }
  /// The first paths have come up or failed.
  void begin();
  /// The caller is told: from now on traffic goes where it should.
  void on_usable() {
    if (state_.rails.rails != 0) {
      choose_lanes();
    }
  }
  void stop();

  void on_lane_ready(size_t lane);
  void on_lane_failed(size_t lane, const Error& error) override;
  void on_lane_drained(size_t lane);
  /// suspect, fenced or rebuilt
  void on_path_message(const ControlReader::Message& message);
  /// What a rail holds that is fenced off for being slow goes again elsewhere.
  void on_slow_rail(size_t rail);
  /// Whether lanes that work are left for others, as they are slow.  Now and then.
  void look_for_slowness();
  /// Something of a lane's replacement is the peer's to say.
  bool waits_for_peer() const {
    return std::ranges::any_of(lanes_,
                               [](const Recovery& one) { return one.lane.waits_for_peer(); });
  }

  // Sender::Owner
  void on_memory_rejected(size_t lane, const Error& why) override {
    renewal_.on_memory_rejected(lane, why);
  }
  void on_rail_rejected(uint8_t rail) override { renewal_.on_rail_rejected(rail); }
  bool give_way() override;
  void on_fence_late(size_t lane) override;
  void on_fence_proven(size_t lane) override;
  void on_eager_arrived() override { owner_.on_all_sent(); }

 private:
  /// How the replacement of a lane's path is going.
  struct Recovery {
    ha::SenderLane lane;
    ha::ArrivalReport report;
    uint64_t life_before = 0;  ///< the lane's `life` when it was taken into use
    Instant usable_since{};
    // Of the failure that is being dealt with.
    bool was_used = false;  ///< it met a path that was in use
    Error reason;
    Instant alive_at{};  ///< the last heartbeat that was seen
    Instant down_at{};
  };

  // PathRenewal::Owner
  std::optional<uint32_t> on_path_made(size_t lane) override;
  bool serves(size_t lane) const override { return serving_.serves(lane); }
  bool is_opening(size_t lane) const override {
    return lanes_[lane].lane.state() == ha::SenderLane::State::opening;
  }

  void on_suspect(std::span<const std::byte> payload);
  void on_fenced(std::span<const std::byte> payload);
  void on_rebuilt(std::span<const std::byte> payload);
  void take_steps(size_t lane, const ha::SenderSteps& steps, const Error& why);
  void take_down(size_t lane, const Error& why);
  void apply_report(size_t lane);
  void tell_failover(size_t lane, const Sender::TakenBack& counts);
  void watch_budget();
  void choose_lanes();
  void tell_move();
  ha::ServingSet::View view();
  bool is_fenced_off(const Lane& lane) const;
  void look_at_fenced_rails();
  bool release_fenced();
  ha::Detour::View detour_view();
  void leave_slow_rank(ha::Detour::Step step);

  ConnectionParts parts_;
  ConnectionState& state_;
  PathSet& paths_;
  Failover& failover_;
  Sender& sender_;
  Owner& owner_;
  std::vector<Recovery> lanes_;
  PathRenewal renewal_;
  ha::ServingSet serving_;
  ha::Detour detour_;
  bool detained_ = false;                               ///< when it was last looked
  std::array<ha::ServingSet::Lane, lanes_max> seen_{};  ///< what view() shows
  Timer failback_timer_;
  Timer slow_timer_;  ///< a rail that was slow may carry data again
};

}  // namespace nccl_ha
