// The connecting side: finds a route, says hello, writes into the receiver's buffers.
#include "actors/send_connection.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "runtime/check.h"
#include "runtime/engine.h"
#include "runtime/fabric/datagram/address.h"
#include "runtime/host.h"
#include "runtime/log.h"

namespace nccl_ha {
namespace {

// A write that announces nothing: the chunk's last one answers for it.
constexpr uint64_t piece_id = UINT64_MAX;

constexpr auto equal_weights = [] {
  std::array<uint32_t, chunks_max> weights{};
  weights.fill(1);
  return weights;
}();

}  // namespace

SendConnection::SendConnection(fabric::Provider& provider, Engine& engine, size_t worker,
                               std::shared_ptr<SendChannel> channel, Options options)
    : Connection(provider, engine, worker),
      channel_(std::move(channel)),
      options_(std::move(options)),
      cts_(std::make_unique<CtsRing>()) {
  domain_ = channel_->domain();
  attachment_ = channel_->attachment();
  receives_ = cts_slots;
  reopen_timer_.bind([](void* self) { static_cast<SendConnection*>(self)->reopen_due(); }, this);
  stream_timer_.bind([](void* self) { static_cast<SendConnection*>(self)->look_after_stream(); },
                     this);
  better_timer_.bind([](void* self) { static_cast<SendConnection*>(self)->look_for_better(); },
                     this);
  failback_timer_.bind(
      [](void* self) {
        auto* mine = static_cast<SendConnection*>(self);
        mine->choose_lanes();
        mine->pump();
      },
      this);
}

SendConnection::~SendConnection() {
  channel_->serve_by(nullptr);
  if (context_ != nullptr) {
    context_->timers().cancel(reopen_timer_);
    context_->timers().cancel(failback_timer_);
    context_->timers().cancel(better_timer_);
    context_->timers().cancel(stream_timer_);
  }
}

void SendConnection::begin() {
  arm_deadline(options_.timeout);
  try_route();
}

std::string SendConnection::wanted_peer() const {
  const Route& route = options_.routes[std::min(route_, options_.routes.size() - 1)];
  return address_text(route.to) +
         (route.from.ss_family == 0 ? "" : " from " + address_text(route.from));
}

void SendConnection::note_route_error(const Error& error) {
  route_errors_ +=
      fmt::format("{}{}: {}", route_errors_.empty() ? "" : "; ", wanted_peer(), error.message());
}

void SendConnection::try_route() {
  context_->request_stream_turns(1000);
  while (route_ < options_.routes.size()) {
    const Route& route = options_.routes[route_];
    const auto* from =
        route.from.ss_family == 0 ? nullptr : reinterpret_cast<const sockaddr*>(&route.from);
    auto stream =
        context_->streams().connect_tcp(reinterpret_cast<const sockaddr*>(&route.to), from, this);
    if (stream) {
      late_hello_.on_dial(context_->now());
      stream_ = std::move(*stream);
      return;
    }
    note_route_error(stream.error());
    ++route_;
  }
  fail_connection(
      fail(Errc::remote, fmt::format("no address of the peer can be reached: {}", route_errors_)),
      false);
}

void SendConnection::on_stream_open(Stream& stream) {
  auto local = stream.local_address();
  if (!local) {
    fail_connection(local.error());
    return;
  }
  const Config& config = context_->config();
  auto decide = [&](int64_t setting, int max) {
    return static_cast<uint8_t>(setting >= 0 ? setting
                                             : std::clamp(options_.traffic_class, 0, max));
  };
  traffic_class_ = decide(config.ib_traffic_class, 255);
  service_level_ = decide(config.ib_service_level, 15);
  const bool verbs = attachment_.kind == fabric::FabricKind::verbs;
  const auto count = static_cast<size_t>(verbs ? config.ib_qps : config.dgram_paths);
  records_ = std::make_unique<SizeRecords>();
  if (auto made = make_paths(*local, count, true); !made) {
    fail_connection(made.error());
    return;
  }
  send_hello();
}

/// The limit only sinks: what began as recorded ends so.
void SendConnection::on_path_made(const Lane& lane) {
  const fabric::Path& path = *lane.owned.path;
  if (lane.at.kind == fabric::FabricKind::verbs && path.may_reorder()) {
    record_above_ =
        std::min(record_above_, static_cast<uint32_t>(context_->config().ib_ar_threshold));
  }
  // Longer than one write may be, a chunk takes several; its length is recorded then too.
  record_above_ = std::min(record_above_, path.write_bytes_max());
}

void SendConnection::send_hello() {
  Hello hello;
  hello.nonce = options_.nonce;
  hello.kind = attachment_.kind;
  hello.traffic_class = traffic_class_;
  hello.service_level = service_level_;
  hello.cts_address = reinterpret_cast<uint64_t>(cts_->data());
  hello.cts_key = lanes_.front().tables.written_key;
  hello.rejoin = rejoin_point();
  hello.backup = context_->config().enable_backup;
  hello.shadows = static_cast<uint8_t>(context_->config().shadow_paths);
  hello.host = host_name();
  hello.paths = path_ends();
  said_hello_ = true;
  late_hello_.on_hello(context_->now());
  send_plain(encode(hello));
  context_->request_stream_turns(1000);
}

void SendConnection::on_control(const ControlReader::Message& message) {
  switch (message.type) {
    case ControlType::welcome:
      on_welcome(message.payload);
      return;
    case ControlType::close:
      on_peer_closed(message.payload);
      return;
    case ControlType::reject:
    case ControlType::failure:
      fail_as_told(decode_refusal(message.payload));
      return;
    case ControlType::suspect:
    case ControlType::fenced:
    case ControlType::rebuilt:
      on_path_message(message);
      return;
    case ControlType::hello:
    case ControlType::down:
    case ControlType::rebuild:
    case ControlType::confirm:
    case ControlType::rejoin:
    case ControlType::retire:
    case ControlType::probe:
    case ControlType::present:
    case ControlType::absent:
    case ControlType::ask:
      break;
  }
  fail_connection(fail(Errc::remote, "unexpected message on the control stream"));
}

void SendConnection::on_welcome(std::span<const std::byte> payload) {
  const auto welcome = decode_welcome(payload);
  if (!welcome || lanes_.empty() || std::exchange(welcomed_, true) ||
      (welcome->version == control_version && welcome->paths.size() != lanes_.size())) {
    fail_connection(fail(Errc::remote, "malformed or repeated welcome on the control stream"));
    return;
  }
  if (welcome->version != control_version) {
    fail_connection(fail(
        Errc::remote, fmt::format("the peer speaks protocol version {}, this one {}; install the "
                                  "same nccl-ha on both",
                                  welcome->version, control_version)));
    return;
  }
  peer_host_ = welcome->host;
  peer_process_ = welcome->rejoin.process.pid;
  sizes_address_ = welcome->sizes_address;
  const Config& config = context_->config();
  backup_ = welcome->backup && config.enable_backup;
  if (backup_) {
    rejoin_.prepare(*context_, ControlType::rejoin, rejoin_ways(welcome->rejoin), welcome->rejoin);
  }
  places_ = provider_.places(attachment_);
  candidates_ = ha::ShadowCandidates(ha::rank_shadows(rails(), welcome->rails));
  shadows_ = candidates_.empty() || config.shadow_paths == 0 ? uint8_t{0} : welcome->shadows;
  if (auto connected = connect_paths(welcome->paths, welcome->sizes_key); !connected) {
    fail_connection(connected.error());
    return;
  }
  end_handshake();
}

void SendConnection::on_paths_ready() {
  serving_end_ = primaries_;
  begin_recovery();
}

void SendConnection::on_usable() {
  NHA_LOG_INFO("connected to {} over {}", peer_text(), paths_text());
  context_->recorder().note(TraceEvent::actor_opened, id().index, 0, 0);
  channel_->serve_by(this);
  channel_->set_ready();
}

void SendConnection::on_deadline() {
  fail_connection(
      fail(Errc::timed_out,
           fmt::format("connecting to {} took longer than {} ms "
                       "(HA_NCCL_CONNECT_TIMEOUT_MS); {}",
                       peer_text(), options_.timeout.count() / 1'000'000,
                       !need_.empty() ? "no path came up, the last one: " + need_
                       : said_hello_  ? "the peer does not answer: is its process alive?"
                                      : "no TCP connection: check routes and firewalls")));
}

void SendConnection::on_peer_gone(const Error& error) {
  if (!said_hello_ && route_ + 1 < options_.routes.size()) {
    note_route_error(error);
    stream_.reset();
    reader_ = {};
    ++route_;
    try_route();
    return;
  }
  if (said_hello_ && peer_host_.empty() && late_hello_.dial_again()) {
    NHA_LOG_INFO("connecting to {} again: this process stood still for {} ms", peer_text(),
                 late_hello_.took().count() / 1'000'000);
    said_hello_ = false;
    stream_.reset();
    reader_ = {};
    lanes_.clear();
    try_route();
    return;
  }
  const bool refused = said_hello_ && !ready_ && error.code == Errc::closed;
  fail_connection(
      fail(Errc::remote,
           refused ? std::string("the peer closed the connection during the handshake: its listen "
                                 "is gone, or what answered is no nccl-ha")
                   : fmt::format("the peer is gone: {}", error.message())),
      false);
}

/// A caller whose requests are all done may close; one who gives up in the middle promises nothing.
CloseNotice SendConnection::last_words() const {
  for (uint16_t i = 0; channel_ && i < sends_max; ++i) {
    if (channel_->slot(i).state.load(std::memory_order_acquire) == RequestState::pending) {
      return {};
    }
  }
  return {channel_ ? channel_->filled_groups() : 0};
}

void SendConnection::on_peer_closed(std::span<const std::byte> payload) {
  const auto notice = decode_close(payload);
  const Error why = fail(Errc::remote, "the peer closed the connection");
  linger_.on_last_words();
  part({}, why, false);
  // The receiver closed after its last group.  Its acknowledgements may have been lost with it, so
  // what it says it received counts as acknowledged; anything later will never arrive.
  for (uint16_t i = 0; notice && i < sends_max; ++i) {
    SendRequest& request = channel_->slot(i);
    if (request.state.load(std::memory_order_acquire) == RequestState::pending &&
        request.group <
            notice->groups_completed + (ha::mutated(ha::Mutation::close_counts_one_more) ? 1 : 0)) {
      request.state.store(RequestState::done, std::memory_order_release);
    }
  }
  channel_->set_established();  // it accepted: the first use fails, not the connecting
  channel_->set_failed(why);
}

void SendConnection::on_doorbell() { pump(); }

[[gnu::hot]] void SendConnection::on_submitted() {
  if (ready_ && !failed_ && !finished_) [[likely]] {
    post_all();
  }
}

void SendConnection::pump() { post_all(); }

[[gnu::always_inline]] inline void SendConnection::post_all() {
  while (!failed_ && (cursor_.request != nullptr || next_work())) {
    if (!post_next()) {
      return;
    }
  }
}

/// What has to go again goes first: the receiver may wait for nothing else.
[[gnu::always_inline]] inline bool SendConnection::next_work() {
  if (!replay_.empty()) [[unlikely]] {
    const Chunk again = replay_.front();
    replay_.pop_front();
    cursor_ = {&channel_->slot(again.request), again.chunk, again.chunk + 1U, 0};
    return true;
  }
  uint16_t index = 0;
  if (!channel_->next_submitted(&index)) {
    return false;
  }
  begin_request(index);
  return true;
}

[[gnu::always_inline]] inline void SendConnection::begin_request(uint16_t index) {
  SendRequest& request = channel_->slot(index);
  const auto lanes = static_cast<uint32_t>(serving_end_ - serving_begin_);
  if (lanes > 1 && request.size >= context_->config().ib_split_threshold) {
    request.split.by_weight(request.size, std::span(equal_weights).first(lanes));
  } else {
    request.split.whole(request.size);
  }
  request.ledger.begin(request.split.count());
  acknowledged_.begin(request.group, request.position);
  cursor_ = {&request, 0, request.split.count(), 0};
  context_->recorder().note(TraceEvent::transfer_posted, id().index, request.group, request.size);
}

/// Moves next_lane_ to a lane that can be used; false when there is none.
bool SendConnection::pick_lane() {
  for (size_t tried = serving_begin_; tried < serving_end_; ++tried) {
    next_lane_ = next_lane_ + 1 >= serving_end_ ? serving_begin_ : next_lane_ + 1;
    if (lanes_[next_lane_].usable) {
      return true;
    }
  }
  return false;
}

/// The keys of a request's memory on a lane over another device; false: the peer has not told its
/// own yet, or the device does not take the memory.
bool SendConnection::translate(const SendRequest& request, const Lane& lane, Keys& keys) {
  keys.remote = shadow_keys_.key(request.group, request.position, lane.epoch);
  if (request.size == 0) {
    return true;
  }
  if (keys.remote == 0 && ha::mutated(ha::Mutation::keys_not_awaited)) {
    keys.remote = request.remote_key;
  }
  if (keys.remote == 0 || lane.rejected) {
    return false;
  }
  auto here = provider_.keys_on(lane.at, domain_, attachment_, request.key, true);
  if (!here) {
    const Error& why = reject(next_lane_, here.error());
    reject_end(next_lane_, ha::ShadowCandidates::End::local, why.message());
    return false;
  }
  keys.local = here->local_key;
  return true;
}

/// Posts the next piece of the chunk at hand; false when no path has room for it now.
[[gnu::always_inline]] inline bool SendConnection::post_next() {
  if (!lanes_[next_lane_].usable && !pick_lane()) [[unlikely]] {
    return false;  // it waits for a path
  }
  SendRequest& request = *cursor_.request;
  Lane& lane = lanes_[next_lane_];
  fabric::Path& path = lane.path();
  const uint32_t begin = request.split.begin(cursor_.chunk);
  const uint32_t bytes = request.split.bytes(cursor_.chunk);
  const bool recorded = bytes > record_above_;
  Keys keys{request.key, request.remote_key};
  if (lane.foreign_keys && !translate(request, lane, keys)) [[unlikely]] {
    if (failed_ || cursor_.offset != 0 || !primary_usable()) {
      return false;  // the announcement that brings it goes on
    }
    // The peer saw them come back before it saw that the shadow was needed, and will tell no key.
    failback_.give_way(context_->now());
    move_traffic();
    return true;
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
    ++lane.writes_open;
    lane.bytes_open += piece;
    cursor_.offset += piece;
    request.ledger.give(cursor_.chunk, static_cast<uint8_t>(next_lane_));
    return true;
  }
  if (recorded) {
    auto& record = records_->bytes[request.group % cts_slots][request.position][cursor_.chunk];
    record = bytes;
    immediate.kind = ImmediateKind::recorded;
    post.gather_count = 1;
    post.gathers[0] = {reinterpret_cast<const std::byte*>(&record), sizeof record,
                       lane.tables.source_key};
    post.remote_address =
        sizes_address_ + static_cast<uint64_t>(reinterpret_cast<std::byte*>(&record) -
                                               reinterpret_cast<std::byte*>(records_.get()));
    post.remote_key = lane.tables.table_key;
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
  post.last = cursor_.chunk + 1 == cursor_.end && replay_.empty() && !channel_->any_submitted();
  if (path.post_write(post) != Errc::ok) {
    return false;  // room comes with a completion; a broken path reports by itself
  }
  ++lane.writes_open;
  lane.bytes_open += recorded ? 0 : bytes;
  watch_work();
  request.ledger.give(cursor_.chunk, static_cast<uint8_t>(next_lane_));
  cursor_.offset = 0;
  if (++next_lane_ >= serving_end_) {
    next_lane_ = serving_begin_;
  }
  if (++cursor_.chunk == cursor_.end) {
    cursor_.request = nullptr;
  }
  return true;
}

[[gnu::hot, gnu::noinline]] void SendConnection::on_completion(
    const fabric::Completion& completion) {
  if (failed_ || finished_) {
    on_late_completion(completion);
    return;
  }
  const size_t at = lane_of(completion.path);
  Lane& lane = lanes_[at];
  const bool good = completion.status == fabric::CompletionStatus::ok;  // else its state says why
  if (on_control_completion(completion, lane)) [[unlikely]] {
    if (!lane.usable && !failed_ && !finished_) {
      look_whether_drained(at);
    }
    return;
  }
  if (completion.kind == fabric::CompletionKind::write) {
    --lane.writes_open;
    lane.bytes_open -= std::min<uint64_t>(lane.bytes_open, completion.bytes);
    if (good) {
      (ha::mutated(ha::Mutation::life_on_first_lane) ? lanes_.front() : lane).health.show_life();
      if (completion.id != piece_id) {
        SendRequest& request = channel_->slot(static_cast<uint16_t>(completion.id));
        const auto chunk = static_cast<uint32_t>(completion.id >> 16);
        if (!ha::mutated(ha::Mutation::acknowledgement_not_noted)) {
          acknowledged_.note(request.group, request.position, chunk, static_cast<uint8_t>(at));
        }
        if (request.ledger.acknowledge(chunk)) {
          request.state.store(RequestState::done, std::memory_order_release);
        }
      }
      if (cursor_.request != nullptr) [[unlikely]] {
        pump();
      }
    }
  } else {
    if (good) {
      on_clear_to_send(completion, lane);
    } else {
      --lane.credits_open;
    }
  }
  if (!lane.usable) [[unlikely]] {
    look_whether_drained(at);
  }
}

/// A completion that tells of nothing but one message's place that was found in memory before.
[[gnu::always_inline]] inline bool SendConnection::tells_of_found(
    const fabric::Completion& completion, const Lane& lane) const {
  const Announcement found{static_cast<uint32_t>(told_groups_), static_cast<uint32_t>(told_entry_),
                           lane.epoch};
  return told_groups_ != channel_->published_groups() && completion.bytes == sizeof(CtsEntry) &&
         completion.has_immediate && completion.immediate == found.pack();
}

[[gnu::hot, gnu::noinline]] void SendConnection::on_clear_to_send(
    const fabric::Completion& completion, Lane& lane) {
  if (tells_of_found(completion, lane)) {
    note_shadow_keys(told_groups_, std::span(*cts_).subspan(told_entry_, 1));
    ++told_groups_;
    told_entry_ = (told_entry_ + 1) % cts_entries;
    on_good_clear_to_send(lane);
    return;
  }
  const uint64_t next = channel_->published_groups();
  const Announcement announced = Announcement::unpack(completion.immediate);
  const size_t count = completion.bytes / sizeof(CtsEntry);
  // After a path was lost the receiver announces again what it cannot know to have arrived.
  const uint64_t again = ha::mutated(ha::Mutation::groups_not_wrapped)
                             ? next - announced.group
                             : Immediate::group_distance(announced.group, next);
  bool good = completion.has_immediate && Immediate::same_epoch(completion.immediate, lane.epoch) &&
              Immediate::unpack(completion.immediate).kind == ImmediateKind::clear_to_send &&
              again <= std::min<uint64_t>(next, Immediate::groups_told_apart / 2) && count >= 1 &&
              completion.bytes == count * sizeof(CtsEntry) &&
              announced.first_entry + count <= cts_entries;
  std::span<const CtsEntry> left;
  if (good) {
    left = std::span(*cts_).subspan(announced.first_entry, count);
  }
  uint64_t end = next - again;
  for (; good && !left.empty(); ++end) {
    if (end < next && left.front().group > end) {
      // So late that the ring holds other groups at its place, which the receiver writes once all
      // of these are done.
      on_good_clear_to_send(lane);
      return;
    }
    const size_t taken = end < next ? channel_->known_group(left, end) : channel_->publish(left);
    good = taken != 0;
    note_shadow_keys(end, left.first(taken));
    left = left.subspan(taken);
  }
  if (!good) {
    fail_connection(fail(Errc::remote, "the peer sent a malformed clear-to-send"));
    return;
  }
  if (const uint64_t news = channel_->published_groups() - next; news != 0) {
    context_->recorder().note(TraceEvent::cts_received, id().index, next, news);
    next_entry_ = (announced.first_entry + count) % cts_entries;
  }
  if (end > told_groups_) {
    told_groups_ = end;
    told_entry_ = (announced.first_entry + count) % cts_entries;
  }
  on_good_clear_to_send(lane);
}

[[gnu::always_inline]] inline void SendConnection::on_good_clear_to_send(Lane& lane) {
  replace_credit(lane);
  lane.health.show_life();
  if (lanes_[next_lane_].foreign_keys) [[unlikely]] {
    pump();  // it may have waited for a key
  }
}

/// The entry is there before the completion that tells of it, and its lane's way to here is longer.
[[gnu::hot]] bool SendConnection::poll_cts() {
  const uint64_t next = channel_->published_groups();
  if (attachment_.kind != fabric::FabricKind::verbs || next - told_groups_ >= cts_found_ahead_max) {
    return false;
  }
  const size_t count = channel_->publish_if_there(std::span(*cts_).subspan(next_entry_));
  if (count == 0) {
    return false;
  }
  note_shadow_keys(next, channel_->entries_of(next).first(count));
  context_->recorder().note(TraceEvent::cts_received, id().index, next, 1);
  next_entry_ = (next_entry_ + count) % cts_entries;
  return true;
}

[[gnu::always_inline]] inline void SendConnection::note_shadow_keys(
    uint64_t number, std::span<const CtsEntry> entries) {
  if (!lanes_.back().shadow || attachment_.kind != fabric::FabricKind::verbs) [[likely]] {
    return;
  }
  shadow_keys_.note(number, entries);
}

}  // namespace nccl_ha
