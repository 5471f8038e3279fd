#include "tests/rig/runs/faults.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace nccl_ha::rig {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

Duration up_to(Random& random, Duration most) {
  return Duration(static_cast<int64_t>(random.below(static_cast<uint64_t>(most.count()) + 1)));
}

int64_t ms(Duration time) { return time.count() / 1'000'000; }

}  // namespace

FaultSource::FaultSource(Stage& stage, uint64_t salt, size_t times)
    : stage_(stage), random_(stage.scenario().seed * 1000003 + salt), times_(times), left_(times) {
  choose_next();
}

void FaultSource::choose_next() {
  if (left_ != 0) {
    next_ = stage_.now() +
            up_to(random_, random_.chance(0.5) ? microseconds(500) : stage_.scenario().apart);
    stage_.world().network().stop_at(next_);
  }
}

void FaultSource::step() {
  if (left_ != 0 && stage_.now() >= next_) {
    --left_;
    happen();
    choose_next();
  }
}

void FaultSource::heals_in(Duration time, std::function<void()> what) {
  ++unhealed_;
  stage_.later(time, [this, what = std::move(what)] {
    --unhealed_;
    what();
  });
}

const Scenario::Ends& FaultSource::some_link() {
  const auto& links = stage_.scenario().links;
  return links[random_.below(links.size())];
}

// --- paths

PathFaults::PathFaults(Stage& stage)
    : FaultSource(stage, 1, stage.scenario().path_faults),
      pairs_(~stage.scenario().seed),
      returns_(stage.scenario().seed ^ 0x2545F4914F6CDD1D),
      for_half_posted_(stage.scenario().paired ? 3 : 0) {
  const Scenario& scenario = stage.scenario();
  // Without failover a port that is down begins no connection.
  const bool waits = std::all_of(scenario.configs.begin(), scenario.configs.end(),
                                 [](const Config& one) { return one.enable_backup; });
  Random chance = random_;  // what happens later stays as it is
  if (times() != 0 && scenario.rdma && waits && chance.chance(0.1)) {
    const size_t host = chance.below(stage.processes().size());
    take_port(host, chance.below(scenario.rails), up_to(chance, seconds(5)));
    ++stage.totals().ports_down_first;
  }
}

void PathFaults::step() {
  FaultSource::step();
  // Few moments of a run are like that, most of them when all messages may be under way.
  if (for_half_posted_ != 0 && begins_half()) {
    --for_half_posted_;
    ++stage_.totals().faults_at_half;
    const size_t link = pairs_.below(stage_.links().size());
    suspect(link, some_path(link));
    second_soon();
  }
  if (second_ && stage_.now() >= *second_) {
    second_.reset();
    ++stage_.totals().faults_paired;
    const Scenario& scenario = stage_.scenario();
    const size_t lanes = std::max<size_t>(scenario.suspected_paths, 2);
    // An engine that ends waits half a second for the peer, and two rails are dark for longer.
    if (pairs_.chance(0.7) || scenario.kind == RunKind::closes) {
      suspect(last_link_,
              static_cast<uint32_t>((last_path_ + 1 + pairs_.below(lanes - 1)) % lanes));
    } else {
      const Scenario::Ends& ends = scenario.links[last_link_];
      cut(stage_.host_of(ends.from), stage_.host_of(ends.to), pairs_.below(stage_.lines()));
    }
  }
}

/// A chunk has just been left half posted.
bool PathFaults::begins_half() {
  const bool half = stage_.world().rdma().half_posted != 0;
  return !std::exchange(half_posted_, half) && half;
}

/// From a microsecond on, each order of magnitude as often.
void PathFaults::second_soon() {
  if (stage_.scenario().paired && pairs_.chance(0.6)) {
    second_ = stage_.now() + microseconds(pairs_.below(uint64_t{2} << pairs_.below(12)));
    stage_.world().network().stop_at(*second_);
  }
}

void PathFaults::happen() {
  strike();
  second_soon();
}

void PathFaults::strike() {
  const Scenario& scenario = stage_.scenario();
  if (random_.chance(scenario.suspicions)) {
    suspect(random_.below(stage_.links().size()), std::nullopt);
    return;
  }
  const Scenario::Ends& link = some_link();
  const size_t one = stage_.host_of(link.from);
  const size_t other = stage_.host_of(link.to);
  if (scenario.rdma && random_.chance(0.35)) {
    hurt_nic();
  } else if (random_.chance(0.2)) {
    slow(one, other, random_.below(stage_.lines()));
  } else {
    cut(one, other, random_.below(stage_.lines()));
  }
}

/// One that has something under way, if any has.
uint32_t PathFaults::some_path(size_t link) {
  std::vector<uint32_t> busy;
  SendChannel& channel = stage_.links()[link]->sender();
  for (uint16_t i = 0; i < sends_max; ++i) {
    const SendRequest& request = channel.slot(i);
    const bool open = request.state.load() == RequestState::pending;
    for (uint32_t chunk = 0; open && chunk < request.split.count(); ++chunk) {
      if (request.ledger.holder(chunk) < lanes_max) {
        busy.push_back(request.ledger.holder(chunk));
      }
    }
  }
  return busy.empty() ? 0 : busy[pairs_.below(busy.size())];
}

/// `chosen`: the path, if it is not any.
void PathFaults::suspect(size_t which, std::optional<uint32_t> chosen) {
  SimLink& link = *stage_.links()[which];
  const bool sender = random_.chance(0.5);
  if (!(sender ? link.sender_calls() : link.accepted() && link.receiver_calls())) {
    return;
  }
  Driver& side = sender ? link.sender_driver() : link.receiver_driver();
  const auto path =
      chosen ? *chosen : static_cast<uint32_t>(random_.below(stage_.scenario().suspected_paths));
  last_link_ = which;
  last_path_ = path;
  if (side.suspect(path)) {
    side.turn();
    FailoverTotals& totals = stage_.totals();
    ++(sender ? totals.false_verdicts_sender : totals.false_verdicts_receiver);
    stage_.tell(
        fmt::format("a {} is told that path {} is dead", sender ? "sender" : "receiver", path));
  }
}

void PathFaults::cut(size_t one, size_t other, size_t line) {
  const Scenario& scenario = stage_.scenario();
  const sim::Link light = scenario.usual_of(line);
  sim::Link dark = light;
  dark.cut = true;
  if (gone_ == line) {
    return;
  }
  FailoverTotals& totals = stage_.totals();
  // A handshake needs the interface that it began with.
  if (scenario.for_good && !gone_ && stage_.connected() && random_.chance(0.2)) {
    gone_ = line;
    for (size_t a = 0; a < scenario.hosts; ++a) {
      for (size_t b = a + 1; b < scenario.hosts; ++b) {
        stage_.set_line(a, b, line, dark, dark);
      }
    }
    ++totals.cuts_for_good;
    stage_.tell(fmt::format("rail {} cut for good", line));
    return;
  }
  const uint64_t which = random_.below(3);
  const Duration lasts = up_to(random_, random_.chance(0.3) ? milliseconds(100) : seconds(3));
  stage_.set_line(one, other, line, which == 1 ? light : dark, which == 2 ? light : dark);
  ++(which == 0 ? totals.cuts_both : which == 1 ? totals.cuts_back : totals.cuts_there);
  stage_.tell(fmt::format("rail {} between hosts {} and {} cut for {} ms, {}", line, one, other,
                          ms(lasts),
                          which == 0   ? "both ways"
                          : which == 1 ? "back"
                                       : "there"));
  heals_in(lasts, [this, one, other, line] {
    if (gone_ != line) {
      stage_.mend_line(one, other, line);
      stage_.tell(fmt::format("rail {} between hosts {} and {} healed", line, one, other));
    }
  });
}

void PathFaults::slow(size_t one, size_t other, size_t line) {
  if (gone_ == line) {
    return;
  }
  sim::Link heavy = stage_.scenario().usual_of(line);
  heavy.delay = microseconds(1000 + random_.below(49000));
  const Duration lasts = up_to(random_, seconds(1));
  stage_.set_line(one, other, line, heavy, heavy);
  ++stage_.totals().slow;
  stage_.tell(fmt::format("rail {} between hosts {} and {} takes {} us for {} ms", line, one, other,
                          heavy.delay.count() / 1000, ms(lasts)));
  heals_in(lasts, [this, one, other, line] {
    if (gone_ != line) {
      stage_.mend_line(one, other, line);
    }
  });
}

void PathFaults::hurt_nic() {
  const Scenario& scenario = stage_.scenario();
  const size_t host = random_.below(stage_.processes().size());
  sim::Process& process = *stage_.processes()[host];
  const size_t rail = random_.below(scenario.rails);
  sim::RdmaNic& nic = *process.nics[rail];
  FailoverTotals& totals = stage_.totals();
  if (nic.failed() || !process.engine || !stage_.connected()) {
    return;  // the interface of a device without a link makes no streams
  }
  const uint64_t what = random_.below(scenario.for_good && !gone_ ? 5 : 4);
  if (what < 2) {
    nic.move_gid();
    ++totals.gids_moved;
    stage_.tell(
        fmt::format("process {}: the address on rail {} has another GID index", host, rail));
  } else if (what < 4) {
    take_port(host, rail, up_to(random_, seconds(2)));
  } else {
    lose_device(host, rail);
  }
}

void PathFaults::lose_device(size_t host, size_t rail) {
  const Scenario& scenario = stage_.scenario();
  FailoverTotals& totals = stage_.totals();
  gone_ = rail;
  sim::RdmaNic::Death death;
  death.gone_after = up_to(random_, seconds(3));
  death.writes_for = random_.chance(0.5) ? up_to(random_, death.gone_after) : Duration{};
  if (pairs_.chance(0.4)) {
    // What a receiver's NIC keeps for longer than HA_NCCL_IB_HUNG_MS nobody expects.
    const bool receives = std::ranges::any_of(
        scenario.links, [host](const Scenario::Ends& link) { return link.to == host; });
    death.hangs = true;
    death.gone_after = up_to(pairs_, seconds(40));
    death.writes_for = up_to(pairs_, receives ? milliseconds(400) : death.gone_after);
    ++totals.devices_hung;
  }
  const bool returns = !death.hangs && returns_.chance(0.6);
  if (returns) {  // soon, as the traffic does not take long
    death.gone_after = up_to(returns_, milliseconds(100));
    death.writes_for = std::min(death.writes_for, death.gone_after);
  }
  stage_.processes()[host]->nics[rail]->fail_for_good(death);
  ++totals.devices_lost;
  stage_.tell(fmt::format("process {}: device of rail {} {}, wrote for {} ms, is gone after {} ms",
                          host, rail, death.hangs ? "hangs" : "failed for good",
                          ms(death.writes_for), ms(death.gone_after)));
  if (returns) {
    bring_back_in(death.gone_after + milliseconds(1) + up_to(returns_, milliseconds(500)), host,
                  rail);
  }
}

/// After which another rail or device may go for good.
void PathFaults::bring_back_in(Duration time, size_t host, size_t rail) {
  heals_in(time, [this, host, rail] {
    stage_.world().bring_back(*stage_.processes()[host], rail);
    gone_.reset();
    any_back_ = true;
    ++stage_.totals().devices_back;
    stage_.tell(fmt::format("process {}: device of rail {} is back", host, rail));
  });
}

void PathFaults::take_port(size_t host, size_t rail, Duration lasts) {
  sim::RdmaNic& nic = *stage_.processes()[host]->nics[rail];
  nic.set_port(false);
  ++stage_.totals().ports_down;
  stage_.tell(fmt::format("process {}: port of rail {} down for {} ms", host, rail, ms(lasts)));
  heals_in(lasts, [&nic] { nic.set_port(true); });
}

// --- control streams

StreamFaults::StreamFaults(Stage& stage) : FaultSource(stage, 2, stage.scenario().stream_faults) {
  if (times() != 0 && random_.chance(0.3)) {
    sim::Middlebox box;
    box.idle_limit = milliseconds(500 + random_.below(20000));
    box.resets = random_.chance(0.5);
    const auto way = some_way();
    stage.world().network().tcp().set_middlebox(way.first, way.second, box);
    stage.tell(fmt::format("a middlebox forgets what is idle for {} ms and {}", ms(box.idle_limit),
                           box.resets ? "resets" : "is silent"));
  }
}

std::pair<sim::Ip, sim::Ip> StreamFaults::some_way() {
  const Scenario::Ends& link = some_link();
  const size_t one = stage_.host_of(link.from);
  const size_t other = stage_.host_of(link.to);
  if (stage_.scenario().management && random_.chance(0.8)) {
    return {Stage::management(one), Stage::management(other)};
  }
  const size_t line = random_.chance(0.7) ? 0 : random_.below(stage_.lines());
  return {stage_.address(one, 0, line), stage_.address(other, 0, line)};
}

void StreamFaults::happen() {
  if (!stage_.connected()) {
    return;  // before the welcome the loss of a stream ends a handshake
  }
  if (random_.chance(0.4)) {
    const auto way = some_way();
    const bool resets = random_.chance(0.5);
    stage_.world().network().tcp().forget_flows(way.first, way.second, resets);
    stage_.tell(
        fmt::format("a middlebox forgets all connections and {}", resets ? "resets" : "is silent"));
    return;
  }
  cut();
}

void StreamFaults::cut() {
  std::vector<std::pair<sim::Ip, sim::Ip>> ways{some_way()};
  const bool nowhere = random_.chance(0.3);
  if (nowhere) {
    const Scenario::Ends& link = some_link();
    const size_t one = stage_.host_of(link.from);
    const size_t other = stage_.host_of(link.to);
    ways = {{Stage::management(one), Stage::management(other)}};
    for (size_t line = 0; line < stage_.lines(); ++line) {
      ways.emplace_back(stage_.address(one, 0, line), stage_.address(other, 0, line));
    }
  }
  const uint64_t which = random_.below(3);
  // Paths that fail need a stream to be made again, unless others carry what it would; what is cut
  // at the same time may be all the ways that there are.
  const bool brief = random_.chance(0.5) || stage_.scenario().path_faults != 0;
  const Duration lasts = up_to(random_, brief ? seconds(5) : seconds(130));
  const auto set = [this, ways, which](bool drops) {
    for (const auto& [one, other] : ways) {
      sim::Tcp& tcp = stage_.world().network().tcp();
      tcp.filter(one, other, drops && which != 1);
      tcp.filter(other, one, drops && which != 2);
    }
  };
  set(true);
  ++stage_.totals().management_cuts;
  stage_.tell(fmt::format("TCP gets through {} for {} ms, {}",
                          ways.size() == 1 ? "one way less" : "nowhere", ms(lasts),
                          which == 0   ? "both directions"
                          : which == 1 ? "back"
                                       : "there"));
  heals_in(lasts, [set] { set(false); });
}

// --- scheduling

void Pauses::happen() {
  const size_t which = random_.below(stage_.processes().size());
  sim::Process& process = *stage_.processes()[which];
  const Duration lasts = up_to(random_, random_.chance(0.5)   ? milliseconds(50)
                                        : random_.chance(0.6) ? milliseconds(900)
                                                              : milliseconds(2500));
  FailoverTotals& totals = stage_.totals();
  const uint64_t what = random_.below(4);
  if (!process.engine) {
    return;
  }
  if (what < 2) {
    ++totals.pauses;
    stage_.world().pause(process, stage_.now() + lasts);
  } else if (what == 2) {
    ++totals.starved;
    stage_.world().starve(process, random_.below(process.engine->worker_count()), lasts);
  } else {
    ++totals.callers_away;
    stage_.world().pause_callers(process, lasts);
  }
  if (what != 3) {
    Stop& stop = stops_[which];
    stop.since = stage_.now() <= stop.until ? stop.since : stage_.now();
    stop.until = std::max(stop.until, stage_.now() + lasts);
    longest_ = std::max(longest_, stop.until - stop.since);
  }
  stage_.tell(fmt::format("process {}: {} for {} ms", which,
                          what < 2    ? "stands still"
                          : what == 2 ? "a worker gets no processor"
                                      : "its callers do not call",
                          ms(lasts)));
}

// --- deaths

void Death::happen() {
  const size_t which = random_.below(stage_.processes().size());
  sim::Process& process = *stage_.processes()[which];
  silent_ = random_.chance(0.5);
  at_ = stage_.now();
  if (silent_) {
    ++stage_.totals().power_off;
    stage_.tell(fmt::format("the host of process {} loses power", which));
    stage_.world().power_off(process);
  } else {
    ++stage_.totals().killed;
    stage_.tell(fmt::format("process {} is killed", which));
    stage_.world().kill_process(process);
  }
}

bool Death::touches(const SimLink& link) const {
  SimLink& mutable_link = const_cast<SimLink&>(link);
  return at_ && (!mutable_link.from().engine || !mutable_link.to().engine);
}

}  // namespace nccl_ha::rig
