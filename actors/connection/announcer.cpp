#include "actors/connection/announcer.h"

#include <algorithm>

#include "actors/immediate.h"

namespace nccl_ha {

Announcer::Announcer(const ConnectionParts& parts, const OpenReceives& groups)
    : state_(parts.state),
      paths_(parts.paths),
      liveness_(parts.liveness),
      failover_(parts.failover),
      groups_(groups),
      ring_(std::make_shared<CtsRing>()) {}

void Announcer::begin_rails() {
  names_rails_ = state_.rails.rails != 0 && state_.traits.keys_per_device;
  on_other_rails_ = ha::announces_on_others(state_.terms.mode, state_.rails);
}

bool Announcer::wrap() {
  announce();  // one write ends where the ring does
  staged_ = 0;
  return state_.live();
}

[[gnu::hot]] void Announcer::stage(const ReceiveRequest& request) {
  if (!state_.holds(staged_ + request.count <= cts_entries,
                    "the entries of a group lie side by side in the ring")) [[unlikely]] {
    return;
  }
  first_entry_[request.group % cts_slots] = static_cast<uint16_t>(staged_);
  // A slot is written anew only after its group has arrived, which no loss of its announcement
  // survives.
  for (uint8_t i = 0; i < request.count; ++i) {
    const ReceiveRequest::Buffer& buffer = request.buffers[i];
    CtsEntry& entry = (*ring_)[staged_++];
    entry.group = request.group;
    entry.address = reinterpret_cast<uint64_t>(buffer.data);
    entry.size = buffer.size;
    entry.key = buffer.key;
    entry.tag = buffer.tag;
    entry.count = request.count;
    entry.position = i;
    entry.no_speculative_placement = request.polled ? 1 : 0;
    if (keys_wanted_) [[unlikely]] {
      name_keys(entry, buffer);
    } else if (names_rails_) {
      name_rail_keys(entry, buffer);
    }
    entry.seal();
  }
  batch_.stage(request.count);
  const auto& held = batch_.held();
  if (!state_.holds(held.entries <= staged_ && held.groups <= held.entries &&
                        held.entries <= held.groups * group_max,
                    "what is held back lies before the end of what was staged")) [[unlikely]] {
    return;
  }
  // Where acknowledgements ride on messages a small one overtakes bulk data.
  const bool holds_back = state_.traits.acknowledged_by_nic;
  if (!holds_back || batch_.full()) {
    announce();
  }
}

void Announcer::announce() {
  if (batch_.empty()) {
    return;
  }
  const auto held = batch_.take();
  if (paths_.lane(lane_).usable) {
    post(groups_.posted() - held.groups, held.groups, staged_ - held.entries, held.entries);
  }  // else everything open is announced when there is a path again
}

[[gnu::hot]] void Announcer::post(uint64_t number, uint64_t groups, uint32_t first,
                                  uint32_t entries) {
  Lane& lane = paths_.lane(lane_);
  if (!state_.holds(
          lane.usable && first + entries <= cts_entries && groups != 0 && groups <= entries,
          "an announcement goes over a path that works and ends within the ring")) [[unlikely]] {
    return;
  }
  fabric::WritePost post;
  post.id = number;
  post.gather_count = 1;
  post.gathers[0] = {reinterpret_cast<const std::byte*>(&(*ring_)[first]),
                     static_cast<uint32_t>(entries * sizeof(CtsEntry)), lane.tables.source_key};
  post.remote_address = lane.tables.peer.address + first * sizeof(CtsEntry);
  post.remote_key = lane.tables.peer.key;
  post.has_immediate = true;
  post.immediate = Announcement{static_cast<uint32_t>(number), first, lane.epoch}.pack();
  post.unsignaled = true;
  post.host_memory = true;
  post.last = true;
  lane.health.announce();
  liveness_.watch_work();
  const Errc posted = lane.path().post_write(post);
  if (posted != Errc::ok && posted != Errc::closed) {
    state_.fail(fail(Errc::internal, "a path refused a clear-to-send it has room for"));
    return;
  }
  state_.note(TraceEvent::cts_sent, number, groups, lane_);
}

void Announcer::want_keys() {
  if (!keys_wanted_ && paths_.own_usable()) {
    return;
  }
  const auto shadows = paths_.shadow_lanes();
  const auto best = std::find_if(shadows.begin(), shadows.end(),
                                 [](const Lane& lane) { return lane.usable && lane.foreign_keys; });
  if (best != shadows.end() && !names(*best)) {
    keys_wanted_ = true;
    named_ |= bit_of(*best);
    anew_ = true;
  }
}

/// Always, so that no message waits for a rail's keys; the device of a rail stays the same.
void Announcer::name_rail_keys(CtsEntry& entry, const ReceiveRequest::Buffer& buffer) {
  for (size_t i = 0; i < state_.rails.rails; ++i) {
    uint32_t key = buffer.rail_keys[i];
    if (key == 0) [[unlikely]] {
      key = shadow_key(paths_.primaries() + i * state_.rails.lanes, buffer);
    }
    entry.shadow_keys[i] = key;
  }
}

void Announcer::name_keys(CtsEntry& entry, const ReceiveRequest::Buffer& buffer) {
  entry.shadow_keys = {};
  entry.shadow_epochs = {};
  if (names_rails_) {
    name_rail_keys(entry, buffer);
  }
  for (size_t at = paths_.own(); at < paths_.size(); ++at) {
    const Lane& lane = paths_.lane(at);
    if (names(lane)) {
      entry.shadow_keys[lane.key_slot] = shadow_key(at, buffer);
      entry.shadow_epochs[lane.key_slot] = static_cast<uint16_t>(lane.epoch);
    }
  }
}

uint32_t Announcer::shadow_key(size_t at, const ReceiveRequest::Buffer& buffer) {
  if (buffer.key == 0) {
    return buffer.key;
  }
  const Lane& lane = paths_.lane(at);
  if (lane.on_other_rail() && buffer.rail_keys[lane.rail - 1U] != 0) {
    return buffer.rail_keys[lane.rail - 1U];
  }
  if (lane.rejected || !lane.owned.path || lane.owned.path->state() == fabric::PathState::error) {
    return 0;
  }
  auto keys = state_.provider.keys_on(lane.at, state_.domain, state_.attachment, buffer.key, false);
  if (!keys) {
    if (!failover_.fail_busy(at, keys.error())) {
      failover_.count_rejected();
      static_cast<void>(failover_.reject(at, keys.error()));
    }
    return 0;
  }
  return keys->remote_key;
}

void Announcer::name_all_keys() {
  for (uint64_t number = groups_.completed(); number < groups_.posted(); ++number) {
    const ReceiveRequest* request = groups_.at(number);
    for (size_t i = 0; request != nullptr && i < request->count; ++i) {
      CtsEntry& entry = (*ring_)[first_entry_[number % cts_slots] + i];
      name_keys(entry, request->buffers[i]);
      entry.seal();
    }
  }
}

std::optional<size_t> Announcer::usable_lane() const {
  std::optional<size_t> first;
  for (size_t at = 0; at < paths_.size(); ++at) {
    const Lane& lane = paths_.lane(at);
    if (lane.usable && (!first || (on_other_rails_ && lane.on_other_rail() &&
                                   !paths_.lane(*first).on_other_rail()))) {
      first = at;
    }
  }
  return first;
}

void Announcer::choose_lane() {
  if (const auto lane = usable_lane(); lane && !anew_ && !paths_.lane(lane_).on_other_rail()) {
    lane_ = *lane;
  }
}

void Announcer::announce_again(bool peer_stopped) {
  if (!anew_) {
    return;
  }
  if (!paths_.lane(lane_).usable) {
    const auto lane = usable_lane();
    if (!lane || !peer_stopped) {
      return;
    }
    if (!state_.holds(peer_stopped, "announcements go again when nothing of those before comes")) {
      return;
    }
    lane_ = *lane;
  }
  anew_ = false;
  batch_.forget();
  if (keys_wanted_ && state_.live()) {
    name_all_keys();
  }
  // An eager message completes a group of which the sender may not have heard.
  uint64_t number = std::min(known_, groups_.completed());
  while (number < groups_.posted() && state_.live()) {
    // As many in one write as lie side by side.
    const uint32_t first = first_entry_[number % cts_slots];
    uint64_t end = number;
    uint32_t entries = 0;
    while (end < groups_.posted() && first_entry_[end % cts_slots] == first + entries &&
           entries + group_max <= announced_together) {
      entries += groups_.buffers_of(end);
      ++end;
    }
    post(number, end - number, first, entries);
    number = end;
  }
}

}  // namespace nccl_ha
