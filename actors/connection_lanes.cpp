// The paths of a connection: made, met, watched, taken down; and control messages over them.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "actors/connection.h"
#include "actors/receive_connection.h"
#include "ha/error_class.h"
#include "ha/mutation.h"
#include "runtime/log.h"

namespace nccl_ha {
namespace {

/// What one attempt to replace a path may take: the peer's address may have changed meanwhile,
/// which the next attempt finds out.
constexpr Duration rebuild_limit = std::chrono::seconds(3);

/// Places for control messages and for heartbeats beside the data.
constexpr uint32_t control_posts = ControlBox::slots + 2;

/// Writes of a queue pair that may be under way: more than any link needs to be kept busy, and the
/// clear-to-sends of all open groups with those of which nobody has heard yet that they are done.
/// The device goes round in its ring of them, so that a longer one would only push other things
/// out of the caches.  Together with the fabric's own the ring has 127: devices round up to a power
/// of two, some after adding one.
constexpr uint32_t rdma_writes = 123;
static_assert(rdma_writes >=
              ReceiveConnection::groups_apart_max + rdma_writes / 4 + 1 + 2 * control_posts);

/// Receives beyond what the peer may use, so that used ones can be replaced later.
constexpr uint32_t spare_receives = 16;

}  // namespace

Result<void> Connection::make_path(Lane& lane, bool active, Duration connect_limit) {
  fabric::PathOptions options;
  options.domain = domain_;
  options.writes_max = lane.at.kind == fabric::FabricKind::verbs
                           ? rdma_writes
                           : static_cast<uint32_t>(sends_max + cts_slots) + control_posts;
  options.receives_spare = spare_receives - credits_together;
  options.receives_max = receives_ + control_posts + spare_receives;
  options.active = active;
  options.flushes = flushes_;
  options.fallback = is_fallback(lane);
  options.traffic_class = traffic_class_;
  options.service_level = service_level_;
  options.connect_limit = connect_limit;
  lane.owned.reset();
  lane.writes_open = 0;
  lane.bytes_open = 0;
  lane.credits_open = 0;
  lane.credits_owed = 0;
  flushes_acks_ = flushes_acks_ || (lane.at.kind == fabric::FabricKind::datagram &&
                                    engine_.mode() == Engine::Mode::inline_turns);
  lane.heartbeats_open = 0;
  lane.confirms_open = 0;
  lane.confirm_due = false;
  // On one of the two hosts the NIC may be the primaries' own, which the other cannot know.
  lane.foreign_keys = lane.shadow && attachment_.kind == fabric::FabricKind::verbs;
  lane.rejected = lane.rejected && ha::mutated(ha::Mutation::rejection_kept);
  if (auto equipped = equip(lane); !equipped) {
    lane.rejected = lane.shadow;
    return equipped;
  }
  auto path = provider_.create_path(*context_, lane.at,
                                    reinterpret_cast<const sockaddr*>(&lane.local), options, this);
  if (!path) {
    return path.error();
  }
  lane.owned = std::move(*path);
  for (uint32_t credit = 0; credit < options.receives_max; ++credit) {
    if (!post_credit(lane)) {
      return fail(Errc::internal, "cannot post the first receives of a path");
    }
  }
  on_path_made(lane);
  return {};
}

/// Makes this connection's own memory known to the lane's device.
Result<void> Connection::equip(Lane& lane) {
  const Tables own = tables();
  auto source = register_memory(lane.at, own.source, own.source_bytes);
  auto written = source ? register_memory(lane.at, own.written, own.written_bytes) : source;
  if (!written) {
    return written.error();
  }
  lane.tables.source_key = source->local_key;
  lane.tables.written_key = written->remote_key;
  if (!context_->config().enable_backup) {
    return {};
  }
  if (!lane.box) {
    lane.box = std::make_unique<ControlBox>();
  }
  auto box = register_memory(lane.at, lane.box.get(), sizeof *lane.box);
  if (!box) {
    return box.error();
  }
  lane.box_source_key = box->local_key;
  lane.box_written_key = box->remote_key;
  return {};
}

Result<void> Connection::remake_path(Lane& lane, bool active) {
  return make_path(lane, active, rebuild_limit);
}

Result<void> Connection::connect_path(Lane& lane, const PathEnd& peer, uint32_t table_key) {
  lane.tables.table_key = table_key;
  lane.peer_box = lane.box ? peer.control_address : 0;
  lane.peer_box_key = peer.control_key;
  return lane.path().connect(peer.address.view());
}

PathEnd Connection::path_end(Lane& lane) const {
  PathEnd end;
  if (!lane.owned.path) {
    end.missing = lane.early_failure->message();
    return end;
  }
  end.address = *PathAddress::from(lane.path().local_address());
  if (lane.box) {
    end.control_address = reinterpret_cast<uint64_t>(lane.box->incoming.data());
    end.control_key = lane.box_written_key;
  }
  return end;
}

void Connection::add_shadow_lanes() {
  if (stream_) {
    if (auto peer = stream_->peer_address(); peer) {
      peer_address_ = address_text(*peer);
    }
  }
  for (uint8_t i = 0; backup_ && i < shadows_; ++i) {
    lanes_.emplace_back().shadow = true;
  }
}

std::vector<ha::Rail> Connection::rails() const {
  const auto own = provider_.interface_of(reinterpret_cast<const sockaddr*>(&local_));
  const size_t primary = attachment_.kind == fabric::FabricKind::datagram ? own.value_or(SIZE_MAX)
                                                                          : attachment_.device;
  const auto first = std::find_if(places_.begin(), places_.end(),
                                  [&](const auto& place) { return place.number == primary; });
  std::vector<ha::Rail> rails;
  for (const fabric::Place& place : places_) {
    ha::Rail rail;
    rail.kind = static_cast<uint8_t>(place.at.kind);
    rail.number = place.number;
    rail.primary = place.number == primary;
    rail.distance = rail.primary ? uint8_t{0}
                                 : ha::pci_distance(first == places_.end() ? "" : first->pci_path,
                                                    place.pci_path);
    rail.family = place.address.family;
    rail.prefix_len = place.address.prefix_len;
    rail.address = place.address.bytes;
    rails.push_back(rail);
  }
  return rails;
}

Result<fabric::Registration> Connection::register_memory(const fabric::Attachment& at, void* base,
                                                         size_t bytes) {
  const bool per_device = at.kind == fabric::FabricKind::verbs;
  for (const OwnMemory& own : memory_) {
    const fabric::Registration& known = own.registration;
    if (own.base == base && known.kind == at.kind && (!per_device || known.device == at.device)) {
      return known;
    }
  }
  auto registration = provider_.add_memory(at, domain_, base, bytes, false);
  if (registration) {
    memory_.push_back({*registration, base});
  }
  return registration;
}

bool Connection::post_credit(Lane& lane) {
  if (lane.path().post_receive(fabric::ReceivePost{}) != Errc::ok) {
    return false;
  }
  ++lane.credits_open;
  return true;
}

void Connection::post_owed_credits(Lane& lane) {
  for (; lane.credits_owed != 0; --lane.credits_owed) {
    static_cast<void>(post_credit(lane));  // a path that is gone takes none, and needs none
  }
}

void Connection::fail_paths(const Error& why) {
  for (Lane& lane : lanes_) {
    lane.usable = false;
    if (lane.owned.path) {
      lane.path().fail(why);
    }
  }
}

bool Connection::any_usable(size_t from, size_t to) const {
  for (size_t i = from; i < std::min(to, lanes_.size()); ++i) {
    if (lanes_[i].usable) {
      return true;
    }
  }
  return false;
}

void Connection::write_stream(std::span<const std::byte> frame) {
  if (!stream_) {
    return;
  }
  if (auto written = stream_->write(frame); !written) {
    NHA_LOG_DEBUG("control stream to {}: {}", peer_text(), written.error().message());
  }
}

void Connection::write_unconfirmed(Stream& stream) {
  for (uint32_t number = sequencer_.first_open(); number != sequencer_.next(); ++number) {
    set_numbers(sequencer_.frame(number), number, sequencer_.expected());
    static_cast<void>(stream.write(sequencer_.frame(number)));
  }
}

void Connection::send_plain(const std::vector<std::byte>& frame) { write_stream(frame); }

void Connection::send_control(std::vector<std::byte> frame) {
  if (!backup_) {
    write_stream(frame);
    return;
  }
  set_numbers(frame, sequencer_.next(), sequencer_.expected());
  write_stream(frame);
  if (frame.size() > ControlBox::slot_bytes || !sequencer_.add(std::move(frame))) {
    fail_connection(fail(Errc::internal,
                         "a control message is too long, or too many wait for an "
                         "answer"),
                    false);
    return;
  }
  for (Lane& lane : lanes_) {
    push_control(lane);
  }
  on_unconfirmed();
}

void Connection::send_confirm() {
  std::vector<std::byte> frame = encode_confirm();
  set_numbers(frame, 0, sequencer_.expected());
  write_stream(frame);
  for (Lane& lane : lanes_) {
    confirm_on(lane);
  }
}

/// Writes what the peer has not taken yet, as far as there are places for it.
void Connection::push_control(Lane& lane) {
  if (!lane.usable || lane.peer_box == 0) {
    return;
  }
  lane.control_next = std::max(lane.control_next, sequencer_.first_open());
  while (lane.control_next != sequencer_.next() &&
         (lane.control_place_is_free() ||
          (ha::mutated(ha::Mutation::place_under_way) && lane.control_open < ControlBox::slots)) &&
         (lane.control_next < sequencer_.first_open() + ControlBox::slots ||
          ha::mutated(ha::Mutation::box_overrun))) {
    const std::span<std::byte> frame = sequencer_.frame(lane.control_next);
    const size_t slot = lane.control_next % ControlBox::slots;
    auto& place = lane.box->outgoing[slot];
    set_numbers(frame, lane.control_next, sequencer_.expected());
    std::memcpy(place.data(), frame.data(), frame.size());
    fabric::WritePost post;
    post.id = control_id;
    post.gather_count = 1;
    post.gathers[0] = {place.data(), static_cast<uint32_t>(frame.size()), lane.box_source_key};
    post.remote_address = lane.peer_box + slot * ControlBox::slot_bytes;
    post.remote_key = lane.peer_box_key;
    post.has_immediate = true;
    post.immediate = ControlMark{static_cast<uint8_t>(lane.control_next),
                                 static_cast<uint16_t>(sequencer_.expected()), lane.epoch}
                         .pack();
    post.host_memory = true;
    const Errc posted = lane.path().post_write(post);
    if (posted != Errc::ok) {
      lane.control_due = posted == Errc::again;
      return;
    }
    lane.control_under_way[lane.control_posted++ % ControlBox::slots] = lane.control_next;
    ++lane.writes_open;
    ++lane.control_open;
    ++lane.control_next;
  }
}

bool Connection::take_control_completion(const fabric::Completion& completion, Lane& lane) {
  const bool good = completion.status == fabric::CompletionStatus::ok;
  if (completion.kind == fabric::CompletionKind::write) {
    if (good && lane.control_due) [[unlikely]] {
      lane.control_due = false;
      push_control(lane);
      send_confirm();
    }
    if (completion.id < answer_id || completion.id > control_id) {
      return false;
    }
    --lane.writes_open;
    lane.control_open -= completion.id == control_id ? 1 : 0;
    lane.heartbeats_open -= completion.id == heartbeat_id ? 1 : 0;
    lane.confirms_open -= completion.id == mark_id || completion.id == answer_id ? 1 : 0;
    if (good) {
      if (lane.confirm_due) {
        confirm_on(lane);
      }
      if (completion.id == heartbeat_id) {
        lane.health.show_life();
      }
      push_control(lane);
    }
    return true;
  }
  if (completion.kind != fabric::CompletionKind::receive_immediate || !good ||
      !ControlMark::marks(completion.immediate)) {
    return false;
  }
  const ControlMark mark = ControlMark::unpack(completion.immediate);
  const bool message = completion.bytes != 0;
  bool right = lane.box && Immediate::same_epoch(completion.immediate, lane.epoch) &&
               completion.bytes <= ControlBox::slot_bytes &&
               (!message || completion.bytes >= control_header_bytes);
  if (right && message) {
    const auto& place = lane.box->incoming[mark.number % ControlBox::slots];
    inbox_.emplace_back(place.begin(), place.begin() + completion.bytes);
    inbox_.back().push_back(std::byte{mark.number});
    if (inbox_.size() == 1) {
      // Later: a message may end paths, and this one is speaking.
      Message wake{};
      wake.to = id();
      wake.kind = static_cast<uint32_t>(ConnectionMessage::inbox);
      context_->send_self(wake);
    }
    right = inbox_.size() <= ControlBox::slots * lanes_max;
  }
  if (!right) {
    fail_connection(fail(Errc::remote, "the peer wrote a malformed control message"));
    return true;
  }
  ++lane.marks;
  if (!ha::mutated(ha::Mutation::control_credit_lost)) {
    replace_credit(lane);
  }
  sequencer_.confirmed_low(mark.confirmed);
  if (any_unconfirmed()) {
    push_control(lane);
  }
  return true;
}

void Connection::read_inbox() {
  for (auto& frame : std::exchange(inbox_, {})) {
    const auto number = std::to_integer<uint8_t>(frame.back());
    frame.pop_back();
    ControlReader reader;
    static_cast<void>(reader.feed(frame));
    const auto message = reader.next();
    if (!hears()) {
      return;
    }
    if (reader.broken() || (message && message->number == 0)) {
      fail_connection(fail(Errc::remote, "the peer wrote a malformed control message"));
      return;
    }
    // Its place may have been written anew meanwhile, which happens only to those taken already.
    if (message && (static_cast<uint8_t>(message->number) == number ||
                    ha::mutated(ha::Mutation::box_number_not_compared))) {
      deliver(*message);
    }
  }
  if (hears() && std::exchange(confirm_due_, false)) {
    send_confirm();
  }
  look_whether_over();
}

void Connection::deliver(const ControlReader::Message& message) {
  if (linger_.under_way()) {
    hear_last(message);
    return;
  }
  if (!sequencer_.confirmed(message.confirmed)) {
    fail_connection(fail(Errc::remote, "the peer confirms control messages that it never got"));
    return;
  }
  for (Lane& lane : lanes_) {
    push_control(lane);
  }
  if (message.type == ControlType::confirm && backup_) {
    on_confirm();
    return;
  }
  if (message.type == ControlType::ask && backup_) {
    confirm_due_ = confirm_due_ || ready_;  // before that a confirmation would say that it is
    return;
  }
  if (message.type == ControlType::retire && ready_ && backup_) {
    stream_.reset();  // a better one is on its way, or here already
    on_stream_lost(fail(Errc::closed, "the peer has let it go"));
    return;
  }
  if (message.number != 0) {
    confirm_due_ = true;
    switch (sequencer_.judge(message.number)) {
      case ha::ControlSequencer::Verdict::take:
        break;
      case ha::ControlSequencer::Verdict::seen:
        return;
      case ha::ControlSequencer::Verdict::gap:
        fail_connection(fail(Errc::remote, "control messages of the peer are missing"));
        return;
    }
  }
  if (take_early(message)) [[unlikely]] {
    return;
  }
  on_control(message);
}

void Connection::take_down(size_t lane, const Error& why) {
  Lane& mine = lanes_[lane];
  if (std::exchange(mine.usable, false)) {
    NHA_LOG_WARN("path {} of the connection to {} is down: {}", lane, peer_text(), why.message());
    count_down(lane);
  } else {
    NHA_LOG_DEBUG("path {} to {} is not back yet: {}", lane, peer_text(), why.message());
  }
  if (mine.rejected) {
    budget_.resume();
  }
  need_ = without_reporter(why.message());
  context_->recorder().note(TraceEvent::path_down, id().index, lane, mine.epoch);
  if (mine.owned.path) {
    mine.path().fail(why);
  }
}

void Connection::count_down(size_t lane) {
  FailoverCounts::add(channel()->failovers.down, 1);
  down_since_[lane] = context_->now();
}

const Error& Connection::reject(size_t lane, const Error& why) {
  lanes_[lane].rejected = true;
  rejection_ = fail(
      why.code,
      fmt::format("memory cannot be registered with {}: {}", interface_of(lanes_[lane]), why.what),
      why.sys);
  Message soon{};
  soon.to = id();
  soon.kind = static_cast<uint32_t>(ConnectionMessage::rejected);
  soon.arg = static_cast<uint32_t>(lane);
  context_->send_self(soon);
  return rejection_;
}

/// Why a shadow could not be made on this host, where somebody can do something about it.
void Connection::tell_shortage(const Error& why) {
  if (ha::is_shortage(why.sys) && !std::exchange(shortage_told_, true)) {
    NHA_LOG_WARN("a path to {} that is to stand by cannot be made, another one is tried: {}",
                 peer_text(), why.message());
  }
}

PathNotice Connection::notice_of(size_t lane, const Error& why) const {
  const bool rejected = lanes_[lane].rejected && !ha::mutated(ha::Mutation::rejection_untold);
  return {static_cast<uint8_t>(lane), lanes_[lane].epoch, rejected, why.message()};
}

void Connection::take_into_use(size_t lane) {
  Lane& mine = lanes_[lane];
  mine.usable = true;
  if (!ha::mutated(ha::Mutation::health_not_begun)) {
    mine.health.begin(context_->moment());
  }
  mine.control_next = ha::mutated(ha::Mutation::backlog_withheld) ? sequencer_.next() : 0;
  mine.control_open = 0;
  mine.control_due = false;
  push_control(mine);
  arm_heartbeat();
}

void Connection::look_whether_drained(size_t lane) {
  const Lane& mine = lanes_[lane];
  if (!mine.drained() || failed_ || finished_) {
    return;
  }
  if (!mine.owned.path || mine.owned.path->state() == fabric::PathState::error) {
    on_lane_drained(lane);
  }
}

/// Nothing that the lane held may be given to another one, nor back to the caller as received.
void Connection::on_fence_failed(fabric::Path& path, const Error& error) {
  static_cast<void>(path);
  if (!failed_ && !finished_) {
    fail_connection(error);
  }
}

void Connection::watch_budget(bool in_need) {
  const auto before = budget_.ends();
  // Until the caller was told, its own time counts.
  budget_.need(in_need && told_, context_->now());
  if (primary_usable()) {
    budget_.served();
  }
  if (budget_.ends() == before || failed_) {
    return;
  }
  if (budget_.ends()) {
    context_->timers().arm(budget_timer_, *budget_.ends());
  } else {
    context_->timers().cancel(budget_timer_);
  }
}

void Connection::on_budget_spent() {
  fail_connection(
      fail(Errc::remote, fmt::format("no path came back within {} ms "
                                     "(HA_NCCL_RETRY_BUDGET_MS); the last failed with: {}",
                                     context_->config().retry_budget_ms, need_)));
}

void Connection::log_back(size_t lane) {
  if (down_since_[lane] == Instant{}) {
    NHA_LOG_INFO("path {} of the connection to {} stands by: {}", lane, peer_text(),
                 lanes_[lane].path().describe());
    return;
  }
  const Duration stall = context_->now() - down_since_[lane];
  FailoverCounts& counts = channel()->failovers;
  FailoverCounts::add(counts.back, 1);
  const auto longest = static_cast<uint64_t>(stall.count());
  counts.longest_ns.store(std::max(counts.longest_ns.load(std::memory_order_relaxed), longest),
                          std::memory_order_relaxed);
  NHA_LOG_WARN("path {} of the connection to {} is back after {} ms: {}", lane, peer_text(),
               stall.count() / 1'000'000, lanes_[lane].path().describe());
  context_->recorder().note(TraceEvent::path_up, id().index, lane,
                            static_cast<uint64_t>(stall.count()));
}

bool Connection::known_path(size_t path) {
  if (ready_ && backup_ && path < lanes_.size()) {
    return true;
  }
  fail_connection(fail(
      Errc::remote, ready_ ? "the peer speaks of a path that this connection does not have"
                           : "a path failed on the peer's side before the connection was ready"));
  return false;
}

}  // namespace nccl_ha
