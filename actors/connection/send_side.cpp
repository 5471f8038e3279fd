#include "actors/connection/send_side.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "actors/connection/connection.h"
#include "actors/connection/rails.h"
#include "ha/shadow.h"
#include "runtime/base/host.h"
#include "runtime/base/log.h"

namespace nccl_ha {
namespace {

/// A probe that comes earlier may be about the attempt before.
constexpr Duration probe_heeded_after = std::chrono::seconds(1);
/// How long a message may wait for its confirmation before another way is tried.
constexpr Duration unconfirmed_limit = std::chrono::milliseconds(250);

}  // namespace

std::unique_ptr<Actor> make_send_connection(fabric::Provider& provider, Engine& engine,
                                            size_t worker, std::shared_ptr<SendEndpoint> endpoint,
                                            SendOptions options) {
  return std::make_unique<Connection>(
      provider, engine, worker, [&](const ConnectionParts& parts, SideOwner& owner) {
        return std::make_unique<SendSide>(parts, owner, std::move(endpoint), std::move(options));
      });
}

SendSide::SendSide(const ConnectionParts& parts, SideOwner& owner,
                   std::shared_ptr<SendEndpoint> endpoint, SendOptions options)
    : parts_(parts),
      state_(parts.state),
      paths_(parts.paths),
      control_(parts.control),
      owner_(owner),
      endpoint_(std::move(endpoint)),
      channel_(endpoint_->channel),
      options_(std::move(options)),
      sender_(parts, recovery_, channel_),
      recovery_(parts, sender_, *this) {
  stream_timer_.bind([](void* self) { static_cast<SendSide*>(self)->look_after_stream(); }, this);
  route_timer_.bind([](void* self) { static_cast<SendSide*>(self)->on_route_timer(); }, this);
  again_timer_.bind([](void* self) { static_cast<SendSide*>(self)->try_route(); }, this);
  for (size_t i = 0; i < options_.routes.size(); ++i) {
    if (!options_.routes[i].for_rejoin) {
      rounds_.add(i);
    }
  }
}

SendSide::~SendSide() {
  stop();
  endpoint_->driver.serve_by(nullptr);
}

void SendSide::stop() {
  recovery_.stop();
  if (state_.context != nullptr) {
    state_.context->timers().cancel(stream_timer_);
    state_.context->timers().cancel(route_timer_);
    state_.context->timers().cancel(again_timer_);
  }
}

void SendSide::begin() {
  state_.domain = channel_.domain();
  state_.attachment = channel_.attachment();
  state_.devices = channel_.devices();
  state_.traits = state_.provider.traits(state_.attachment);
  state_.count_in(channel_.counter_block());
  paths_.begin(sender_.needs());
  owner_.arm_deadline(options_.timeout);
  try_route();
}

void SendSide::live_at(const fabric::Attachment& attachment, const fabric::RailDevices& devices) {
  state_.devices = devices;
  state_.attachment = attachment;
  state_.traits = state_.provider.traits(attachment);
  channel_.move_to(attachment, devices);
  paths_.begin(sender_.needs());
}

/// The first path begins where the stream does, which leads over another route than the first one
/// where that failed.
Result<void> SendSide::move_to_stream(const sockaddr_storage& local) {
  const fabric::RailDevices devices =
      options_.ports.of_stream(state_.provider, state_.devices, local);
  if (devices.first() == state_.devices.first()) {
    return {};
  }
  const auto kind = state_.provider.kind_towards(devices.first(), options_.peer_kind);
  if (!kind) {
    return fail(Errc::remote, fmt::format("device {} cannot talk to the peer's, which uses {}",
                                          state_.provider.devices()[devices.first()].name,
                                          state_.provider.text(options_.peer_kind)));
  }
  live_at({devices.first(), *kind}, devices);
  return {};
}

void SendSide::on_stream_open(Stream& stream) {
  rounds_.on_open();
  auto local = stream.local_address();
  if (!local) {
    state_.fail(local.error());
    return;
  }
  if (auto moved = move_to_stream(*local); !moved) {
    on_route_error(moved.error());
    return;
  }
  state_.share(stream);
  const Config& config = state_.context->config();
  auto decide = [&](int64_t setting, int max) {
    return static_cast<uint8_t>(setting >= 0 ? setting
                                             : std::clamp(options_.traffic_class, 0, max));
  };
  state_.traffic_class = decide(config.ib_traffic_class, 255);
  state_.service_level = decide(config.ib_service_level, 15);
  state_.terms = rail_terms(state_, *local);
  if (auto made = paths_.make_first(first_address(state_, *local), first_paths(state_)); !made) {
    state_.fail(made.error());
    return;
  }
  for (const Lane& lane : paths_.lanes()) {
    if (lane.owned.path) {
      sender_.adapt_to(lane);
    } else {
      parts_.failover.set_need(*lane.early_failure);
    }
  }
  on_first_address();
}

/// The hello tells all addresses, so the slowest path is waited for.
void SendSide::on_first_address() {
  if (!attempt_.said_hello && paths_.size() != 0 && paths_.addresses_ready()) {
    send_hello();
  }
}

void SendSide::send_hello() {
  Hello hello;
  hello.nonce = options_.nonce;
  hello.attempt = ++attempt_.number;
  hello.kind = state_.attachment.kind;
  hello.traffic_class = state_.traffic_class;
  hello.service_level = state_.service_level;
  hello.rejoin = control_.rejoin_point();
  hello.backup = state_.context->config().enable_backup;
  hello.shadows = static_cast<uint8_t>(state_.context->config().shadow_paths);
  hello.rails = state_.terms;
  hello.host = host_name();
  hello.paths = paths_.ends();
  hello.shares = control_.stream()->session() != 0;
  attempt_.said_hello = true;
  attempt_.begun = state_.context->moment();
  state_.name(connection_key(hello));
  state_.note_said(state_.counters->key);
  control_.send_plain(encode(hello));
  state_.context->request_stream_turns(1000);
}

void SendSide::on_control(const ControlReader::Message& message) {
  switch (message.type) {
    case ControlType::welcome:
      on_welcome(message.payload);
      return;
    case ControlType::close:
      on_peer_closed(message.payload);
      return;
    case ControlType::reject:
    case ControlType::failure:
      owner_.refused(decode_refusal(message.payload));
      return;
    case ControlType::suspect:
    case ControlType::fenced:
    case ControlType::rebuilt:
      recovery_.on_path_message(message);
      return;
    case ControlType::link_back:
      recovery_.renewal().on_link_back(message.payload);
      return;
    case ControlType::end:
      on_end(message.payload);
      return;
    case ControlType::hello:
    case ControlType::down:
    case ControlType::rebuild:
    case ControlType::confirm:
    case ControlType::rejoin:
    case ControlType::retire:
    case ControlType::probe:
    case ControlType::present:
    case ControlType::ask:
    case ControlType::share:
    case ControlType::of:
    case ControlType::over:
      break;
    case ControlType::absent:
      if (welcomed_) {
        break;
      }
      on_route_error(fail(Errc::remote, "nothing listens there any more"));
      return;
  }
  state_.fail(fail(Errc::remote, "unexpected message on the control stream"));
}

void SendSide::on_welcome(std::span<const std::byte> payload) {
  const auto welcome = decode_welcome(payload);
  if (!welcome || paths_.size() == 0 || std::exchange(welcomed_, true) ||
      (own_versions.has(welcome->version) && welcome->paths.size() != paths_.size())) {
    state_.fail(fail(Errc::remote, "malformed or repeated welcome on the control stream"));
    return;
  }
  if (!own_versions.has(welcome->version)) {
    state_.fail(fail(Errc::remote, no_common_version({welcome->version, welcome->version})));
    return;
  }
  state_.version = welcome->version;
  state_.note_heard(state_.counters->key);
  state_.peer_host = welcome->host;
  state_.peer_process = welcome->rejoin.process.pid;
  peer_takes_eager_ = welcome->takes_eager;
  peer_address_ = first_rail_of(*welcome);
  const Config& config = state_.context->config();
  state_.backup = welcome->backup && config.enable_backup;
  state_.agreed = true;
  paths_.find_places();
  if (state_.backup) {
    control_.rejoin().prepare(*state_.context, ControlType::rejoin, rejoin_ways(*welcome),
                              welcome->rejoin);
  }
  if (!agree_on_rails(*welcome)) {
    state_.fail(fail(Errc::remote, "the peer's welcome asks for rails that nobody offered"));
    return;
  }
  ends_ = {welcome->rails, welcome->rail_ends, welcome->agreed};
  recovery_.renewal().set_candidates(without_rails(state_, paths_, ends_), ends_.of_rails);
  recovery_.renewal().set_ends(welcome->rails);
  // Also where no pair of NICs can take over yet: one may come.
  state_.shadows = config.shadow_paths == 0 ? uint8_t{0} : welcome->shadows;
  if (auto connected = paths_.connect_first(welcome->paths); !connected) {
    state_.fail(connected.error());
    return;
  }
  owner_.end_handshake();
}

void SendSide::on_end(std::span<const std::byte> payload) {
  const auto notice = decode_end(payload);
  if (!notice || !state_.backup || notice->place > ends_.rails.size()) {
    state_.fail(fail(Errc::remote, "malformed message about an address on the control stream"));
    return;
  }
  ends_.rails.resize(std::max<size_t>(ends_.rails.size(), notice->place + size_t{1}));
  ends_.rails[notice->place] = notice->rail;
  renew_rejoin_ways();
  recovery_.renewal().renew(without_rails(state_, paths_, ends_), ends_.rails,
                            ha::ShadowCandidates::End::remote, {notice->place});
}

void SendSide::on_interfaces_renewed() {
  if (state_.live() && state_.backup && welcomed_) {
    const std::vector<size_t> changed = paths_.renew_places();
    if (!changed.empty()) {
      renew_rejoin_ways();
    }
    recovery_.renewal().renew(without_rails(state_, paths_, ends_), ends_.rails,
                              ha::ShadowCandidates::End::local, changed);
  }
}

/// Which both sides do; false: the peer must not want that.
bool SendSide::agree_on_rails(const Welcome& welcome) {
  const ha::RailAgreement& agreed = welcome.agreed;
  for (size_t rail = 1; rail <= agreed.rails; ++rail) {
    if (!state_.backup || rail >= state_.terms.rails || agreed.lanes > state_.terms.lanes ||
        !paths_.place_of_rail(rail)) {
      return false;
    }
  }
  if (agreed.rails != 0 && state_.terms.mode == ha::RailMode::isolated &&
      agreed.path_class == ha::PathClass::inter_island) {
    return false;
  }
  state_.rails = agreed;
  return true;
}

void SendSide::on_settled() {
  if (state_.backup) {
    control_.remember_peer_address();
    paths_.add_rails(state_.rails);
    paths_.add_shadows(state_.shadows);
  }
  sender_.begin(peer_takes_eager_,
                options_.hints ? options_.hints : agent_hints(state_, peer_address_));
  if (!state_.backup) {
    return;
  }
  recovery_.begin();
  parts_.liveness.start();
  on_interfaces_renewed();  // of what changed meanwhile
  if (peer_ready_) {
    recovery_.renewal().make_others();
  } else {
    watch_stream();
  }
}

void SendSide::on_confirm() {
  if (!std::exchange(peer_ready_, true) && state_.ready()) {
    recovery_.renewal().make_others();
  }
}

void SendSide::on_usable() {
  NHA_LOG_INFO("connected to {} over {}", state_.owner.peer_text(), paths_.text());
  state_.note(TraceEvent::actor_opened, 0, state_.counters->key);
  recovery_.on_usable();
  endpoint_->driver.serve_by(&sender_);
  channel_.set_ready();
}

/// A caller whose requests are all done may close; one who gives up in the middle promises nothing.
CloseNotice SendSide::last_words() const {
  return sender_.idle() ? CloseNotice{channel_.filled_groups(), sender_.eager().done()}
                        : CloseNotice{};
}

/// The receiver closed after its last group.  Its acknowledgements may have been lost with it, so
/// what it says it received counts as acknowledged; anything later will never arrive.
void SendSide::on_peer_closed(std::span<const std::byte> payload) {
  const auto notice = decode_close(payload);
  const Error why = fail(Errc::remote, "the peer closed the connection");
  owner_.part_with_peer(why);
  if (notice) {
    sender_.acknowledge_all_below(notice->groups_completed);
  }
  channel_.set_established();  // it accepted: the first use fails, not the connecting
  channel_.set_failed(why);
}

/// Something has to come over the stream: that the peer is ready, a confirmation, or the answer to
/// what was confirmed.
bool SendSide::waits_for_peer() const {
  return !peer_ready_ || control_.any_unconfirmed() || recovery_.waits_for_peer();
}

void SendSide::on_steps_taken() {
  if (waits_for_peer()) {
    watch_stream();
  }
}

void SendSide::on_unconfirmed() {
  watch_stream();
  control_.write_latest_to_rejoin();
}

void SendSide::on_stream_lost(const Error& why) {
  if (state_.phase == ConnectionPhase::handshake && !welcomed_) {
    if (attempt_.said_hello &&
        state_.context->moment().ran_since(attempt_.begun) >= probe_heeded_after) {
      note_route_error("its answer does not arrive");
      rounds_.on_silence();
      begin_anew(Duration(0));
    }
    return;
  }
  state_.context->timers().cancel(stream_timer_);
  control_.rejoin().start(Duration(0), why);
}

void SendSide::on_stream_back() {
  state_.context->timers().cancel(stream_timer_);
  on_steps_taken();
}

void SendSide::watch_stream() {
  if (control_.rejoin().possible() && !control_.rejoin().running() && !stream_timer_.armed() &&
      state_.live()) {
    unconfirmed_ = control_.first_unconfirmed();
    heard_ = control_.expected();
    state_.context->timers().arm(stream_timer_, state_.context->now() + unconfirmed_limit);
  }
}

/// The network under the stream may be the one that failed, while the peer can be reached
/// elsewhere.
void SendSide::look_after_stream() {
  if (!state_.live()) {
    return;
  }
  const bool moves = control_.first_unconfirmed() != unconfirmed_ || control_.expected() != heard_;
  // Over a path that works everything gets through; one that is silent is asked.
  if (control_.stream() != nullptr && (!waits_for_peer() || moves || paths_.any_usable())) {
    if (waits_for_peer()) {
      parts_.liveness.probe_usable();
      watch_stream();
    }
    return;
  }
  control_.rejoin().start(Duration(0),
                          fail(Errc::timed_out, "what the peer should say does not come"));
}

/// The routes, that over which the stream was made first; then what the peer has told since.
std::vector<Rejoin::Way> SendSide::rejoin_ways(const Welcome& welcome) const {
  std::vector<Rejoin::Way> ways;
  for (size_t i = 0; i < options_.routes.size(); ++i) {
    const size_t at = (route_ + i) % options_.routes.size();
    const Route& route = options_.routes[at];
    ways.push_back(
        {route.to, route.from, at == route_ && Rejoin::leads_to(welcome.rejoin, route.to)});
  }
  Rejoin::add_missing(ways, ways_between(paths_.places(), welcome.rails));
  return ways;
}

/// Where the host of either side has other addresses than when they were prepared, the stream is
/// made anew between those.
void SendSide::renew_rejoin_ways() {
  Rejoin& rejoin = control_.rejoin();
  if (rejoin.add(ways_between(paths_.places(), ends_.rails))) {
    rejoin.dial_now();
  }
}

}  // namespace nccl_ha
