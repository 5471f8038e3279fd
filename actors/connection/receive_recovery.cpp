#include "actors/connection/receive_recovery.h"

#include <algorithm>
#include <utility>

namespace nccl_ha {
namespace {

/// How long a connection may be without a path before it asks whether the peer lives.
constexpr Duration probe_without_path = std::chrono::milliseconds(250);

}  // namespace

ReceiveRecovery::ReceiveRecovery(const ConnectionParts& parts, Receiver& receiver)
    : state_(parts.state),
      paths_(parts.paths),
      control_(parts.control),
      failover_(parts.failover),
      receiver_(receiver) {}

void ReceiveRecovery::begin() {
  for (const Lane& lane : paths_.lanes()) {
    using State = ha::ReceiverLane::State;
    ha::ReceiverLane& one = lanes_.emplace_back(lane.elsewhere() ? State::fenced : State::opening);
    static_cast<void>(one.on_ready());
  }
}

void ReceiveRecovery::on_lane_ready(size_t lane) { take_steps(lane, lanes_[lane].on_ready(), {}); }

void ReceiveRecovery::on_lane_failed(size_t lane, const Error& error) {
  if (unanswered_[lane]) {
    PathSet::note_refusal(paths_.lane(lane), error);
    on_not_made(lane, error);
  }
  take_steps(lane, lanes_[lane].on_failed(), error);
}

void ReceiveRecovery::on_lane_drained(size_t lane) {
  if (!lanes_.empty()) {
    take_steps(lane, lanes_[lane].on_drained(), {});
  }
}

void ReceiveRecovery::on_path_message(const ControlReader::Message& message) {
  if (message.type == ControlType::rebuild) {
    on_rebuild(message.payload);
    return;
  }
  const auto notice = decode_notice(message.payload);
  if (!failover_.is_of_ours(notice)) {
    return;
  }
  const Error why = from_peer(notice->why);
  Lane& lane = paths_.lane(notice->path);
  lane.rejected =
      lane.rejected || (notice->rejected && lane.elsewhere() && notice->epoch == lane.epoch);
  if (message.type == ControlType::down) {
    state_.note_step(RoundStep::down_heard, notice->path, notice->epoch);
    take_steps(notice->path, lanes_[notice->path].on_down(notice->epoch), why);
    if (!notice->unproven && lane.owned.path) {
      lane.path().on_peer_stopped();
    }
  } else if (notice->epoch == lane.epoch) {
    on_lane_failed(notice->path, why);  // from the handshake, where it has no state to go down from
  }
}

void ReceiveRecovery::on_rebuild(std::span<const std::byte> payload) {
  const auto offer = decode_offer(payload);
  if (!failover_.is_of_ours(offer)) {
    return;
  }
  state_.note_step(RoundStep::offer_heard, offer->path, offer->epoch);
  const ha::ReceiverSteps steps = lanes_[offer->path].on_rebuild(offer->epoch);
  if (steps.open) {
    open_again(offer->path, *offer);
  } else {
    take_steps(offer->path, steps, {});
  }
}

void ReceiveRecovery::open_again(size_t lane, const PathOffer& offer) {
  Lane& mine = paths_.lane(lane);
  if (!state_.sound(lanes_[lane]) ||
      !state_.holds(lanes_[lane].epoch() == offer.epoch && !mine.usable,
                    "a new path has the epoch that was offered")) {
    return;
  }
  mine.epoch = lanes_[lane].epoch();
  if (mine.elsewhere()) {
    const auto own = paths_.place_of_rail(mine.rail);
    if (offer.rail >= paths_.places().size() || (mine.on_other_rail() && own != offer.rail)) {
      state_.fail(fail(Errc::remote, "the peer wants a path to a port that was not offered"));
      return;
    }
    paths_.move_to(mine, paths_.places()[offer.rail]);
  }
  auto made = paths_.make(mine);
  if (made) {
    made = paths_.connect(mine, offer.end);
  }
  if (!made) {
    on_not_made(lane, made.error());
    on_lane_failed(lane, made.error());
    return;
  }
  unanswered_[lane] = true;
  on_lane_address(lane);
}

void ReceiveRecovery::on_not_made(size_t lane, const Error& why) {
  if (paths_.lane(lane).rejected) {
    failover_.count_rejected();
  } else if (paths_.lane(lane).elsewhere()) {
    failover_.tell_shortage(why);
  }
}

void ReceiveRecovery::on_lane_address(size_t lane) {
  if (unanswered_[lane] && paths_.lane(lane).path().address_ready()) {
    unanswered_[lane] = false;
    answer_offer(lane);
  }
}

void ReceiveRecovery::answer_offer(size_t lane) {
  Lane& mine = paths_.lane(lane);
  PathOffer answer;
  answer.path = static_cast<uint8_t>(lane);
  answer.epoch = mine.epoch;
  answer.end = paths_.end_of(mine);
  state_.note_step(RoundStep::answer_said, lane, mine.epoch);
  control_.send(encode(ControlType::rebuilt, answer));
  state_.context->request_stream_turns(1000);
}

void ReceiveRecovery::on_domain_up(const fabric::FailureDomain& domain) {
  if (!state_.ready() || !state_.backup || domain.kind != fabric::FailureDomain::Kind::local_nic) {
    return;
  }
  const auto& places = paths_.places();
  for (size_t i = 0; i < std::min(places.size(), link_told_.size()) && state_.live(); ++i) {
    // One message about a NIC at a time: a link that comes and goes fills no queue.
    const bool first = ha::nic_of(places, i) == i;
    if (first && link_told_[i] < control_.first_unconfirmed() &&
        paths_.interface_of(places[i]) == domain.name) {
      link_told_[i] = control_.next_number();
      control_.send(encode(LinkNotice{static_cast<uint8_t>(i)}));
      state_.context->request_stream_turns(1000);
    }
  }
}

void ReceiveRecovery::tell_ends() {
  if (lanes_.empty() || !state_.live() || !state_.backup) {
    return;
  }
  for (const size_t place : paths_.renew_places()) {
    ends_untold_.insert(place);
  }
  say_ends();
}

/// Addresses that come and go while the peer confirms nothing fill no queue.
void ReceiveRecovery::say_ends() {
  constexpr uint32_t unconfirmed_most = 64;
  if (ends_untold_.empty() ||
      control_.next_number() - control_.first_unconfirmed() > unconfirmed_most) {
    return;
  }
  const std::vector<ha::Rail> rails = paths_.rails();
  for (const size_t place : std::exchange(ends_untold_, {})) {
    control_.send(encode(EndNotice{static_cast<uint8_t>(place), rails[place]}));
  }
  state_.context->request_stream_turns(1000);
}

/// Without announcements the peer sends nothing, over whatever path; where nothing is open, nothing
/// is to be sent.
void ReceiveRecovery::watch_budget() {
  failover_.watch_budget(!paths_.any_usable() || receiver_.announcer().waits());
}

/// The sender takes what a report does not name for lost, and what it names for arrived.
bool ReceiveRecovery::names_all(const ha::ArrivalReport& report) {
  const OpenReceives& groups = receiver_.groups();
  bool right = report.completed == groups.completed() &&
               report.completed + report.groups.size() == groups.posted();
  for (size_t i = 0; right && i < report.groups.size(); ++i) {
    right = report.groups[i].whole == (groups.at(report.completed + i) == nullptr);
  }
  return state_.holds(right, "a report names every open group, and those that are whole");
}

void ReceiveRecovery::take_steps(size_t lane, const ha::ReceiverSteps& steps, const Error& why) {
  Lane& mine = paths_.lane(lane);
  Announcer& announcer = receiver_.announcer();
  if (!state_.sound(lanes_[lane])) {
    return;
  }
  if (steps.protocol_error) {
    state_.fail(fail(Errc::remote, "the peer's messages about a path make no sense"));
    return;
  }
  if (steps.take_down) {
    unanswered_[lane] = false;
    if (lane == announcer.lane()) {
      announcer.renew();
    }
    if (mine.shadow) {
      announcer.forget_keys(mine);
    }
    receiver_.flusher().on_lane_down();
    // Its half may be there before the sender's, whose attempt has little time: no heartbeat came.
    const bool tried = mine.shadow && mine.control.received_numbers.epoch != mine.epoch;
    failover_.take_down(lane, why, tried);
  }
  if (steps.say_suspect) {
    state_.note_step(RoundStep::suspect_said, lane, mine.epoch);
    control_.send(encode(ControlType::suspect, failover_.notice_of(lane, why)));
    state_.context->request_stream_turns(1000);
  }
  if (steps.report) {
    const ha::ArrivalReport report = receiver_.groups().arrivals();
    if (!state_.holds(failover_.drained(lane), "a report is made when all receives are back") ||
        !names_all(report)) {
      return;
    }
    mine.counters->fenced.add();
    state_.note_step(RoundStep::report_said, lane, mine.epoch);
    control_.send(encode(FenceReport{static_cast<uint8_t>(lane), mine.epoch, report}));
    state_.ask_trace(TraceCause::failover);  // after what the peer waits for
    state_.context->request_stream_turns(1000);
  }
  if (steps.use) {
    say_ends();
    failover_.take_into_use(lane);
    failover_.log_back(lane);
    if (control_.stream() != nullptr) {
      control_.rejoin().stop();
    }
  }
  announcer.want_keys();
  if (!paths_.any_usable() && state_.live()) {
    // The stream may be silent with the paths, and this side has nothing to say that would show it.
    control_.rejoin().start(probe_without_path,
                            fail(Errc::timed_out, "it is silent with the last path"));
  }
  announcer.announce_again(lanes_[announcer.lane()].peer_stopped());
  watch_budget();
  receiver_.flusher().flush_waiting();
  if (steps.take_down) {
    state_.owner.on_work_back(lane);  // perhaps nothing was posted any more
  }
}

}  // namespace nccl_ha
