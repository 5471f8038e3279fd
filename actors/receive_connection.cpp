// The accepted side: checks who knocks, announces receive buffers, counts what arrives.
#include "actors/receive_connection.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "actors/listener.h"
#include "runtime/check.h"
#include "runtime/engine.h"
#include "runtime/host.h"
#include "runtime/log.h"

namespace nccl_ha {
namespace {

std::atomic<uint64_t> next_domain{uint64_t{1} << 32};

// Announced and not yet arrived: below the first number a new receive announces what is held back,
// below the second an arrival does, for a caller that posts no more.
constexpr uint64_t announced_ahead = 4;
constexpr uint64_t announced_least = 2;

constexpr Duration hello_grace = std::chrono::milliseconds(100);

/// A connector that lives has made a new stream by then.
constexpr Duration probe_after = std::chrono::milliseconds(100);

}  // namespace

ReceiveConnection::ReceiveConnection(fabric::Provider& provider, Engine& engine, size_t worker,
                                     int fd, size_t device, std::shared_ptr<ListenChannel> listener)
    : Connection(provider, engine, worker), fd_(fd), listener_(std::move(listener)) {
  attachment_.device = device;
  receives_ = static_cast<uint32_t>(sends_max);
  tail_timer_.bind([](void* self) { static_cast<ReceiveConnection*>(self)->look_at_tail(); }, this);
  flush_timer_.bind([](void* self) { static_cast<ReceiveConnection*>(self)->flush_waiting(); },
                    this);
}

ReceiveConnection::~ReceiveConnection() {
  if (channel_) {
    channel_->serve_by(nullptr);
  }
  if (fd_ >= 0) {
    close(fd_);
  }
  if (!welcome_) {
    listener_->end_pending();
  }
  if (context_ != nullptr) {
    context_->timers().cancel(flush_timer_);
    context_->timers().cancel(tail_timer_);
  }
}

CloseNotice ReceiveConnection::last_words() const {
  return {ha::mutated(ha::Mutation::close_says_posted) ? groups_posted_ : groups_completed_};
}

void ReceiveConnection::on_stream_lost(const Error& why) {
  if (tail_.under_way()) {
    return;  // whoever closed needs it no more
  }
  // The connector makes the new one; whether it still is, this side has to find out itself.
  if (!ha::mutated(ha::Mutation::probe_not_sent)) {
    rejoin_.start(probe_after, why);
  }
}

void ReceiveConnection::begin() {
  arm_deadline(std::chrono::milliseconds(context_->config().handshake_timeout_ms));
  context_->request_stream_turns(1000);
  auto stream = context_->streams().adopt_fd(std::exchange(fd_, -1), this);
  if (!stream) {
    NHA_LOG_WARN_LIMITED("listener: cannot use an accepted connection: {}",
                         stream.error().message());
    finish();
    return;
  }
  stream_ = std::move(*stream);
}

void ReceiveConnection::reject_peer(const char* why) {
  NHA_LOG_WARN_LIMITED("listener: rejected an unauthenticated peer at {}: {}", peer_text(), why);
  finish();
}

void ReceiveConnection::on_deadline() {
  if (!welcome_ && !std::exchange(overdue_, true)) {
    // If this process stood still, the hello is there and was only not read yet.
    arm_deadline(hello_grace);
    context_->request_stream_turns(1000);
    return;
  }
  if (!welcome_) {
    reject_peer("it did not say hello in time");
    return;
  }
  Connection::on_deadline();
}

void ReceiveConnection::on_peer_gone(const Error& error) {
  if (!welcome_) {
    reject_peer("it closed or sent something else than a hello");
    return;
  }
  fail_connection(fail(Errc::remote, fmt::format("the peer is gone: {}", error.message())), false);
}

void ReceiveConnection::on_control(const ControlReader::Message& message) {
  if (!welcome_) {
    if (message.type != ControlType::hello) {
      reject_peer("its first message is no hello");
    } else {
      on_hello(message.payload);
    }
    return;
  }
  switch (message.type) {
    case ControlType::close:
      on_peer_closed(message.payload);
      return;
    case ControlType::failure:
      fail_as_told(decode_refusal(message.payload));
      return;
    case ControlType::down:
    case ControlType::suspect:
    case ControlType::rebuild:
      on_path_message(message);
      return;
    case ControlType::hello:
    case ControlType::welcome:
    case ControlType::reject:
    case ControlType::fenced:
    case ControlType::rebuilt:
    case ControlType::confirm:
    case ControlType::rejoin:
    case ControlType::retire:
    case ControlType::probe:
    case ControlType::present:
    case ControlType::absent:
    case ControlType::ask:
      fail_connection(fail(Errc::remote, "unexpected message on the control stream"));
      return;
  }
}

void ReceiveConnection::on_hello(std::span<const std::byte> payload) {
  const auto hello = decode_hello(payload);
  if (!hello || hello->nonce != listener_->nonce()) {
    reject_peer(hello ? "it does not know this listener's nonce" : "its hello is malformed");
    return;
  }
  peer_host_ = hello->host;
  peer_process_ = hello->rejoin.process.pid;
  welcome_ = true;
  listener_->end_pending();
  if (hello->version != control_version) {
    const Refusal refusal{
        Errc::remote, fmt::format("protocol version {} here, {} there; install the same nccl-ha on "
                                  "both hosts",
                                  control_version, hello->version)};
    send_plain(encode(ControlType::reject, refusal));
    fail_connection(fail(Errc::remote, refusal.text), false);
    return;
  }
  const fabric::NetDevice& device = provider_.devices()[attachment_.device];
  const bool no_fallback = fabric::fabric_is_forced(context_->config());
  if (hello->kind != device.kind && (hello->kind != fabric::FabricKind::datagram || no_fallback)) {
    const Refusal refusal{
        Errc::remote, fmt::format("the peer wants {}, but {} on {} uses {}{}", to_text(hello->kind),
                                  device.name, host_name(), to_text(device.kind),
                                  no_fallback ? " and HA_NCCL_FABRIC allows nothing else" : "")};
    send_plain(encode(ControlType::reject, refusal));
    fail_connection(fail(Errc::remote, refusal.text), false);
    return;
  }
  attachment_.kind = hello->kind;
  backup_ = hello->backup && context_->config().enable_backup;
  arm_deadline(std::chrono::milliseconds(context_->config().connect_timeout_ms));
  domain_ = next_domain.fetch_add(1, std::memory_order_relaxed);
  channel_ = std::make_shared<ReceiveChannel>(domain_, attachment_, context_->worker(), engine_);
  staging_ = std::make_unique<CtsRing>();
  cts_address_ = hello->cts_address;
  auto local = stream_->local_address();
  if (!local) {
    fail_connection(local.error());
    return;
  }
  sizes_ = std::make_unique<SizeRecords>();
  flushes_ = attachment_.kind == fabric::FabricKind::verbs &&
             (device.peer_memory || device.dmabuf || context_->config().ib_flush != 0);
  traffic_class_ = hello->traffic_class;
  service_level_ = hello->service_level & 15U;
  if (auto made = make_paths(*local, hello->paths.size(), false); !made) {
    fail_connection(made.error());
    return;
  }
  if (auto connected = connect_paths(hello->paths, hello->cts_key); !connected) {
    fail_connection(connected.error());
    return;
  }
  places_ = provider_.places(attachment_);
  places_.resize(std::min(places_.size(), ha::rails_max));
  const auto shadows = static_cast<uint8_t>(context_->config().shadow_paths);
  shadows_ =
      backup_ ? std::min({hello->shadows, shadows, static_cast<uint8_t>(shadows_max)}) : uint8_t{0};
  Welcome welcome;
  welcome.rejoin = rejoin_point();
  welcome.host = host_name();
  welcome.sizes_address = reinterpret_cast<uint64_t>(sizes_.get());
  welcome.sizes_key = lanes_.front().tables.written_key;
  welcome.backup = backup_;
  welcome.shadows = shadows_;
  if (auto peer = stream_->peer_address(); backup_ && peer) {
    Rejoin::Way way = Rejoin::way_between(*peer, *local);
    way.proven = Rejoin::leads_to(hello->rejoin, *peer);
    rejoin_.prepare(*context_, ControlType::probe, {way}, hello->rejoin);
  }
  welcome.paths = path_ends();
  welcome.rails = rails();
  send_plain(encode(welcome));
  context_->request_stream_turns(1000);
  end_handshake();
}

void ReceiveConnection::on_paths_ready() {
  auto address = context_->worker().open_address(4);
  if (!address) {
    fail_connection(address.error());
    return;
  }
  address_ = std::move(*address);
  begin_recovery();
  if (backup_) {
    send_confirm();
  }
}

void ReceiveConnection::on_usable() {
  NHA_LOG_INFO("accepted {} over {}", peer_text(), paths_text());
  context_->recorder().note(TraceEvent::actor_opened, id().index, 1, 0);
  channel_->attach(id(), std::move(address_));
  channel_->serve_by(this);
  channel_->set_ready();
  if (!listener_->offer(channel_)) {
    fail_connection(fail(Errc::closed, "the listen was closed before the connection was accepted"));
    on_close();
  }
}

void ReceiveConnection::on_failure(const Error& error) {
  if (!told_) {
    // The real peer was there and could not be served: accept() has to report that.
    listener_->fail(error);
    finish();
  }
}

[[gnu::hot]] void ReceiveConnection::on_submitted() {
  if (ready_ && !failed_ && !finished_) [[likely]] {
    on_doorbell();
  }
}

[[gnu::hot]] void ReceiveConnection::on_doorbell() {
  uint16_t index = 0;
  while (has_room() && channel_->next_submitted(&index)) {
    ReceiveRequest& request = channel_->slot(index);
    if (request.is_flush) {
      flush(request);
    } else {
      stage(request);
    }
    if (failed_) {
      return;
    }
  }
  if (announcing_is_due(announced_ahead)) {
    announce();
  }
}

void ReceiveConnection::stage(ReceiveRequest& request) {
  if (staged_ + request.count > cts_entries) {
    if (!ha::mutated(ha::Mutation::wrapped_with_held)) {
      announce();  // one write ends where the ring does
    }
    if (failed_) {
      return;
    }
    staged_ = 0;
  }
  const uint64_t number = groups_posted_++;
  request.group = number;
  request.missing = request.count;
  request.arrived = {};
  request.chunk_count = {};
  request.bytes = {};
  open_[number % cts_slots] = &request;
  count_[number % cts_slots] = request.count;
  first_entry_[number % cts_slots] = static_cast<uint16_t>(staged_);
  // A slot is written anew only after its group has arrived, which no loss of its announcement
  // survives.
  for (uint8_t i = 0; i < request.count; ++i) {
    const ReceiveRequest::Buffer& buffer = request.buffers[i];
    CtsEntry& entry = (*staging_)[staged_++];
    entry.group = number;
    entry.address = reinterpret_cast<uint64_t>(buffer.data);
    entry.size = buffer.size;
    entry.key = buffer.key;
    entry.tag = buffer.tag;
    entry.count = request.count;
    entry.position = i;
    entry.no_speculative_placement = request.polled ? 1 : 0;
    if (shadow_keys_wanted_) [[unlikely]] {
      name_shadow_key(entry, buffer);
    }
    entry.seal();
  }
  held_entries_ += request.count;
  ++held_groups_;
  // On datagrams a small one overtakes bulk data, and acknowledgements ride on it.
  const bool holds_back = attachment_.kind == fabric::FabricKind::verbs;
  if (!holds_back || held_entries_ > announced_together - group_max) {
    announce();
  }
}

// A clear-to-send costs both sides and the network as much as any small message.  While the sender
// has places for several more messages, or for half of all there are, it needs no other, and those
// that come together go in one write.
bool ReceiveConnection::announcing_is_due(uint64_t ahead) const {
  const uint64_t open = groups_posted_ - groups_completed_;
  return held_groups_ != 0 && open - held_groups_ < std::max(ahead, open / 2);
}

void ReceiveConnection::announce() {
  if (held_groups_ == 0) {
    return;
  }
  if (lanes_[announcing_lane_].usable) {
    post_announcement(groups_posted_ - held_groups_, held_groups_, staged_ - held_entries_,
                      held_entries_);
  }  // else everything open is announced when there is a path again
  held_groups_ = 0;
  held_entries_ = 0;
}

[[gnu::hot]] void ReceiveConnection::post_announcement(uint64_t number, uint64_t groups,
                                                       uint32_t first, uint32_t entries) {
  Lane& lane = lanes_[announcing_lane_];
  fabric::WritePost post;
  post.id = number;
  post.gather_count = 1;
  post.gathers[0] = {reinterpret_cast<const std::byte*>(&(*staging_)[first]),
                     static_cast<uint32_t>(entries * sizeof(CtsEntry)), lane.tables.source_key};
  post.remote_address = cts_address_ + first * sizeof(CtsEntry);
  post.remote_key = lane.tables.table_key;
  post.has_immediate = true;
  post.immediate = Announcement{static_cast<uint32_t>(number), first, lane.epoch}.pack();
  post.unsignaled = true;
  post.host_memory = true;
  post.last = true;
  lane.health.announce();
  watch_work();
  const Errc posted = lane.path().post_write(post);
  if (posted != Errc::ok && posted != Errc::closed) {
    fail_connection(fail(Errc::internal, "a path refused a clear-to-send it has room for"));
    return;
  }
  context_->recorder().note(TraceEvent::cts_sent, id().index, number, groups);
}

[[gnu::hot, gnu::noinline]] void ReceiveConnection::on_completion(
    const fabric::Completion& completion) {
  if (failed_ || finished_) {
    on_late_completion(completion);
    return;
  }
  const size_t at = lane_of(completion.path);
  Lane& lane = lanes_[at];
  const bool good = completion.status == fabric::CompletionStatus::ok;
  if (on_control_completion(completion, lane)) [[unlikely]] {
    if (!lane.usable && !failed_ && !finished_) {
      look_whether_drained(at);
    }
    return;
  }
  switch (completion.kind) {
    case fabric::CompletionKind::write:
    case fabric::CompletionKind::send:
      break;  // announcements; the peer's messages answer them
    case fabric::CompletionKind::flush:
      --lane.writes_open;
      if (!good) {
        channel_->slot(static_cast<uint16_t>(completion.id)).flush_lost = true;
      }
      on_flushed(channel_->slot(static_cast<uint16_t>(completion.id)));
      break;
    case fabric::CompletionKind::receive:
    case fabric::CompletionKind::receive_immediate:
      if (good) {
        replace_credit(lane);
        lane.health.show_life();
        if (!take_whole(completion, lane)) {
          on_data(completion, lane);
        }
      } else {
        --lane.credits_open;
      }
      break;
  }
  if (!lane.usable) [[unlikely]] {
    look_whether_drained(at);
  }
}

/// A NIC that died can push nothing any more, so its bytes get time instead; what others brought
/// still has to be pushed.
void ReceiveConnection::on_flushed(ReceiveRequest& request) {
  if (--request.missing != 0) {
    return;
  }
  if (request.flush_lost) {
    wait_with_flush(request);
  } else {
    request.state.store(RequestState::done, std::memory_order_release);
  }
}

void ReceiveConnection::wait_with_flush(ReceiveRequest& request) {
  flushes_waiting_.push_back(request.index);
  if (any_usable() && !flush_timer_.armed()) {
    context_->timers().arm(flush_timer_, std::max(pcie_drained_at_, context_->now()));
  }
}

void ReceiveConnection::flush(ReceiveRequest& request) {
  // A read pushes only what came through its own queue pair's NIC: one for each NIC that works.
  request.missing = 0;
  request.flush_lost = false;
  if (context_->now() < pcie_drained_at_ && !ha::mutated(ha::Mutation::flushed_too_soon)) {
    wait_with_flush(request);
    return;
  }
  const auto ask = [&](size_t from, size_t to) {
    for (size_t i = from; i < std::min(to, lanes_.size()); ++i) {
      if (lanes_[i].usable) {
        // Datagrams are put in place by the processor: nothing is under way.
        return lanes_[i].at.kind != fabric::FabricKind::verbs || flush_on(lanes_[i], request);
      }
    }
    return false;
  };
  const bool own = ask(0, primaries_);
  const bool others = !(own && ha::mutated(ha::Mutation::flushed_on_primary_only)) &&
                      ask(primaries_, lanes_.size());
  if (failed_) {
    return;
  }
  if (!own && !others) {
    flushes_waiting_.push_back(request.index);  // for a path
  } else if (request.missing == 0) {
    request.state.store(RequestState::done, std::memory_order_release);
  }
}

bool ReceiveConnection::flush_on(Lane& lane, ReceiveRequest& request) {
  fabric::FlushPost post;
  post.id = request.index;
  post.address = reinterpret_cast<uint64_t>(request.buffers[0].data);
  post.remote_key = request.buffers[0].key;
  if (lane.foreign_keys) {
    if (!shadow_keys_wanted_) {
      return false;  // nothing can have come that way
    }
    post.remote_key = shadow_key(request.buffers[0]);
    if (lane.rejected) {
      return false;
    }
  }
  const Errc posted = failed_ ? Errc::closed : lane.path().post_flush(post);
  if (posted == Errc::ok) {
    ++lane.writes_open;
    ++request.missing;
  } else if (posted != Errc::closed) {
    fail_connection(fail(Errc::internal, "a path refused a flush it has room for"));
  }
  return posted == Errc::ok;
}

/// A whole message into the only buffer of the oldest group, which is what nearly all of them are;
/// false: it is something else, or wrong.
[[gnu::always_inline]] inline bool ReceiveConnection::take_whole(
    const fabric::Completion& completion, const Lane& lane) {
  ReceiveRequest* request = open_[groups_completed_ % cts_slots];
  const Immediate whole{ImmediateKind::data, static_cast<uint32_t>(groups_completed_), 0, 0, 0,
                        lane.epoch};
  if (request == nullptr || !completion.has_immediate || completion.immediate != whole.pack() ||
      request->count != 1 || request->chunk_count[0] != 0 ||
      completion.bytes > request->buffers[0].size) [[unlikely]] {
    return false;
  }
  request->arrived[0] = 1;
  request->chunk_count[0] = 1;
  request->bytes[0] = completion.bytes;
  finish_group(*request);
  return true;
}

[[gnu::noinline]] void ReceiveConnection::on_data(const fabric::Completion& completion,
                                                  Lane& lane) {
  const Immediate immediate = Immediate::unpack(completion.immediate);
  // Only the oldest open groups can be meant; compare whole group numbers, not slots.
  ReceiveRequest* request = nullptr;
  for (uint64_t number = groups_completed_; number < groups_posted_; ++number) {
    if (Immediate::same_group(immediate.group, number)) {
      request = open_[number % cts_slots];
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
        ha::mutated(ha::Mutation::sizes_of_oldest_group) ? groups_completed_ : request->group;
    bytes = sizes_->bytes[of % cts_slots][position][immediate.chunk];
  }
  if (!good || bytes > request->buffers[position].size - request->bytes[position]) {
    fail_connection(fail(Errc::remote, "the peer completed a receive that is not open"));
    return;
  }
  request->arrived[position] = ha::mutated(ha::Mutation::counter_for_bitmap)
                                   ? static_cast<uint16_t>(request->arrived[position] << 1 | 1)
                                   : static_cast<uint16_t>(request->arrived[position] | bit);
  request->chunk_count[position] = chunk_count;
  request->bytes[position] += bytes;
  if (request->arrived[position] == (1U << chunk_count) - 1 && --request->missing == 0) {
    finish_group(*request);
  }
}

[[gnu::always_inline]] inline void ReceiveConnection::finish_group(ReceiveRequest& request) {
  const uint64_t number = request.group;
  open_[number % cts_slots] = nullptr;
  context_->recorder().note(TraceEvent::transfer_completed, id().index, number, request.bytes[0]);
  request.state.store(RequestState::done, std::memory_order_release);
  const bool waited = !has_room();
  while (groups_completed_ < groups_posted_ && open_[groups_completed_ % cts_slots] == nullptr) {
    ++groups_completed_;
  }
  if (waited && has_room()) [[unlikely]] {
    on_doorbell();
  }
  if (announcing_is_due(announced_least)) {
    announce();
  }
  if (flushes_acks_ && groups_completed_ == groups_posted_) {
    // Nothing else is expected, so the caller may make no more calls for a while.
    for (Lane& one : lanes_) {
      if (one.usable && one.at.kind == fabric::FabricKind::datagram) {
        one.path().flush_acks();
      }
    }
  }
}

/// A caller who closes has taken its memory back.
bool ReceiveConnection::exposed(const Lane& lane) const {
  return lane.usable && !ends_after_linger() && groups_completed_ != groups_posted_;
}

}  // namespace nccl_ha
