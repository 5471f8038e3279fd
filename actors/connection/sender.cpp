#include "actors/connection/sender.h"

#include <algorithm>
#include <array>
#include <utility>

#include "actors/connection/limits.h"

namespace nccl_ha {
namespace {

// A write that announces nothing: the chunk's last one answers for it.
constexpr uint64_t piece_id = UINT64_MAX;

}  // namespace

Sender::Sender(const ConnectionParts& parts, Owner& owner, SendChannel& channel)
    : state_(parts.state),
      paths_(parts.paths),
      boxes_(parts.control.boxes()),
      liveness_(parts.liveness),
      owner_(owner),
      channel_(channel),
      counters_(channel.counters()),
      announced_(channel),
      tables_(new DataTables),  // uninitialised: pages that are not used are not there
      chooser_(state_, paths_, channel),
      eager_(parts, channel, chooser_, *tables_) {}

PathSet::Needs Sender::needs() {
  PathSet::Needs needs;
  needs.owner = this;
  needs.source = tables_;
  needs.source_bytes = data_table_bytes(state_.traits);
  needs.written = [this](size_t lane, bool anew) {
    return anew ? announced_.renew(lane) : announced_.ring(lane);
  };
  needs.written_bytes = sizeof(CtsRing);
  needs.receives = cts_slots;
  needs.active = true;
  return needs;
}

/// The limit only sinks: what began as recorded ends so.
void Sender::adapt_to(const Lane& lane) {
  // Longer than one write may be, a chunk takes several; its length is recorded then too.
  record_above_ =
      std::min({record_above_, lane.traits.end_apart_above, lane.owned.path->write_bytes_max()});
}

void Sender::begin(bool peer_takes_eager, std::shared_ptr<ha::HintSource> hints) {
  const auto eager_bytes = static_cast<uint32_t>(state_.context->config().eager_bytes);
  if (takes_eager(state_.traits) && peer_takes_eager && eager_bytes != 0) {
    channel_.allow_eager(tables_, eager_bytes);
  }
  chooser_.begin(std::move(hints));
  std::array<ha::ServingSet::Share, lanes_max> primaries{};
  for (size_t lane = 0; lane < paths_.primaries(); ++lane) {
    primaries[lane] = {static_cast<uint8_t>(lane), 1};
  }
  serve(std::span(primaries).first(paths_.primaries()));
  if (state_.traits.keys_per_device && !paths_.shadow_lanes().empty()) {
    announced_.note_keys(state_.rails.rails);
  }
}

void Sender::serve(std::span<const ha::ServingSet::Share> shares) {
  if (chooser_.serve(shares) && cursor_.request != nullptr && cursor_.offset == 0) {
    cursor_.lane =
        chooser_.spreads() ? LaneChooser::none : chooser_.lane_for(*cursor_.request, cursor_.chunk);
  }
}

bool Sender::idle() const {
  for (uint16_t i = 0; i < sends_max; ++i) {
    if (channel_.slot(i).state.load(std::memory_order_acquire) == RequestState::pending) {
      return false;
    }
  }
  return true;
}

void Sender::acknowledge_all_below(uint64_t group) {
  for (uint16_t i = 0; i < sends_max; ++i) {
    SendRequest& request = channel_.slot(i);
    if (request.state.load(std::memory_order_acquire) == RequestState::pending &&
        request.group < group) {
      finish_at_once(request);
    }
  }
}

[[gnu::always_inline]] inline void Sender::finish(SendRequest& request) {
  counters_.sends_done.add();
  request.state.store(RequestState::done, std::memory_order_release);
}

void Sender::finish_at_once(SendRequest& request) {
  state_.note(TraceEvent::transfer_sent, request.group,
              trace_chunk(request.size, request.position, 0, 0));
  finish(request);
}

/// Of a message whose first chunk does not tell it.
void Sender::note_begun() {
  if (std::exchange(cursor_.untold, false)) {
    const SendRequest& request = *cursor_.request;
    state_.note(TraceEvent::transfer_posted, request.group,
                trace_chunk(request.size, request.position, 0, 0));
  }
}

[[gnu::hot]] void Sender::on_submitted() {
  if (state_.ready()) [[likely]] {
    post_all();
  }
}

[[gnu::always_inline]] inline void Sender::post_all() {
  if (eager_.due()) {
    eager_.post();
  }
  while (state_.live() && (cursor_.request != nullptr || next_work())) {
    if (!post_next()) {
      note_begun();  // its chunk waits
      return;
    }
  }
}

void Sender::pump() { post_all(); }

/// What has to go again goes first: the receiver may wait for nothing else.
[[gnu::always_inline]] inline bool Sender::next_work() {
  if (!replay_.empty()) [[unlikely]] {
    const Chunk again = replay_.front();
    replay_.pop_front();
    cursor_ = {&channel_.slot(again.request), again.chunk, again.chunk + 1U, 0,
               chooser_.spreads() ? LaneChooser::none : chooser_.in_turn()};
    return true;
  }
  uint16_t index = 0;
  if (!channel_.next_submitted(&index)) {
    return false;
  }
  return begin_request(index);
}

[[gnu::always_inline]] inline bool Sender::begin_request(uint16_t index) {
  SendRequest& request = channel_.slot(index);
  if (chooser_.count() > 1) {
    chooser_.cut(request);
  } else {
    request.split.whole(request.size);
  }
  request.ledger.begin(request.split.count());
  acknowledged_.begin(request.group, request.position);
  cursor_ = {&request, 0, request.split.count(), 0, chooser_.lane_for(request, 0), true};
  counters_.sends.add();
  counters_.bytes_sent.add(request.size);
  if (request.split.count() != 1) [[unlikely]] {
    note_begun();
  }
  // False, and the connection has failed: nothing of it is posted.
  return state_.sound(request.split) && state_.sound(request.ledger) &&
         state_.sound(acknowledged_) && state_.sound(chooser_);
}

/// A lane for the chunk at hand, or another one; false: there is none that can be used, or it
/// waits.
bool Sender::pick_lane() {
  cursor_.lane = chooser_.spreads() ? chooser_.lane_for(*cursor_.request, cursor_.chunk)
                                    : chooser_.any_usable();
  return lane_works();
}

/// The keys of a request's memory on a lane over another device; false: the peer has not told its
/// own yet, or the device does not take the memory.
bool Sender::translate(const SendRequest& request, const Lane& lane, Keys& keys) {
  if (lane.on_other_rail()) {
    keys = {request.rail_keys[lane.rail - 1U], request.remote_rail_keys[lane.rail - 1U]};
    if (keys.local != 0 && keys.remote != 0) [[likely]] {
      return true;
    }
  } else {
    keys.remote = announced_.keys().key(request.group, request.position, lane.key_slot, lane.epoch);
  }
  if (request.size == 0) {
    return true;
  }
  if (keys.remote == 0 || lane.rejected) {
    return false;
  }
  auto here = state_.provider.keys_on(lane.at, state_.domain, state_.attachment, request.key, true);
  if (!here) {
    owner_.on_memory_rejected(cursor_.lane, here.error());
    return false;
  }
  keys.local = here->local_key;
  return true;
}

/// What must be so of the chunk at hand; else the connection has failed.
[[gnu::always_inline]] inline bool Sender::chunk_holds(const SendRequest& request) {
  const uint64_t end =
      uint64_t{request.split.begin(cursor_.chunk)} + request.split.bytes(cursor_.chunk);
  return state_.holds(cursor_.chunk < cursor_.end && cursor_.end <= request.split.count() &&
                          end <= request.size,
                      "a chunk is a part of its message") &&
         state_.holds(cursor_.offset == 0 || request.ledger.holder(cursor_.chunk) == cursor_.lane,
                      "a chunk that was begun on a path ends there");
}

/// The message's memory has no keys on that lane; true: the chunk at hand goes elsewhere.
bool Sender::on_no_keys(const Lane& lane) {
  if (!state_.live() || cursor_.offset != 0) {
    return false;  // the announcement that brings it goes on
  }
  if (lane.owned.path->state() == fabric::PathState::error) {
    return false;  // and its end is heard of soon
  }
  if (lane.on_other_rail()) {
    // All lanes at once: what is left of the rail would get the same chunk next.
    owner_.on_rail_rejected(lane.rail);
    cursor_.lane = chooser_.on_another_rail(cursor_.lane);
    return cursor_.lane != LaneChooser::none;
  }
  // The peer names keys for the best lane that works, and none for what is worse: it saw the
  // better one come up before it saw that this shadow was needed.
  return owner_.give_way();
}

/// Posts the next piece of the chunk at hand; false when no path has room for it now.
[[gnu::always_inline]] inline bool Sender::post_next() {
  if (!lane_works() && !pick_lane()) [[unlikely]] {
    return false;  // it waits for a path
  }
  SendRequest& request = *cursor_.request;
  Lane& lane = paths_.lane(cursor_.lane);
  fabric::Path& path = lane.path();
  const uint32_t begin = request.split.begin(cursor_.chunk);
  const uint32_t bytes = request.split.bytes(cursor_.chunk);
  if (!chunk_holds(request)) [[unlikely]] {
    return false;
  }
  const bool recorded = bytes > record_above_;
  Keys keys{request.key, request.remote_key};
  if (lane.foreign_keys && !translate(request, lane, keys)) [[unlikely]] {
    return on_no_keys(lane);
  }
  Immediate immediate{ImmediateKind::data,       static_cast<uint32_t>(request.group),
                      request.position,          cursor_.chunk,
                      request.split.count() - 1, lane.epoch};
  fabric::WritePost post;
  post.id = uint64_t{cursor_.chunk} << 16 | request.index;
  post.no_speculative_placement = request.no_speculative_placement;
  if (recorded && cursor_.offset < bytes) {
    const uint32_t piece = std::min(bytes - cursor_.offset, path.write_bytes_max());
    post.gather_count = 1;
    post.gathers[0] = {request.data + begin + cursor_.offset, piece, keys.local};
    post.remote_address = request.remote_address + begin + cursor_.offset;
    post.remote_key = keys.remote;
    post.id = piece_id;
    if (path.post_write(post) != Errc::ok) {
      return false;
    }
    chooser_.on_posted(lane, piece);
    lane.count_write(piece);
    cursor_.offset += piece;
    request.ledger.give(cursor_.chunk, static_cast<uint8_t>(cursor_.lane));
    return true;
  }
  if (recorded) {
    auto& record = tables_->sizes.bytes[request.group % cts_slots][request.position][cursor_.chunk];
    record = bytes;
    immediate.kind = ImmediateKind::recorded;
    post.gather_count = 1;
    post.gathers[0] = {reinterpret_cast<const std::byte*>(&record), sizeof record,
                       lane.tables.source_key};
    post.remote_address = lane.tables.peer.address +
                          static_cast<uint64_t>(reinterpret_cast<std::byte*>(&record) -
                                                reinterpret_cast<std::byte*>(tables_.get()));
    post.remote_key = lane.tables.peer.key;
    post.host_memory = true;
  } else {
    post.gather_count = bytes == 0 ? 0 : 1;
    post.gathers[0] = {request.data + begin, bytes, keys.local};
    post.remote_address = request.remote_address + begin;
    post.remote_key = keys.remote;
    post.host_memory = request.host_memory;
  }
  post.has_immediate = true;
  post.immediate = immediate.pack();
  post.last = cursor_.chunk + 1 == cursor_.end && replay_.empty() && !channel_.any_submitted();
  if (path.post_write(post) != Errc::ok) {
    return false;  // room comes with a completion; a broken path reports by itself
  }
  // Of the chunk, or of its record, as its completion counts them.
  const auto head = static_cast<uint32_t>(recorded ? sizeof(uint32_t) : 0);
  const uint32_t written = recorded ? head : bytes;
  chooser_.on_posted(lane, written);
  lane.count_write(written, head);
  liveness_.watch_work();
  request.ledger.give(cursor_.chunk, static_cast<uint8_t>(cursor_.lane));
  state_.note(TraceEvent::chunk_posted, request.group,
              trace_chunk(bytes, request.position, cursor_.chunk, request.split.count(),
                          std::exchange(cursor_.untold, false)),
              cursor_.lane);
  end_chunk();
  return state_.sound(request.ledger);
}

[[gnu::always_inline]] inline void Sender::end_chunk() {
  cursor_.offset = 0;
  if (++cursor_.chunk == cursor_.end) {
    cursor_.request = nullptr;
  } else {
    cursor_.lane = chooser_.lane_for(*cursor_.request, cursor_.chunk);
  }
}

void Sender::leave(size_t lane) {
  if (!between_chunks() && cursor_.request->ledger.holder(cursor_.chunk) == lane) {
    note_begun();
    end_chunk();
  }
}

[[gnu::hot, gnu::noinline]] void Sender::on_completion(const fabric::Completion& completion) {
  if (!state_.live()) {
    state_.owner.on_late_completion(completion);
    return;
  }
  Lane& lane = paths_.lane_of(completion.path);
  const bool good = completion.status == fabric::CompletionStatus::ok;  // else its state says why
  if (boxes_.on_completion(completion, lane)) [[unlikely]] {
    if (!lane.usable) {
      state_.owner.on_work_back(paths_.at(lane));
    }
    return;
  }
  if (completion.kind == fabric::CompletionKind::write) {
    if (!state_.holds(lane.writes_open != 0, "no more writes complete than were posted"))
        [[unlikely]] {
      return;
    }
    --lane.writes_open;
    // A load that is counted wrongly is no reason to end a job: simulations and builds with
    // assertions find it below.
    const bool counted = lane.bytes_open >= completion.bytes;
    lane.bytes_open -= std::min<uint64_t>(lane.bytes_open, completion.bytes);
    chooser_.on_delivered(lane, completion.bytes, good);
    (good ? lane.counters->writes_done : lane.counters->errors).add();
    if (good) {
      lane.health.show_life();
      if (EagerSends::is_of(completion.id)) {
        if (eager_.on_acknowledged(completion.id, paths_.at(lane))) {
          owner_.on_eager_arrived();
        }
      } else if (completion.id != piece_id) {
        if (!on_acknowledged(completion.id, paths_.at(lane))) [[unlikely]] {
          return;
        }
      }
      // What a path that failed gives back need not say how much it was.
      if (deep_checks() &&
          !state_.holds(
              !lane.usable || (counted && (lane.writes_open != 0 || lane.bytes_open == 0)),
              "open bytes of a usable lane are those of open writes")) [[unlikely]] {
        return;
      }
      if (cursor_.request != nullptr || eager_.due()) [[unlikely]] {
        pump();
      }
    }
  } else if (good) {
    on_clear_to_send(completion, lane);
  } else if (state_.holds(lane.credits_open != 0, "no more receives complete than were posted")) {
    --lane.credits_open;
    lane.counters->errors.add();
  }
  if (!lane.usable) [[unlikely]] {
    state_.owner.on_work_back(paths_.at(lane));
  }
}

/// The write that ends a chunk is done: the request with its last one.
[[gnu::always_inline]] inline bool Sender::on_acknowledged(uint64_t id, size_t lane) {
  const auto index = static_cast<uint16_t>(id);
  const auto chunk = static_cast<uint32_t>(id >> 16);
  if (!state_.holds(index < sends_max && chunk < channel_.slot(index).split.count(),
                    "a write that completes is one that was posted")) [[unlikely]] {
    return false;
  }
  SendRequest& request = channel_.slot(index);
  const bool whole = request.split.count() == 1;
  state_.note(TraceEvent::chunk_acked, request.group,
              trace_chunk(request.split.bytes(chunk), request.position, chunk,
                          request.split.count(), whole),
              lane);
  const bool last = request.ledger.acknowledge(chunk, lane);
  if (!state_.sound(request.ledger)) [[unlikely]] {
    return false;
  }
  acknowledged_.note(request.group, request.position, chunk, static_cast<uint8_t>(lane));
  if (last && whole) [[likely]] {
    finish(request);
  } else if (last) {
    finish_at_once(request);
  }
  return true;
}

[[gnu::hot, gnu::noinline]] void Sender::on_clear_to_send(const fabric::Completion& completion,
                                                          Lane& lane) {
  ClearToSends::News news;
  if (announced_.take(completion, paths_.at(lane), lane.epoch, news) ==
      ClearToSends::Verdict::malformed) {
    state_.fail(fail(Errc::remote, "the peer sent a malformed clear-to-send"));
    return;
  }
  if (news.groups != 0) {
    note_news(news);
  }
  lane.counters->receives.add();
  paths_.replace_credit(lane);
  lane.health.show_life();
  if (cursor_.request != nullptr) [[unlikely]] {
    pump();  // it may have waited for a key
  }
}

void Sender::note_news(const ClearToSends::News& news) {
  counters_.groups_announced.add(news.groups);
  state_.note(TraceEvent::cts_received, news.first, news.groups);
}

/// The entry is there before the completion that tells of it, and its lane's way to here is longer.
[[gnu::hot]] bool Sender::poll_cts() {
  ClearToSends::News news;
  if (!state_.traits.visible_before_completion || !announced_.find(news)) {
    return false;
  }
  note_news(news);
  return true;
}

/// Nothing of the request is in the hands of a lane that was fenced.
bool Sender::has_left(const SendRequest& request, size_t lane) {
  bool left = true;
  for (uint32_t chunk = 0; chunk < request.split.count(); ++chunk) {
    left = left && request.ledger.holder(chunk) != lane;
  }
  return state_.holds(left, "a lane that was fenced holds nothing any more") &&
         state_.sound(request.ledger);
}

bool Sender::holds(size_t lane) const {
  // The receiver has so many groups open at most, and has announced the latest one.
  const uint64_t published = channel_.published_groups();
  const uint64_t whole_below = published - std::min(published, groups_apart_max);
  if (eager_.holds(lane) || acknowledged_.knows(static_cast<uint8_t>(lane), whole_below)) {
    return true;
  }
  for (uint16_t index = 0; index < sends_max; ++index) {
    const SendRequest& request = channel_.slot(index);
    for (uint32_t chunk = 0;
         request.state.load(std::memory_order_acquire) == RequestState::pending &&
         chunk < request.split.count();
         ++chunk) {
      if (request.ledger.holder(chunk) == lane) {
        return true;
      }
    }
  }
  return false;
}

Sender::TakenBack Sender::take_back(size_t lane, const ha::ArrivalReport& report) {
  TakenBack counts;
  counts.good = false;
  if (!state_.holds(!paths_.lane(lane).usable && paths_.lane(lane).writes_open == 0,
                    "a report is applied when nothing of the lane is under way")) {
    return counts;
  }
  counts.chunks_again = eager_.take_back(lane, counts.bytes_again);
  for (uint16_t index = 0; index < sends_max; ++index) {
    SendRequest& request = channel_.slot(index);
    if (request.state.load(std::memory_order_acquire) != RequestState::pending) {
      continue;
    }
    for (uint32_t chunk = 0; chunk < request.split.count() && request.ledger.open() != 0; ++chunk) {
      const bool acknowledged =
          acknowledged_.lane_of(request.group, request.position, chunk) == lane;
      if (request.ledger.holder(chunk) != lane &&
          !(acknowledged && !report.has(request.group, request.position, chunk))) {
        continue;
      }
      if (!report.covers(request.group)) {
        state_.fail(fail(Errc::remote, "the peer's report of a fence leaves groups out"));
        return counts;
      }
      const uint32_t bytes = request.split.bytes(chunk);
      if (!report.has(request.group, request.position, chunk)) {
        if (acknowledged) {
          request.ledger.reopen(chunk);
          acknowledged_.note(request.group, request.position, chunk, ha::ChunkLedger::nobody);
        } else {
          request.ledger.take_back(chunk);
        }
        replay_.push_back({index, static_cast<uint8_t>(chunk)});
        ++counts.chunks_again;
        counts.bytes_again += bytes;
        continue;
      }
      ++counts.chunks_kept;
      counts.bytes_kept += bytes;
      if (request.ledger.acknowledge(chunk, lane)) {
        finish_at_once(request);
      }
    }
    if (!has_left(request, lane)) {
      return counts;
    }
  }
  if (acknowledged_.contradicts(static_cast<uint8_t>(lane), report)) {
    state_.fail(fail(Errc::remote,
                     "the peer's NIC failed between acknowledging data and writing it to "
                     "memory; what was to be sent may have changed since"));
    return counts;
  }
  acknowledged_.forget(static_cast<uint8_t>(lane));
  counts.good = true;
  return counts;
}

}  // namespace nccl_ha
