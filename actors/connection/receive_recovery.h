// The accepting side when a path fails: close it, report what arrived, announce again.
#pragma once

#include <array>
#include <cstddef>
#include <set>
#include <span>
#include <vector>

#include "actors/connection/receiver.h"
#include "actors/connection/side.h"
#include "actors/control.h"
#include "ha/lane.h"

namespace nccl_ha {

/// Drives a ha::ReceiverLane for each lane.  One thread.
class ReceiveRecovery {
 public:
  ReceiveRecovery(const ConnectionParts& parts, Receiver& receiver);
  ReceiveRecovery(const ReceiveRecovery&) = delete;
  ReceiveRecovery& operator=(const ReceiveRecovery&) = delete;
  /// The first paths have come up or failed.
  void begin();

  void on_lane_ready(size_t lane);
  void on_lane_failed(size_t lane, const Error& error);
  void on_lane_drained(size_t lane);
  /// down, suspect or rebuild
  void on_path_message(const ControlReader::Message& message);
  void on_lane_address(size_t lane);
  /// The sender makes paths anew, and cannot know of this host's links.
  void on_domain_up(const fabric::FailureDomain& domain);
  /// The peer hears of the places whose addresses have changed since it was told of them.
  void tell_ends();
  /// Whether something waits for a path may have changed.
  void watch_budget();

 private:
  void say_ends();
  /// A new path that the peer wants.
  void on_not_made(size_t lane, const Error& why);
  void answer_offer(size_t lane);
  void on_rebuild(std::span<const std::byte> payload);
  void open_again(size_t lane, const PathOffer& offer);
  [[nodiscard]] bool names_all(const ha::ArrivalReport& report);
  void take_steps(size_t lane, const ha::ReceiverSteps& steps, const Error& why);

  ConnectionState& state_;
  PathSet& paths_;
  ControlLink& control_;
  Failover& failover_;
  Receiver& receiver_;
  std::vector<ha::ReceiverLane> lanes_;
  std::array<bool, lanes_max> unanswered_{};  ///< a new path waits for its address to be told
  /// Of each place, the number of the message that told of its link.
  std::array<uint32_t, ha::rails_max> link_told_{};
  std::set<size_t> ends_untold_;  ///< places with another address than the peer knows
};

}  // namespace nccl_ha
