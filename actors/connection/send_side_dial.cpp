// From the first dial to the welcome: which route, how long, and when all of it begins anew.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "actors/connection/send_side.h"
#include "runtime/base/log.h"

namespace nccl_ha {
namespace {

/// How often is a stream looked at whose peer has not answered.
constexpr Duration answer_look_interval = std::chrono::milliseconds(250);

}  // namespace

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
      attempt_.begun = state_.context->moment();
      state_.context->timers().arm(route_timer_, state_.context->now() + answer_look_interval);
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

/// A peer may be slow, but its host confirms what it gets.  Where it does not, all the way to the
/// welcome, a cable may be cut, which is all there is to hear of that; and who has not shown its
/// key for so long takes this side's for none.
void SendSide::on_route_timer() {
  if (state_.phase != ConnectionPhase::handshake || welcomed_) {
    return;
  }
  const auto key_limit = std::chrono::milliseconds(state_.context->config().handshake_timeout_ms);
  const bool open = attempt_.said_hello || paths_.size() != 0;
  const bool lost = control_.unheard_for() >= ha::RouteRounds::patience ||
                    (!open && state_.context->moment().ran_since(attempt_.begun) >= key_limit);
  // Without a token the acceptor takes a second hello for another connection's.
  if (!lost || (attempt_.said_hello && !control_.has_token())) {
    state_.context->timers().arm(route_timer_, state_.context->now() + answer_look_interval);
    return;
  }
  note_route_error(
      fmt::format("no answer for {} ms", ha::RouteRounds::patience.count() / 1'000'000));
  rounds_.on_silence();
  begin_anew(Duration(0));
}

/// Before the hello, or in answer to it.
void SendSide::on_route_error(const Error& error) {
  attempt_.said_hello = false;
  state_.context->timers().cancel(route_timer_);
  note_route_error(error.message());
  control_.drop_stream();
  paths_.clear();
  rounds_.on_error();
  try_route();
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
  if (attempt_.said_hello) {
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
  const bool was_open = attempt_.said_hello || paths_.size() != 0 || error.code == Errc::closed;
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
           : attempt_.said_hello ? fmt::format("the peer is gone: {}", error.message())
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

/// A door that many unknown peers besiege may have taken this side for one of them, as may one that
/// this process kept waiting.
void SendSide::dial_again(const Error& error) {
  NHA_LOG_DEBUG("connecting to {} again, as the stream ended before the welcome: {}",
                state_.owner.peer_text(), error.message());
  early_end_ = error.message();
  begin_anew(rounds_.on_early_end(state_.context->random()));
}

/// Before the welcome: as if nothing had been said, which the acceptor takes for the same
/// connection.
void SendSide::begin_anew(Duration in) {
  attempt_.said_hello = false;
  control_.drop_stream();
  paths_.clear();
  state_.context->timers().cancel(route_timer_);
  state_.context->timers().arm(again_timer_, state_.context->now() + in);
}

}  // namespace nccl_ha
