#include "actors/connection/receiver.h"

#include "actors/immediate.h"
#include "ha/mutation.h"

namespace nccl_ha {

Receiver::Receiver(const ConnectionParts& parts, ReceiveChannel& channel)
    : state_(parts.state),
      paths_(parts.paths),
      boxes_(parts.control.boxes()),
      channel_(channel),
      counters_(channel.counters()),
      announcer_(parts, groups_),
      flusher_(parts, channel, announcer_),
      sizes_(std::make_unique<SizeRecords>()) {}

PathSet::Needs Receiver::needs(bool flushes) {
  PathSet::Needs needs;
  needs.owner = this;
  needs.source = announcer_.ring().data();
  needs.source_bytes = sizeof announcer_.ring();
  needs.written = sizes_.get();
  needs.written_bytes = sizeof *sizes_;
  needs.receives = static_cast<uint32_t>(sends_max);
  needs.flushes = flushes;
  return needs;
}

[[gnu::hot]] void Receiver::on_submitted() {
  if (state_.ready()) [[likely]] {
    take_submitted();
  }
}

[[gnu::hot]] void Receiver::take_submitted() {
  uint16_t index = 0;
  while (groups_.has_room() && channel_.next_submitted(&index)) {
    ReceiveRequest& request = channel_.slot(index);
    if (request.is_flush) {
      counters_.flushes.add();
      flusher_.flush(request);
    } else {
      begin_request(request);
    }
    if (!state_.live()) {
      return;
    }
  }
  announcer_.announce_if_due();
}

[[gnu::always_inline]] inline void Receiver::begin_request(ReceiveRequest& request) {
  if (!announcer_.make_room(request.count)) {
    return;
  }
  request.group = groups_.add(request);
  counters_.receives.add();
  request.missing = request.count;
  request.arrived = {};
  request.chunk_count = {};
  request.bytes = {};
  announcer_.stage(request);
}

[[gnu::hot, gnu::noinline]] void Receiver::on_completion(const fabric::Completion& completion) {
  if (!state_.live()) {
    state_.owner.on_late_completion(completion);
    return;
  }
  const size_t at = paths_.index_of(completion.path);
  Lane& lane = paths_.lane(at);
  if (boxes_.on_completion(completion, lane)) [[unlikely]] {
    if (!lane.usable) {
      state_.owner.on_work_back(at);
    }
    return;
  }
  switch (completion.kind) {
    case fabric::CompletionKind::write:
    case fabric::CompletionKind::send:
      break;  // announcements; the peer's messages answer them
    case fabric::CompletionKind::flush:
      flusher_.on_completion(completion, lane);
      break;
    case fabric::CompletionKind::receive:
    case fabric::CompletionKind::receive_immediate:
      if (!state_.holds(lane.credits_open != 0, "no more receives complete than were posted"))
          [[unlikely]] {
        return;
      }
      if (completion.status != fabric::CompletionStatus::ok) {
        --lane.credits_open;
        lane.counters->errors.add();
        break;
      }
      paths_.replace_credit(lane);
      lane.counters->receives.add();
      lane.health.show_life();
      if (!take_whole(completion, lane)) {
        on_data(completion, lane);
      }
      break;
  }
  if (!lane.usable) [[unlikely]] {
    state_.owner.on_work_back(at);
  }
}

[[gnu::always_inline]] inline void Receiver::count_bytes(const Lane& lane, uint32_t bytes) {
  counters_.bytes_received.add(bytes);
  lane.counters->bytes_received.add(bytes);
}

/// A whole message into the only buffer of the oldest group, which is what nearly all of them are;
/// false: it is something else, or wrong.
[[gnu::always_inline]] inline bool Receiver::take_whole(const fabric::Completion& completion,
                                                        const Lane& lane) {
  ReceiveRequest* request = groups_.oldest();
  const Immediate whole{ImmediateKind::data, static_cast<uint32_t>(groups_.completed()), 0, 0, 0,
                        lane.epoch};
  if (request == nullptr || !completion.has_immediate || completion.immediate != whole.pack() ||
      request->count != 1 || request->chunk_count[0] != 0 ||
      completion.bytes > request->buffers[0].size) [[unlikely]] {
    return false;
  }
  request->arrived[0] = 1;
  request->chunk_count[0] = 1;
  request->bytes[0] = completion.bytes;
  count_bytes(lane, completion.bytes);
  state_.note(TraceEvent::chunk_arrived, request->group, trace_chunk(completion.bytes, 0, 0, 1),
              paths_.at(lane));
  finish_group(*request);
  return true;
}

[[gnu::noinline]] void Receiver::on_data(const fabric::Completion& completion, const Lane& lane) {
  const Immediate immediate = Immediate::unpack(completion.immediate);
  // Only the oldest open groups can be meant; compare whole group numbers, not slots.
  ReceiveRequest* request = nullptr;
  for (uint64_t number = groups_.completed(); number < groups_.posted(); ++number) {
    if (Immediate::same_group(immediate.group, number)) {
      request = groups_.at(number);
      break;
    }
  }
  const uint32_t position = immediate.position;
  const auto chunk_count = static_cast<uint8_t>(immediate.last_chunk + 1);
  const auto bit = static_cast<uint16_t>(1U << immediate.chunk);
  bool good =
      completion.has_immediate && Immediate::same_epoch(completion.immediate, lane.epoch) &&
      (immediate.kind == ImmediateKind::data || immediate.kind == ImmediateKind::recorded) &&
      request != nullptr && position < request->count && immediate.chunk <= immediate.last_chunk &&
      ((request->arrived[position] & bit) == 0 || ha::mutated(ha::Mutation::counter_for_bitmap)) &&
      (request->chunk_count[position] == 0 || request->chunk_count[position] == chunk_count);
  uint32_t bytes = completion.bytes;
  if (good && immediate.kind == ImmediateKind::recorded) {
    const uint64_t of =
        ha::mutated(ha::Mutation::sizes_of_oldest_group) ? groups_.completed() : request->group;
    bytes = sizes_->bytes[of % cts_slots][position][immediate.chunk];
  }
  if (!good || bytes > request->buffers[position].size - request->bytes[position]) {
    state_.fail(fail(Errc::remote, "the peer completed a receive that is not open"));
    return;
  }
  request->arrived[position] = ha::mutated(ha::Mutation::counter_for_bitmap)
                                   ? static_cast<uint16_t>(request->arrived[position] << 1 | 1)
                                   : static_cast<uint16_t>(request->arrived[position] | bit);
  if (!state_.holds((request->arrived[position] & bit) != 0, "a chunk that arrived is marked")) {
    return;
  }
  request->chunk_count[position] = chunk_count;
  request->bytes[position] += bytes;
  count_bytes(lane, bytes);
  state_.note(TraceEvent::chunk_arrived, request->group,
              trace_chunk(bytes, position, immediate.chunk, chunk_count), paths_.at(lane));
  if (request->arrived[position] == (1U << chunk_count) - 1 && --request->missing == 0) {
    finish_group(*request);
  }
}

[[gnu::always_inline]] inline void Receiver::finish_group(ReceiveRequest& request) {
  state_.note(TraceEvent::transfer_completed, request.group, request.bytes[0], request.count);
  const uint64_t number = request.group;
  if (!state_.holds(groups_.is_open(number, request), "a receive is done once, while it is open"))
      [[unlikely]] {
    return;
  }
  counters_.receives_done.add();
  request.state.store(RequestState::done, std::memory_order_release);
  if (groups_.complete(number)) [[unlikely]] {
    take_submitted();
  }
  announcer_.announce_if_short();
  if (groups_.all_complete()) {
    // Nothing else is expected, so the caller may make no more calls for a while.
    paths_.flush_acks();
  }
}

}  // namespace nccl_ha
