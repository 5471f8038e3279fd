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

std::string SendSide::wanted_peer() const {
  const Route& route = options_.routes[std::min(route_, options_.routes.size() - 1)];
  return address_text(route.to) +
         (route.from.ss_family == 0 ? "" : " from " + address_text(route.from));
}

void SendSide::note_route_error(const std::string& error) {
  const std::string line = fmt::format("{}: {}", wanted_peer(), error);
  if (route_errors_.find(line) == std::string::npos) {
    route_errors_ += (route_errors_.empty() ? "" : "; ") + line;
  }
}

void SendSide::live_at(const fabric::Attachment& attachment, const fabric::RailDevices& devices) {
  state_.devices = devices;
  state_.attachment = attachment;
  state_.traits = state_.provider.traits(attachment);
  channel_.move_to(attachment, devices);
  paths_.begin(sender_.needs());
}

/// What is dialled cannot tell a cable that was cut from a peer that is slow; discovery can.
bool SendSide::take_relays() {
  SendOptions::Relays relays = std::exchange(options_.relays, {});
  const auto ways = relays.ways ? relays.ways() : std::nullopt;
  if (!ways) {
    options_.relays = std::move(relays);
    return false;
  }
  NHA_LOG_WARN("no cable leads to {} any more: its connection goes over relays", wanted_peer());
  control_.drop_stream();
  options_.routes = std::move(relays.routes);
  options_.ports = {};
  rounds_ = {};
  for (size_t i = 0; i < options_.routes.size(); ++i) {
    rounds_.add(i);
  }
  live_at({ways->first(), relays.kind}, *ways);
  return true;
}

void SendSide::try_route() {
  state_.context->timers().cancel(again_timer_);
  if (state_.phase != ConnectionPhase::handshake) {
    return;  // it has failed meanwhile
  }
  take_relays();
  state_.context->request_stream_turns(1000);
  while (const auto next = rounds_.current()) {
    route_ = *next;
    const auto dialled = control_.dial(options_.routes[route_]);
    if (dialled) {
      if (rounds_.any_other() || options_.relays.ways) {
        state_.context->timers().arm(route_timer_, state_.context->now() + rounds_.patience());
      }
      return;
    }
    if (dial_later(dialled.error())) {
      return;
    }
    note_route_error(dialled.error().message());
    rounds_.on_error();
  }
  state_.fail(
      fail(Errc::remote, "no address of the peer can be reached: " + out_of_reach(route_errors_)),
      false);
}

/// Nobody answers, which over a cut cable is all there is to hear.
void SendSide::on_route_timer() {
  if (state_.phase != ConnectionPhase::handshake) {
    return;
  }
  if (take_relays()) {
    return try_route();
  }
  if (!rounds_.any_other()) {
    state_.context->timers().arm(route_timer_, state_.context->now() + rounds_.patience());
    return;  // the dial may still be answered
  }
  if (rounds_.patience() == ha::RouteRounds::first_patience) {
    note_route_error(fmt::format("no answer for {} ms", rounds_.patience().count() / 1'000'000));
  }
  control_.drop_stream();
  rounds_.on_silence();
  try_route();
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

/// Before the hello.
void SendSide::on_route_error(const Error& error) {
  state_.context->timers().cancel(route_timer_);
  note_route_error(error.message());
  control_.drop_stream();
  paths_.clear();
  rounds_.on_error();
  try_route();
}

void SendSide::on_stream_open(Stream& stream) {
  state_.context->timers().cancel(route_timer_);
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
  if (!said_hello_ && paths_.size() != 0 && paths_.addresses_ready()) {
    send_hello();
  }
}

void SendSide::send_hello() {
  Hello hello;
  hello.nonce = options_.nonce;
  hello.kind = state_.attachment.kind;
  hello.traffic_class = state_.traffic_class;
  hello.service_level = state_.service_level;
  hello.rejoin = control_.rejoin_point();
  hello.backup = state_.context->config().enable_backup;
  hello.shadows = static_cast<uint8_t>(state_.context->config().shadow_paths);
  hello.rails = state_.terms;
  hello.host = host_name();
  hello.paths = paths_.ends();
  said_hello_ = true;
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
    case ControlType::absent:
    case ControlType::ask:
      break;
  }
  state_.fail(fail(Errc::remote, "unexpected message on the control stream"));
}

void SendSide::on_welcome(std::span<const std::byte> payload) {
  const auto welcome = decode_welcome(payload);
  if (!welcome || paths_.size() == 0 || std::exchange(welcomed_, true) ||
      (welcome->version == control_version && welcome->paths.size() != paths_.size())) {
    state_.fail(fail(Errc::remote, "malformed or repeated welcome on the control stream"));
    return;
  }
  if (welcome->version != control_version) {
    state_.fail(fail(Errc::remote,
                     fmt::format("the peer speaks protocol version {}, this one {}; install the "
                                 "same nccl-ha on both",
                                 welcome->version, control_version)));
    return;
  }
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
  recovery_.renewal().renew(without_rails(state_, paths_, ends_), ends_.rails,
                            ha::ShadowCandidates::End::remote, {notice->place});
}

void SendSide::on_interfaces_renewed() {
  if (state_.live() && state_.backup && welcomed_) {
    const std::vector<size_t> changed = paths_.renew_places();
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

std::string SendSide::out_of_reach(const std::string& why) const {
  const std::string& first = options_.why_not;
  return first.empty() || why.empty() ? first + why : first + "; " + why;
}

std::string SendSide::what_is_missing() const {
  const std::string& need = parts_.failover.need();
  if (!need.empty()) {
    return "no path came up, the last one: " + need;
  }
  if (std::ranges::any_of(std::as_const(paths_).lanes(), [](const Lane& lane) {
        return lane.owned.path && lane.owned.path->state() == fabric::PathState::connecting;
      })) {
    return "the peer answers over TCP, but a path hears nothing of it: check that UDP is not "
           "filtered between the hosts and that the route back leads over the same network";
  }
  if (rounds_.early_ends() != 0) {
    return fmt::format(
        "{} times the peer closed the connection before it answered: too many wait at its door, "
        "its listen is gone, or what answers is no nccl-ha ({})",
        rounds_.early_ends(), early_end_);
  }
  if (said_hello_) {
    return "the peer does not answer: is its process alive?";
  }
  if (paths_.size() != 0) {
    return "there is a TCP connection, but a path got no address";
  }
  if (!options_.why_not.empty()) {
    return "no TCP connection: " + out_of_reach(route_errors_);
  }
  return "no TCP connection: check routes and firewalls" +
         (route_errors_.empty() ? "" : " (" + route_errors_ + ")");
}

void SendSide::on_deadline() {
  const Route& route = options_.routes[std::min(route_, options_.routes.size() - 1)];
  state_.fail(fail(Errc::timed_out,
                   fmt::format("connecting to {} took longer than {} ms "
                               "(HA_NCCL_CONNECT_TIMEOUT_MS); {}",
                               state_.owner.peer_text(), options_.timeout.count() / 1'000'000,
                               parts_.liveness.after_links(
                                   what_is_missing(), !parts_.failover.need().empty(),
                                   route.from.ss_family == 0
                                       ? nullptr
                                       : reinterpret_cast<const sockaddr*>(&route.from)))));
}

void SendSide::on_peer_gone(const Error& error) {
  // A sealed stream may end before it is open for this side.
  const bool was_open = said_hello_ || paths_.size() != 0 || error.code == Errc::closed;
  if (was_open && !welcomed_) {
    dial_again(error);
    return;
  }
  if (!was_open && dial_later(error)) {
    return;
  }
  if (!was_open && options_.routes.size() > 1) {
    on_route_error(error);
    return;
  }
  state_.fail(
      fail(Errc::remote,
           rounds_.early_ends() != 0
               ? std::string("the peer closed the connection during the handshake: its listen is "
                             "gone, or what answered is no nccl-ha")
           : said_hello_ ? fmt::format("the peer is gone: {}", error.message())
                         : out_of_reach(error.message())),
      false);
}

bool SendSide::dial_later(const Error& error) {
  if (!rounds_.may_pass(error.sys, state_.context->now())) {
    return false;
  }
  note_route_error(error.message());
  control_.drop_stream();
  state_.context->timers().cancel(route_timer_);
  const Duration pause = rounds_.on_unreachable(state_.context->random());
  state_.context->timers().arm(again_timer_, state_.context->now() + pause);
  return true;
}

/// A listener that many unknown peers besiege may have taken this side for one of them, as may one
/// that this process kept waiting.
void SendSide::dial_again(const Error& error) {
  NHA_LOG_DEBUG("connecting to {} again, as the stream ended before the welcome: {}",
                state_.owner.peer_text(), error.message());
  said_hello_ = false;
  early_end_ = error.message();
  control_.drop_stream();
  paths_.clear();
  state_.context->timers().cancel(route_timer_);
  const Duration pause = rounds_.on_early_end(state_.context->random());
  state_.context->timers().arm(again_timer_, state_.context->now() + pause);
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

}  // namespace nccl_ha
