#include "actors/connection/receive_side.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "actors/connection/connection.h"
#include "actors/connection/rails.h"
#include "actors/listen_channel.h"
#include "runtime/base/host.h"
#include "runtime/base/log.h"
#include "runtime/engine/engine.h"

namespace nccl_ha {
namespace {

std::atomic<uint64_t> next_domain{uint64_t{1} << 32};

/// How often is looked whether a welcome has arrived; and for how long it may be on its way before
/// its connector is told so.
constexpr Duration welcome_interval = std::chrono::milliseconds(250);
constexpr Duration welcome_limit = std::chrono::seconds(1);

/// A connector that lives has made a new stream by then.
constexpr Duration probe_after = std::chrono::milliseconds(100);

}  // namespace

std::unique_ptr<Actor> make_receive_connection(fabric::Provider& provider, Engine& engine,
                                               size_t worker, const fabric::RailDevices& devices,
                                               std::shared_ptr<ListenChannel> listen,
                                               Arrival arrival) {
  return std::make_unique<Connection>(
      provider, engine, worker, [&](const ConnectionParts& parts, SideOwner& owner) {
        return std::make_unique<ReceiveSide>(parts, owner, devices, std::move(listen),
                                             std::move(arrival));
      });
}

ReceiveSide::ReceiveSide(const ConnectionParts& parts, SideOwner& owner,
                         const fabric::RailDevices& devices, std::shared_ptr<ListenChannel> listen,
                         Arrival arrival)
    : parts_(parts),
      state_(parts.state),
      paths_(parts.paths),
      control_(parts.control),
      owner_(owner),
      arrival_(std::move(arrival)),
      listen_(std::move(listen)) {
  state_.attachment.device = devices.first();
  state_.devices = devices;
  welcome_timer_.bind([](void* self) { static_cast<ReceiveSide*>(self)->look_after_welcome(); },
                      this);
  tail_timer_.bind([](void* self) { static_cast<ReceiveSide*>(self)->look_at_tail(); }, this);
}

ReceiveSide::~ReceiveSide() {
  stop();
  if (endpoint_) {
    endpoint_->driver.serve_by(nullptr);
  }
  listen_->leave(state_.id);
}

void ReceiveSide::stop() {
  if (state_.context != nullptr) {
    state_.context->timers().cancel(tail_timer_);
    state_.context->timers().cancel(welcome_timer_);
  }
  if (receiver_) {
    receiver_->flusher().stop();
  }
}

void ReceiveSide::begin() {
  control_.adopt(std::move(arrival_.stream), std::move(arrival_.reader));
  on_hello(std::exchange(arrival_.hello, {}));
  control_.read_stream();
}

/// Nobody is told: the connector never knew of this one.
void ReceiveSide::on_begun_anew() {
  NHA_LOG_INFO("{} connects anew, as no answer had reached it", state_.owner.peer_text());
  owner_.finish();
}

void ReceiveSide::on_deadline() {
  const std::string& need = parts_.failover.need();
  const std::string why = parts_.liveness.after_links(
      need.empty() ? "" : "no path came up, the last one: " + need, true);
  state_.fail(
      fail(Errc::timed_out, fmt::format("handshake with {} did not finish in time{}{}",
                                        state_.owner.peer_text(), why.empty() ? "" : "; ", why)));
}

void ReceiveSide::on_peer_gone(const Error& error) {
  if (!told_paths_) {
    // A connector that lives dials again, as nothing was agreed.
    NHA_LOG_INFO("the stream of {} ended before it was answered: {}", state_.owner.peer_text(),
                 error.message());
    owner_.finish();
    return;
  }
  state_.fail(fail(Errc::remote, fmt::format("the peer is gone: {}", error.message())), false);
}

void ReceiveSide::on_control(const ControlReader::Message& message) {
  switch (message.type) {
    case ControlType::close:
      on_peer_closed(message.payload);
      return;
    case ControlType::failure:
      owner_.refused(decode_refusal(message.payload));
      return;
    case ControlType::down:
    case ControlType::suspect:
    case ControlType::rebuild:
      if (recovery_) {
        recovery_->on_path_message(message);
      }
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
    case ControlType::link_back:
    case ControlType::end:
    case ControlType::share:
    case ControlType::of:
    case ControlType::over:
      state_.fail(fail(Errc::remote, "unexpected message on the control stream"));
      return;
  }
}

std::optional<Refusal> ReceiveSide::judge(const Hello& hello) const {
  if (!common_version(hello.versions)) {
    return Refusal{Errc::remote, no_common_version(hello.versions)};
  }
  if (state_.provider.accepts(state_.attachment.device, hello.kind)) {
    return std::nullopt;
  }
  return Refusal{Errc::remote, state_.provider.refusal(state_.attachment.device, hello.kind)};
}

void ReceiveSide::on_hello(const Hello& hello) {
  state_.peer_host = hello.host;
  state_.peer_process = hello.rejoin.process.pid;
  if (const auto vain = listen_->begin(hello, state_.id)) {
    if (*vain == state_.id) {
      on_begun_anew();
      return;
    }
    Message message{};
    message.to = *vain;
    message.kind = static_cast<uint32_t>(ConnectionMessage::begun_anew);
    state_.context->send_self(message);
  }
  if (const auto refusal = judge(hello)) {
    control_.send_plain(encode(ControlType::reject, *refusal));
    state_.fail(fail(Errc::remote, refusal->text), false);
    return;
  }
  state_.version = *common_version(hello.versions);
  if (auto made = make_paths(hello); !made) {
    state_.fail(made.error());
    return;
  }
  hello_ = hello;
  on_first_address();
}

/// The welcome tells all addresses, so the slowest path is waited for.
void ReceiveSide::on_first_address() {
  if (hello_ && paths_.size() != 0 && paths_.addresses_ready()) {
    told_paths_ = true;
    send_welcome(*hello_);
    hello_.reset();
    owner_.end_handshake();
  }
}

Result<void> ReceiveSide::make_paths(const Hello& hello) {
  const Config& config = state_.context->config();
  state_.attachment.kind = hello.kind;
  state_.devices = state_.provider.rails_of(hello.kind, state_.devices);
  state_.traits = state_.provider.traits(state_.attachment);
  state_.backup = hello.backup && config.enable_backup;
  state_.agreed = true;
  state_.traffic_class = hello.traffic_class;
  state_.service_level = hello.service_level & 15U;
  state_.domain = next_domain.fetch_add(1, std::memory_order_relaxed);
  state_.share(*control_.stream());
  owner_.arm_deadline(std::chrono::milliseconds(config.connect_timeout_ms));
  endpoint_ = std::make_shared<ReceiveEndpoint>(
      state_.domain, state_.attachment, state_.context->worker(), state_.engine, state_.devices);
  auto address = state_.context->worker().open_address(4);
  if (!address) {
    return address.error();
  }
  endpoint_->driver.attach(state_.id, std::move(*address));
  state_.count_in(endpoint_->channel.counter_block());
  state_.name(connection_key(hello));
  state_.note_heard(state_.counters->key);
  receiver_.emplace(parts_, static_cast<Receiver::Owner&>(*this), endpoint_->channel);
  recovery_.emplace(parts_, *receiver_);
  auto local = control_.stream()->local_address();
  if (!local) {
    return local.error();
  }
  paths_.begin(receiver_->needs(state_.provider.needs_flushes(state_.attachment)));
  state_.terms = rail_terms(state_, *local);
  if (auto made = paths_.make_first(first_address(state_, *local), hello.paths.size()); !made) {
    return made;
  }
  for (const Lane& lane : paths_.lanes()) {
    if (lane.early_failure) {
      parts_.failover.set_need(*lane.early_failure);
    }
  }
  return paths_.connect_first(hello.paths);
}

void ReceiveSide::send_welcome(const Hello& hello) {
  paths_.find_places();
  const auto shadows = static_cast<uint8_t>(state_.context->config().shadow_paths);
  Welcome welcome;
  welcome.version = state_.version;
  agree_on_rails(hello, welcome);
  const auto most = static_cast<uint8_t>(shadows_max - state_.rails.rails);
  state_.shadows = state_.backup ? std::min({hello.shadows, shadows, most}) : uint8_t{0};
  welcome.rejoin = control_.rejoin_point();
  welcome.host = host_name();
  welcome.takes_eager = takes_eager(state_.traits);
  welcome.backup = state_.backup;
  welcome.shadows = state_.shadows;
  auto peer = control_.stream()->peer_address();
  auto local = control_.stream()->local_address();
  if (hello.rejoin.port != 0 && peer && local) {
    Rejoin::Way way = Rejoin::way_between(*peer, *local);
    way.proven = Rejoin::leads_to(hello.rejoin, *peer);
    control_.rejoin().prepare(*state_.context, ControlType::probe, {way}, hello.rejoin);
  }
  welcome.paths = paths_.ends();
  welcome.rails = paths_.rails();
  state_.note_said(state_.counters->key);
  static_cast<void>(control_.unheard_for());  // counted from here
  control_.send_plain(encode(welcome));
  state_.context->request_stream_turns(1000);
  state_.context->timers().arm(welcome_timer_, state_.context->now() + welcome_interval);
}

/// The stream says it again less and less often, and a network that is back would not be noticed:
/// the connector is asked for another one, with which it begins anew.
void ReceiveSide::look_after_welcome() {
  if (state_.phase >= ConnectionPhase::usable) {
    return;
  }
  if (control_.unheard_for() >= welcome_limit) {
    control_.rejoin().start(Duration(0), fail(Errc::timed_out, "its answer does not arrive"));
  }
  state_.context->timers().arm(welcome_timer_, state_.context->now() + welcome_interval);
}

/// This side decides, as both would; both use it so.
void ReceiveSide::agree_on_rails(const Hello& hello, Welcome& welcome) {
  state_.rails = ha::agree(hello.rails, state_.terms, rail_lanes_max(hello.paths.size()));
  for (size_t rail = 1; rail <= state_.rails.rails; ++rail) {
    const auto place = paths_.place_of_rail(rail);
    if (!state_.backup || !place) {
      state_.rails = {state_.rails.path_class, 0, 0};
      break;
    }
    welcome.rail_ends[rail - 1] = static_cast<uint8_t>(*place);
  }
  welcome.agreed = state_.rails;
  if (state_.rails.rails == 0 && state_.devices.sout_and_sup) {
    paths_.leave_rails_out();
  }
}

void ReceiveSide::on_settled() {
  if (!state_.backup) {
    if (control_.stream() == nullptr) {
      state_.fail(fail(Errc::remote, "the peer is gone: its stream ended during the handshake"));
    }
    return;
  }
  control_.remember_peer_address();
  paths_.add_rails(state_.rails);
  paths_.add_shadows(state_.shadows);
  receiver_->announcer().begin_rails();
  recovery_->begin();
  parts_.liveness.start();
  recovery_->tell_ends();  // of what changed meanwhile
  control_.send_confirm();
}

void ReceiveSide::on_usable() {
  NHA_LOG_INFO("accepted {} over {}", state_.owner.peer_text(), paths_.text());
  state_.note(TraceEvent::actor_opened, 1, state_.counters->key);
  listen_->settle(state_.id);
  if (control_.stream() != nullptr) {
    control_.rejoin().stop();  // the welcome has arrived
  }
  endpoint_->driver.serve_by(&*receiver_);
  endpoint_->channel.set_ready();
  if (!listen_->offer(endpoint_)) {
    state_.fail(fail(Errc::closed, "the listen was closed before the connection was accepted"));
    owner_.close();
  }
}

void ReceiveSide::on_failure(const Error& error, bool told) {
  // The real peer was there and could not be served, which accept() has to report.
  if (!told) {
    listen_->fail(error);
    owner_.finish();
  }
}

/// The connector makes the new one; whether it still is, this side has to find out itself.
void ReceiveSide::on_stream_lost(const Error& why) {
  if (tail_.under_way()) {
    return;  // whoever closed needs it no more
  }
  control_.rejoin().start(probe_after, why);
}

CloseNotice ReceiveSide::last_words() const {
  if (!receiver_) {
    return {};
  }
  const OpenReceives& groups = receiver_->groups();
  return {groups.completed()};
}

bool ReceiveSide::all_done() const { return receiver_ && receiver_->groups().all_complete(); }

/// A caller who closes has taken its memory back; but of a range that somebody else has registered
/// with a NIC as well the same keys are still taken, also by datagrams that stand by for it.
bool ReceiveSide::exposed(const Lane& lane, bool closing) const {
  return lane.usable && !all_done() && (!closing || state_.traits.keys_per_device);
}

/// Everything that it completed has been acknowledged by this side, so whatever else is posted
/// stays empty for ever.  Completions that tell of it may be behind these words.
///
/// Its caller had the connection, so this side's has it too, however far it has come.
void ReceiveSide::on_peer_closed(std::span<const std::byte> payload) {
  const auto notice = decode_close(payload);
  if (!told_paths_) {
    state_.fail(fail(Errc::remote, "unexpected message on the control stream"));
    return;
  }
  if (state_.phase < ConnectionPhase::usable) {
    owner_.enter_usable();
  }
  if (notice && notice->groups_completed <= receiver_->groups().posted()) {
    tail_.begin(notice->groups_completed, state_.context->now());
    eager_expected_ = notice->eager_arrived;
  }
  look_at_tail();
}

void ReceiveSide::look_at_tail() {
  if (!state_.live()) {
    return;
  }
  const Instant now = state_.context->now();
  if (tail_.under_way() && !tail_.is_over(receiver_->groups().completed(), now)) {
    state_.context->timers().arm(tail_timer_, now + ha::CloseTail::interval);
    return;
  }
  if (tail_.under_way() && (receiver_->eager().taken() < eager_expected_ || may_flush())) {
    stay_alone();
    return;
  }
  end_with_peer();
}

/// Of what has arrived: nobody else has to be there for that either.
bool ReceiveSide::may_flush() const { return state_.provider.needs_flushes(state_.attachment); }

/// The receives for that may come at any time, and nobody has to be there for them.
void ReceiveSide::stay_alone() {
  receiver_->stay_alone();
  recovery_.reset();
  control_.rejoin().stop();
  parts_.liveness.stop();
  parts_.failover.stop();
  on_posted_alone();
}

/// Receives for which nothing is there stay empty for ever.
void ReceiveSide::on_posted_alone() {
  const bool all_taken = receiver_->eager().taken() >= eager_expected_;
  if (state_.live() && ((all_taken && !may_flush()) || !receiver_->groups().all_complete())) {
    end_with_peer();
  }
}

void ReceiveSide::on_lane_failed(size_t lane, const Error& error) {
  if (recovery_) {
    recovery_->on_lane_failed(lane, error);
  } else if (receiver_->alone()) {
    paths_.lane(lane).set_usable(false);
    receiver_->flusher().on_lane_down();
    receiver_->flusher().flush_waiting();
  }
}

void ReceiveSide::end_with_peer() {
  tail_.end();
  const Error why = fail(Errc::remote, "the peer closed the connection");
  owner_.part_with_peer(why);
  endpoint_->channel.set_failed(why);
}

}  // namespace nccl_ha
