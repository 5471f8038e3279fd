#include "actors/connection/eager_sends.h"

#include <algorithm>

namespace nccl_ha {

EagerSends::EagerSends(const ConnectionParts& parts, SendChannel& channel, LaneChooser& chooser,
                       const DataTables& tables)
    : state_(parts.state),
      paths_(parts.paths),
      liveness_(parts.liveness),
      channel_(channel),
      chooser_(chooser),
      tables_(tables) {}

void EagerSends::take_submitted() {
  for (; taken_ != channel_.eager_submitted(); ++taken_) {
    Message& message = messages_[taken_ % eager_slots];
    const EagerHead& head = tables_.eager[taken_ % eager_slots].head;
    if (!state_.holds(!message.open, "a slot holds one eager message at a time")) {
      return;
    }
    // Those before it that have no place yet come first.
    const uint64_t group = head.is_placed() ? head.group : std::max(head.group, next_group_);
    message = {taken_, group, ha::ChunkLedger::nobody, true};
    next_group_ = group + 1;
    state_.counters->sends.add();
    state_.counters->eager_sends.add();
    state_.counters->bytes_sent.add(head.bytes);
    state_.note(TraceEvent::transfer_posted, group, trace_chunk(head.bytes, 0, 0, 0));
  }
}

void EagerSends::post() {
  take_submitted();
  waits_ = false;
  for (uint64_t number = done_; state_.live() && number != taken_; ++number) {
    Message& message = messages_[number % eager_slots];
    if (message.open && message.lane == ha::ChunkLedger::nobody && !post(message)) {
      waits_ = true;
      return;
    }
  }
}

/// A lane, if there is one with room for it.
size_t EagerSends::lane_for(uint32_t bytes) {
  const size_t lane = chooser_.lane_for(bytes);
  return lane == LaneChooser::none || paths_.lane(lane).usable ? lane : chooser_.any_usable();
}

/// False: there is no room, or no path.
bool EagerSends::post(Message& message) {
  const size_t slot = message.number % eager_slots;
  const EagerSlot& staged = tables_.eager[slot];
  const uint32_t bytes = sizeof staged.head + staged.head.bytes;
  const size_t at = lane_for(bytes);
  if (at == LaneChooser::none) {
    return false;
  }
  Lane& lane = paths_.lane(at);
  const auto* from = reinterpret_cast<const std::byte*>(&staged);
  fabric::WritePost post;
  post.id = first_id + slot;
  post.gather_count = 1;
  post.gathers[0] = {from, bytes, lane.tables.source_key};
  post.remote_address = lane.tables.peer.address +
                        static_cast<uint64_t>(from - reinterpret_cast<const std::byte*>(&tables_));
  post.remote_key = lane.tables.peer.key;
  post.has_immediate = true;
  post.immediate = EagerMark{static_cast<uint32_t>(message.number), lane.epoch}.pack();
  post.host_memory = true;
  post.no_speculative_placement = message.again;
  post.last = true;
  if (lane.path().post_write(post) != Errc::ok) {
    return false;
  }
  chooser_.on_posted(lane, bytes);
  lane.count_write(bytes, sizeof staged.head);
  liveness_.watch_work();
  message.lane = static_cast<uint8_t>(at);
  state_.note(TraceEvent::chunk_posted, message.group, trace_chunk(staged.head.bytes, 0, 0, 1), at);
  return true;
}

bool EagerSends::on_acknowledged(uint64_t id, size_t lane) {
  Message& message = messages_[id - first_id];
  if (!state_.holds(message.open && message.lane == lane,
                    "an eager message is acknowledged once, by the lane that holds it")) {
    return false;
  }
  message.open = false;
  state_.counters->sends_done.add();
  state_.note(TraceEvent::chunk_acked, message.group, trace_chunk(bytes_of(message), 0, 0, 1),
              lane);
  state_.note(TraceEvent::transfer_sent, message.group, trace_chunk(bytes_of(message), 0, 0, 0));
  channel_.eager_arrived(message.number);
  while (done_ != taken_ && !messages_[done_ % eager_slots].open) {
    ++done_;
  }
  return !any_open();
}

/// Perhaps it has arrived.  The receiver knows it by its number, and its slot holds nothing else.
bool EagerSends::holds(size_t lane) const {
  return std::ranges::any_of(
      messages_, [&](const Message& message) { return message.open && message.lane == lane; });
}

uint32_t EagerSends::take_back(size_t lane, uint64_t& bytes) {
  uint32_t count = 0;
  for (Message& message : messages_) {
    if (message.open && message.lane == lane) {
      message.lane = ha::ChunkLedger::nobody;
      message.again = true;
      waits_ = true;
      ++count;
      bytes += bytes_of(message);
    }
  }
  return count;
}

}  // namespace nccl_ha
