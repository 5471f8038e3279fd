#include "actors/connection/receiver.h"

#include <fmt/format.h>

#include <optional>
#include <span>

#include "actors/immediate.h"

namespace nccl_ha {

Receiver::Receiver(const ConnectionParts& parts, Owner& owner, ReceiveChannel& channel)
    : state_(parts.state),
      paths_(parts.paths),
      boxes_(parts.control.boxes()),
      owner_(owner),
      channel_(channel),
      counters_(channel.counters()),
      announcer_(parts, groups_),
      flusher_(parts, channel, announcer_),
      tables_(new DataTables) {  // uninitialised: pages that are not used are not there
  state_.provider.memory().attach(&guard_);
}

Receiver::~Receiver() { state_.provider.memory().detach(&guard_); }

PathSet::Needs Receiver::needs(bool flushes) {
  PathSet::Needs needs;
  needs.owner = this;
  needs.source = announcer_.ring();
  needs.source_bytes = sizeof(CtsRing);
  needs.written = [this](size_t, bool) { return tables_; };
  needs.written_bytes = data_table_bytes(state_.traits);
  needs.receives = static_cast<uint32_t>(sends_max + eager_slots);
  needs.flushes = flushes ? flushes_max : 0;
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
  if (alone_) [[unlikely]] {
    owner_.on_posted_alone();
    return;
  }
  announcer_.announce_if_due();
  if (announcer_.renews()) [[unlikely]] {
    owner_.on_open_changed();
  }
}

[[gnu::always_inline]] inline void Receiver::begin_request(ReceiveRequest& request) {
  if (!alone_ && !announcer_.make_room(request.count)) {
    return;
  }
  request.group = groups_.add(request);
  counters_.receives.add();
  request.missing = request.count;
  request.arrived = {};
  request.chunk_count = {};
  request.bytes = {};
  // Before it is announced: what the announcement tells of a slot is that it is free.
  const bool whole = eager_.any() && take_eager(request);
  if (!state_.live()) [[unlikely]] {
    return;
  }
  if (!alone_) [[likely]] {
    announcer_.stage(request);
  }
  if (whole) {
    note_whole(request);
    finish(request);
  }
}

namespace {

/// Of an eager message in that group; nothing: it has none there.
std::optional<uint32_t> place_of(const EagerHead& head, const ReceiveRequest& request) {
  if (head.is_placed()) {
    const bool there = head.group == request.group && head.position < request.count &&
                       request.buffers[head.position].tag == head.tag &&
                       request.arrived[head.position] == 0;
    return there ? std::optional<uint32_t>(head.position) : std::nullopt;
  }
  if (head.group > request.group) {
    return std::nullopt;
  }
  for (uint32_t position = 0; position < request.count; ++position) {
    if (request.buffers[position].tag == head.tag && request.arrived[position] == 0) {
      return position;
    }
  }
  return std::nullopt;
}

}  // namespace

/// What was sent with one tag goes to the receives with that tag in their order, as the sender
/// places it (SendChannel::place_eager).
[[gnu::noinline]] bool Receiver::take_eager(ReceiveRequest& request) {
  for (uint64_t number = eager_.begin(); number != eager_.end() && request.missing != 0; ++number) {
    const EagerArrivals::Message& message = eager_.at(number);
    const auto position =
        message.here && !message.taken ? place_of(message.head, request) : std::nullopt;
    if (position && !copy_eager(request, *position, number)) {
      return false;
    }
  }
  return request.missing == 0;
}

/// False, and the connection has failed: the receive is too small, or its memory is not there.
bool Receiver::copy_eager(ReceiveRequest& request, uint32_t position, uint64_t number) {
  const uint32_t bytes = eager_.at(number).head.bytes;
  const ReceiveRequest::Buffer& buffer = request.buffers[position];
  if (bytes > buffer.size) {
    state_.fail(fail(Errc::invalid_usage,
                     fmt::format("a send of {} bytes (tag {}) meets a receive of {}: the two ranks "
                                 "disagree about the size",
                                 bytes, buffer.tag, buffer.size)));
    return false;
  }
  const std::byte* from = tables_->eager[number % eager_slots].data.data();
  if (bytes != 0 && !state_.provider.memory().write(guard_, buffer.key, state_.domain,
                                                    reinterpret_cast<uint64_t>(buffer.data),
                                                    std::span(from, bytes), request.polled)) {
    state_.fail(fail(Errc::invalid_usage, "a receive's memory was deregistered while it was open"));
    return false;
  }
  eager_.take(number);
  request.arrived[position] = 1;
  request.chunk_count[position] = 1;
  request.bytes[position] = bytes;
  --request.missing;
  return true;
}

/// The sender can have heard of the groups that it knows, and its place, if it names one, is free.
bool Receiver::is_possible(const EagerHead& head) const {
  if (head.known_groups() > groups_.posted()) {
    return false;
  }
  if (!head.is_placed()) {
    return true;
  }
  const ReceiveRequest* request =
      head.group >= groups_.completed() ? groups_.at(head.group) : nullptr;
  return request != nullptr && place_of(head, *request).has_value();
}

[[gnu::noinline]] void Receiver::on_eager(const fabric::Completion& completion, const Lane& lane) {
  const uint32_t low_bits = Immediate::unpack(completion.immediate).group;
  const EagerSlot& slot = tables_->eager[low_bits % eager_slots];
  const auto verdict =
      takes_eager(state_.traits) && Immediate::same_epoch(completion.immediate, lane.epoch)
          ? eager_.arrive(low_bits, completion.bytes, slot)
          : EagerArrivals::Verdict::malformed;
  if (verdict == EagerArrivals::Verdict::malformed ||
      (verdict == EagerArrivals::Verdict::fresh && !is_possible(eager_.newest().head))) {
    state_.fail(fail(Errc::remote, "the peer sent a malformed eager message"));
    return;
  }
  if (verdict == EagerArrivals::Verdict::known) {
    return;
  }
  count_bytes(lane, eager_.newest().head.bytes);
  announcer_.note_known(eager_.newest().head.known_groups());
  state_.note(TraceEvent::chunk_arrived, eager_.newest().head.group,
              trace_chunk(eager_.newest().head.bytes, 0, 0, 1), paths_.at(lane));
  counters_.eager_received.add();
  for (uint64_t number = groups_.completed(); eager_.any() && number < groups_.posted(); ++number) {
    ReceiveRequest* request = groups_.at(number);
    if (request != nullptr && take_eager(*request)) {
      note_whole(*request);
      finish(*request);
    }
    if (!state_.live()) {
      return;
    }
  }
  counters_.eager_early.add(eager_.any() ? 1 : 0);
}

[[gnu::hot, gnu::noinline]] void Receiver::on_completion(const fabric::Completion& completion) {
  if (!state_.live()) {
    state_.owner.on_late_completion(completion);
    return;
  }
  Lane& lane = paths_.lane_of(completion.path);
  if (boxes_.on_completion(completion, lane)) [[unlikely]] {
    if (!lane.usable) {
      state_.owner.on_work_back(paths_.at(lane));
    }
    return;
  }
  switch (completion.kind) {
    case fabric::CompletionKind::write:
      break;  // announcements; the peer's messages answer them
    case fabric::CompletionKind::flush:
      flusher_.on_completion(completion, lane);
      break;
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
      if (!lane.usable) [[unlikely]] {
        flusher_.on_lane_down();  // its queue pair takes data until the device has stopped it
      }
      paths_.replace_credit(lane);
      lane.counters->receives.add();
      lane.health.show_life();
      if (!take_whole(completion, lane)) {
        completion.has_immediate&& EagerMark::marks(completion.immediate)
            ? on_eager(completion, lane)
            : on_data(completion, lane);
      }
      break;
  }
  if (!lane.usable) [[unlikely]] {
    state_.owner.on_work_back(paths_.at(lane));
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
  announcer_.note_known(request->group + 1);
  count_bytes(lane, completion.bytes);
  state_.note(TraceEvent::chunk_arrived, request->group,
              trace_chunk(completion.bytes, 0, 0, 1, true), paths_.at(lane));
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
      (request->arrived[position] & bit) == 0 &&
      (request->chunk_count[position] == 0 || request->chunk_count[position] == chunk_count);
  uint32_t bytes = completion.bytes;
  if (good && immediate.kind == ImmediateKind::recorded) {
    bytes = tables_->sizes.bytes[request->group % cts_slots][position][immediate.chunk];
  }
  if (!good || bytes > request->buffers[position].size - request->bytes[position]) {
    state_.fail(fail(Errc::remote, "the peer completed a receive that is not open"));
    return;
  }
  request->arrived[position] = static_cast<uint16_t>(request->arrived[position] | bit);
  if (!state_.holds((request->arrived[position] & bit) != 0, "a chunk that arrived is marked")) {
    return;
  }
  request->chunk_count[position] = chunk_count;
  request->bytes[position] += bytes;
  announcer_.note_known(request->group + 1);
  count_bytes(lane, bytes);
  state_.note(TraceEvent::chunk_arrived, request->group,
              trace_chunk(bytes, position, immediate.chunk, chunk_count), paths_.at(lane));
  if (request->arrived[position] == (1U << chunk_count) - 1 && --request->missing == 0) {
    note_whole(*request);
    finish_group(*request);
  }
}

/// A group of which the sender waits for the end.
[[gnu::always_inline]] inline void Receiver::finish_group(ReceiveRequest& request) {
  finish(request);
  if (groups_.all_complete()) {
    // Nothing else is expected, so the caller may make no more calls for a while.
    paths_.flush_acks();
  }
}

void Receiver::note_whole(const ReceiveRequest& request) const {
  state_.note(TraceEvent::transfer_completed, request.group, request.bytes[0], request.count);
}

[[gnu::always_inline]] inline void Receiver::finish(ReceiveRequest& request) {
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
  if (!alone_) [[likely]] {
    announcer_.announce_if_short();
    if (announcer_.renews()) [[unlikely]] {
      owner_.on_open_changed();
    }
  }
}

}  // namespace nccl_ha
