// The accepted side when a path fails: close it, report what arrived, announce again.
#include <fmt/format.h>

#include <algorithm>

#include "actors/receive_connection.h"
#include "runtime/log.h"

namespace nccl_ha {
namespace {

/// Writes that a NIC posted before it reported them may still be on the PCIe fabric, and a NIC that
/// failed cannot be asked to push them.  They take microseconds; this is a thousand times as long.
constexpr Duration pcie_limit = std::chrono::milliseconds(10);

/// How long a connection may be without a path before it asks whether the peer lives.
constexpr Duration probe_without_path = std::chrono::milliseconds(250);

}  // namespace

void ReceiveConnection::begin_recovery() {
  if (!backup_) {
    return;
  }
  add_shadow_lanes();
  for (const Lane& lane : lanes_) {
    using State = ha::ReceiverLane::State;
    ha::ReceiverLane& one = recovery_.emplace_back(lane.shadow ? State::fenced : State::opening);
    static_cast<void>(one.on_ready());
  }
  start_heartbeats();
}

void ReceiveConnection::on_lane_ready(size_t lane) {
  take_steps(lane, recovery_[lane].on_ready(), {});
}

void ReceiveConnection::on_lane_failed(size_t lane, const Error& error) {
  take_steps(lane, recovery_[lane].on_failed(), error);
}

void ReceiveConnection::on_lane_drained(size_t lane) {
  if (!recovery_.empty()) {
    take_steps(lane, recovery_[lane].on_drained(), {});
  }
}

void ReceiveConnection::on_path_message(const ControlReader::Message& message) {
  if (message.type == ControlType::rebuild) {
    on_rebuild(message.payload);
    return;
  }
  const auto notice = decode_notice(message.payload);
  if (!is_of_ours(notice)) {
    return;
  }
  const Error why = from_peer(notice->why);
  Lane& lane = lanes_[notice->path];
  lane.rejected = lane.rejected || (notice->rejected && lane.shadow && notice->epoch == lane.epoch);
  if (message.type == ControlType::down) {
    take_steps(notice->path, recovery_[notice->path].on_down(notice->epoch), why);
  } else if (notice->epoch == lanes_[notice->path].epoch) {
    on_lane_failed(notice->path, why);  // from the handshake, where it has no state to go down from
  }
}

void ReceiveConnection::on_rebuild(std::span<const std::byte> payload) {
  const auto offer = decode_offer(payload);
  if (!is_of_ours(offer)) {
    return;
  }
  const ha::ReceiverSteps steps = recovery_[offer->path].on_rebuild(offer->epoch);
  if (steps.open) {
    open_again(offer->path, *offer);
  } else {
    take_steps(offer->path, steps, {});
  }
}

void ReceiveConnection::open_again(size_t lane, const PathOffer& offer) {
  Lane& mine = lanes_[lane];
  mine.epoch = recovery_[lane].epoch();
  if (mine.shadow) {
    if (offer.rail >= places_.size()) {
      fail_connection(fail(Errc::remote, "the peer wants a path to a port that was not offered"));
      return;
    }
    const fabric::Place& place = places_[offer.rail];
    mine.at = place.at;
    static_cast<void>(place.address.to_sockaddr(0, &mine.local));
  }
  auto made = remake_path(mine, false);
  if (made) {
    made = connect_path(mine, offer.end, offer.table_key);
  }
  if (!made) {
    FailoverCounts::add(channel_->failovers.rejected, mine.rejected ? 1 : 0);
    if (mine.shadow && !mine.rejected) {
      tell_shortage(made.error());
    }
    on_lane_failed(lane, made.error());
    return;
  }
  PathOffer answer;
  answer.path = offer.path;
  answer.epoch = mine.epoch;
  answer.table_key = mine.tables.written_key;
  answer.end = path_end(mine);
  send_control(encode(ControlType::rebuilt, answer));
  context_->request_stream_turns(1000);
}

void ReceiveConnection::take_steps(size_t lane, const ha::ReceiverSteps& steps, const Error& why) {
  Lane& mine = lanes_[lane];
  if (steps.protocol_error) {
    fail_connection(fail(Errc::remote, "the peer's messages about a path make no sense"));
    return;
  }
  if (steps.take_down) {
    announce_anew_ = announce_anew_ || lane == announcing_lane_;
    pcie_drained_at_ = context_->now() + pcie_limit;
    take_down(lane, why);
  }
  if (steps.say_suspect) {
    send_control(encode(ControlType::suspect, notice_of(lane, why)));
    context_->request_stream_turns(1000);
  }
  if (steps.report) {
    send_control(encode(FenceReport{static_cast<uint8_t>(lane), mine.epoch, arrivals()}));
    context_->request_stream_turns(1000);
  }
  if (steps.use) {
    take_into_use(lane);
    log_back(lane);
    if (stream_) {
      rejoin_.stop();
    }
    announce_anew_ = announce_anew_ || (shadow_keys_wanted_ && mine.foreign_keys);
  }
  want_shadow_keys();
  watch_budget(!any_usable());
  if (!any_usable() && !failed_) {
    // The stream may be silent with the paths, and this side has nothing to say that would show it.
    rejoin_.start(probe_without_path, fail(Errc::timed_out, "it is silent with the last path"));
  }
  if (announce_anew_) {
    announce_again();
  }
  flush_waiting();
  if (steps.take_down) {
    look_whether_drained(lane);  // perhaps nothing was posted any more
  }
}

ha::ArrivalReport ReceiveConnection::arrivals() const {
  ha::ArrivalReport report;
  report.completed = groups_completed_;
  const uint64_t end = groups_posted_ - (ha::mutated(ha::Mutation::last_group_unreported) ? 1 : 0);
  for (uint64_t number = groups_completed_; number < end; ++number) {
    ha::ArrivalReport::Group& group = report.groups.emplace_back();
    const ReceiveRequest* request = open_[number % cts_slots];
    group.whole = request == nullptr && !ha::mutated(ha::Mutation::whole_groups_left_out);
    for (size_t i = 0; request != nullptr && i < request->count; ++i) {
      group.chunks.push_back(request->arrived[i]);
    }
  }
  return report;
}

/// The sender will need the shadow's keys once its own NIC's paths are gone; telling them costs a
/// registration of each region with the other device, so it waits until then.
void ReceiveConnection::want_shadow_keys() {
  const bool foreign = any_usable(primaries_, lanes_.size()) && lanes_.back().foreign_keys;
  if (foreign && !primary_usable() && !shadow_keys_wanted_) {
    shadow_keys_wanted_ = true;
    announce_anew_ = true;
  }
}

void ReceiveConnection::name_shadow_key(CtsEntry& entry, const ReceiveRequest::Buffer& buffer) {
  entry.shadow_key = shadow_key(buffer);
  entry.shadow_epoch = lanes_.back().epoch;
}

uint32_t ReceiveConnection::shadow_key(const ReceiveRequest::Buffer& buffer) {
  if (buffer.key == 0 || ha::mutated(ha::Mutation::keys_of_own_nic)) {
    return buffer.key;
  }
  if (lanes_.back().rejected) {
    return 0;
  }
  auto keys = provider_.keys_on(lanes_.back().at, domain_, attachment_, buffer.key, false);
  if (!keys) {
    FailoverCounts::add(channel_->failovers.rejected, 1);
    static_cast<void>(reject(lanes_.size() - 1, keys.error()));
    return 0;
  }
  return keys->remote_key;
}

// What this side wrote on the old path may arrive until the sender has closed its side, and must
// not land on entries that were written anew meanwhile.
void ReceiveConnection::announce_again() {
  if (!lanes_[announcing_lane_].usable) {
    const auto lane = std::find_if(lanes_.begin(), lanes_.end(),
                                   [](const Lane& candidate) { return candidate.usable; });
    if (lane == lanes_.end() || (!recovery_[announcing_lane_].peer_stopped() &&
                                 !ha::mutated(ha::Mutation::announced_before_stop))) {
      return;
    }
    announcing_lane_ = static_cast<size_t>(lane - lanes_.begin());
  }
  announce_anew_ = false;
  held_groups_ = 0;
  held_entries_ = ha::mutated(ha::Mutation::held_entries_kept) ? held_entries_ : 0;
  uint64_t number = groups_completed_;
  if (ha::mutated(ha::Mutation::announcements_not_renewed)) {
    return;
  }
  for (uint64_t one = number; shadow_keys_wanted_ && one < groups_posted_ && !failed_; ++one) {
    const ReceiveRequest* request = open_[one % cts_slots];
    for (size_t i = 0; request != nullptr && i < request->count; ++i) {
      CtsEntry& entry = (*staging_)[first_entry_[one % cts_slots] + i];
      name_shadow_key(entry, request->buffers[i]);
      entry.seal();
    }
  }
  while (number < groups_posted_ && !failed_) {
    // As many in one write as lie side by side.
    const uint32_t first = first_entry_[number % cts_slots];
    uint64_t end = number;
    uint32_t entries = 0;
    while (end < groups_posted_ && first_entry_[end % cts_slots] == first + entries &&
           entries + group_max <= announced_together) {
      entries += count_[end % cts_slots];
      ++end;
    }
    post_announcement(number, end - number, first, entries);
    number = end;
  }
}

void ReceiveConnection::flush_waiting() {
  if (!flushes_waiting_.empty() && !ha::mutated(ha::Mutation::flush_left_waiting) && any_usable() &&
      !failed_ && !finished_) {
    for (const uint16_t index : std::exchange(flushes_waiting_, {})) {
      flush(channel_->slot(index));
    }
  }
}

}  // namespace nccl_ha
