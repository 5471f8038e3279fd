#include "tests/rig/runs/mesh_faults.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace nccl_ha::rig {

using std::chrono::milliseconds;

void MeshFaultCounts::operator+=(const MeshFaultCounts& other) {
  cut += other.cut;
  pulled += other.pulled;
  cut_one_way += other.cut_one_way;
  for_good += other.for_good;
  killed += other.killed;
  drained += other.drained;
  paused += other.paused;
  added += other.added;
  slow += other.slow;
}

MeshFaults::MeshFaults(MeshStage& stage)
    : stage_(stage),
      random_(stage.scenario().seed * 2654435761U + 17),
      pulls_(stage.scenario().seed),
      remains_(mesh_at_first(stage.scenario())),
      away_(stage.scenario().cables.size()),
      busy_(stage.scenario().hosts),
      left_(stage.scenario().faults) {
  add_what_is_late();
  choose_next();
}

double MeshFaults::happened() const {
  const auto all = static_cast<double>(stage_.scenario().faults);
  return (all - static_cast<double>(left_) + 1) / (all + 1);
}

Duration MeshFaults::soon() {
  const auto within = static_cast<uint64_t>(stage_.scenario().heals_in.count());
  return Duration(static_cast<int64_t>(1 + random_.below(within)));
}

void MeshFaults::choose_next() {
  const auto within = static_cast<uint64_t>(stage_.scenario().apart.count());
  next_ = stage_.now() + Duration(static_cast<int64_t>(random_.below(within + 1)));
  stage_.world().network().stop_at(next_);
}

void MeshFaults::add_what_is_late() {
  const MeshScenario& scenario = stage_.scenario();
  for (size_t i = 0; i < scenario.cables.size(); ++i) {
    if (scenario.cables[i].late) {
      ++counts_.added;
      away_[i] = true;
      back_later([this, i] {
        stage_.tell(fmt::format("cable {} is plugged in", i));
        stage_.set_cable(i, true, true);
        away_[i] = false;
        remains_.cables[i] = true;
      });
    }
  }
  for (size_t host = 0; host < scenario.hosts; ++host) {
    if (scenario.late[host]) {
      ++counts_.added;
      busy_[host] = true;
      back_later([this, host] {
        stage_.start(host);
        busy_[host] = false;
        remains_.hosts[host] = true;
      });
    }
  }
}

void MeshFaults::back_later(std::function<void()> what) {
  ++pending_;
  stage_.later(soon(), [this, what = std::move(what)] {
    --pending_;
    what();
  });
}

void MeshFaults::step() {
  if (left_ != 0 && stage_.now() >= next_) {
    --left_;
    happen();
    choose_next();
  }
}

void MeshFaults::happen() {
  const uint64_t kind = random_.below(10);
  if (kind < 4) {
    cut_cable();
  } else if (kind < 8) {
    end_host();
  } else if (kind < 9) {
    pause_host();
  } else {
    slow_cable();
  }
}

/// One that began over relays takes no cable that leads straight there later.
bool MeshFaults::keeps_its_ways(size_t link, const MeshRemains& without) const {
  const MeshScenario& scenario = stage_.scenario();
  const MeshScenario::Ends& ends = scenario.links[link];
  const auto hops_max = static_cast<size_t>(scenario.config.mesh_max_hops) + 1;
  const auto serves = [&](const MeshRemains& remains, bool direct) {
    const auto distance = mesh_distance(scenario, remains, ends.from, ends.to, direct);
    return distance.value_or(hops_max + 1) <= hops_max;
  };
  const bool relayed =
      !stage_.is_over_cable(link) && serves({std::vector<bool>(scenario.cables.size(), true),
                                             std::vector<bool>(scenario.hosts, true)},
                                            false);
  return serves(without, !relayed);
}

bool MeshFaults::may_stay_away(std::vector<bool> MeshRemains::*kind, size_t which) {
  if (!stage_.scenario().for_good || !random_.chance(0.4)) {
    return false;
  }
  MeshRemains without = remains_;
  (without.*kind)[which] = false;
  for (size_t link = 0; link < stage_.scenario().links.size(); ++link) {
    if (!keeps_its_ways(link, without)) {
      return false;
    }
  }
  remains_ = without;
  ++counts_.for_good;
  return true;
}

void MeshFaults::cut_cable() {
  const size_t cable = random_.below(away_.size());
  if (away_[cable]) {
    return;
  }
  away_[cable] = true;
  const bool both = random_.chance(0.6);
  const bool there = !both && random_.chance(0.5);
  const bool pulled = both && pulls_.chance(0.5);
  ++(both ? counts_.cut : counts_.cut_one_way);
  stage_.set_cable(cable, there, !both && !there);
  if (pulled) {
    ++counts_.pulled;
    stage_.tell_link(cable, false);
  }
  const bool stays = may_stay_away(&MeshRemains::cables, cable);
  stage_.tell(fmt::format("cable {} is {}{}{}", cable, pulled ? "pulled" : "cut",
                          both ? "" : " in one direction", stays ? " for good" : ""));
  if (!stays) {
    back_later([this, cable, pulled] {
      stage_.set_cable(cable, true, true);
      if (pulled) {
        stage_.tell_link(cable, true);
      }
      away_[cable] = false;
      stage_.tell(fmt::format("cable {} works again", cable));
    });
  }
}

void MeshFaults::slow_cable() {
  const size_t cable = random_.below(away_.size());
  if (away_[cable]) {
    return;
  }
  away_[cable] = true;
  ++counts_.slow;
  stage_.slow_cable(cable, milliseconds(1 + random_.below(20)));
  back_later([this, cable] {
    stage_.set_cable(cable, true, true);
    away_[cable] = false;
  });
}

void MeshFaults::pause_host() {
  const size_t host = random_.below(busy_.size());
  if (busy_[host] || !stage_.is_on(host)) {
    return;
  }
  ++counts_.paused;
  const Duration time = soon();
  stage_.world().pause(*stage_.process(host), stage_.now() + time);
  stage_.tell(fmt::format("host {} stands still for {} ms", host, time.count() / 1'000'000));
}

void MeshFaults::end_host() {
  const size_t host = random_.below(busy_.size());
  if (busy_[host] || stage_.scenario().is_end(host) || !stage_.is_on(host)) {
    return;
  }
  busy_[host] = true;
  if (random_.chance(0.6)) {
    ++counts_.killed;
    stage_.kill(host);
    start_when_ended(host);
    return;
  }
  ++counts_.drained;
  const Duration within = soon();
  stage_.drain(host, within);
  ++pending_;
  stage_.later(within + milliseconds(10), [this, host] {
    --pending_;
    stage_.kill(host);
    start_when_ended(host);
  });
}

void MeshFaults::start_when_ended(size_t host) {
  if (!may_stay_away(&MeshRemains::hosts, host)) {
    back_later([this, host] {
      stage_.start(host);
      busy_[host] = false;
    });
  }
}

}  // namespace nccl_ha::rig
