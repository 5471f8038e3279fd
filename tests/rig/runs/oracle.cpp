#include "tests/rig/runs/oracle.h"

#include <fmt/format.h>

#include <algorithm>

namespace nccl_ha::rig {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// A killed process leaves FINs and refusing ports.
constexpr Duration killed_bound = seconds(1);

}  // namespace

Duration Oracle::death_bound(const SimLink& link, bool sender) const {
  const Scenario& scenario = stage_.scenario();
  size_t which = 0;
  for (size_t i = 0; i < stage_.links().size(); ++i) {
    if (stage_.links()[i].get() == &link) {
      which = sender ? scenario.links[i].from : scenario.links[i].to;
    }
  }
  const Config& config = scenario.configs[stage_.host_of(which)];
  const Duration paused = 3 * pauses_.longest();
  const Duration silence =
      milliseconds(config.heartbeat_ms + 3 * config.rto_ms + config.retry_budget_ms) + seconds(1);
  const bool was_ready =
      link.accepted() && (sender ? link.sender_was_ready() : link.receiver_was_ready());
  if (!was_ready) {
    // All that a handshake needs of the peer may have come before: then its end begins the rest.
    return milliseconds(config.connect_timeout_ms) + silence + paused;
  }
  if (!death_.silent() && scenario.path_faults + scenario.stream_faults + scenario.pauses == 0) {
    return killed_bound;
  }
  return silence + paused;
}

void Oracle::look_at_death() {
  if (!death_.at() || death_over_) {
    return;
  }
  const Duration since = stage_.now() - *death_.at();
  bool over = true;
  for (size_t i = 0; i < stage_.links().size(); ++i) {
    SimLink& link = *stage_.links()[i];
    if (!death_.touches(link)) {
      continue;
    }
    if (stage_.traffic()[i]) {
      stage_.traffic()[i]->let_end();
    }
    for (const bool sender : {true, false}) {
      const bool lives = sender ? link.sender_lives() : link.accepted() && link.receiver_lives();
      const bool failed =
          lives && (sender ? link.sender().phase() : link.receiver().phase()) == Phase::failed;
      if (!lives || failed) {
        continue;
      }
      over = false;
      const Duration bound = death_bound(link, sender);
      if (since > bound && wrong_.empty()) {
        wrong_ =
            fmt::format("the {} of connection {} has not noticed within {} ms that its peer {}",
                        sender ? "sender" : "receiver", i, bound.count() / 1'000'000,
                        death_.silent() ? "has no power" : "was killed");
      }
    }
  }
  if (over) {
    death_over_ = true;
    FailoverTotals& totals = stage_.totals();
    totals.longest_death = std::max(totals.longest_death, since);
  }
}

/// Nothing was wrong but the processors.
std::string Oracle::false_verdicts() const {
  const Scenario& scenario = stage_.scenario();
  // A lost packet is sent again by an RDMA device after 67 ms, and by datagrams, whose round trips
  // a pause has made look long, later than a heartbeat may take: for the verdict that is a fault.
  // So is a packet sent again that a later one overtakes: a device is told once of each gap.
  const bool loses = scenario.usual.drop != 0 || stage_.world().rdma().counts.stalled != 0;
  if (paths_.times() != 0 || scenario.pauses == 0 || scenario.death || loses) {
    return "";
  }
  for (const Config& config : scenario.configs) {
    // Each heartbeat takes a receive from the NIC of a process that stands still, and a path that
    // has none left acknowledges no more while another one, with less traffic before, still does.
    constexpr int64_t heartbeats_taken = 16;
    if (scenario.rdma && pauses_.longest() > milliseconds(heartbeats_taken * config.heartbeat_ms)) {
      return "";
    }
    if (pauses_.longest() + milliseconds(300) > milliseconds(3 * config.rto_ms)) {
      return "";
    }
  }
  for (const auto& link : stage_.links()) {
    const uint64_t down = link->sender().counters().paths_down.get() +
                          (link->accepted() ? link->receiver().counters().paths_down.get() : 0);
    if (down != 0) {
      return fmt::format("{} paths were given up though processes only stood still", down);
    }
  }
  return "";
}

/// What this program found wrong with itself; the connections failed, as they may for other
/// reasons.
std::string Oracle::faults() const {
  const auto fault_of = [](const Channel& side) {
    return side.phase() == Phase::failed && side.failure().code == Errc::internal
               ? side.failure().message()
               : std::string();
  };
  for (const auto& link : stage_.links()) {
    std::string fault = fault_of(link->sender());
    if (fault.empty() && link->accepted()) {
      fault = fault_of(link->receiver());
    }
    if (!fault.empty()) {
      return fault;
    }
  }
  return "";
}

bool Oracle::step() {
  look_at_death();
  return wrong_.empty();
}

std::string Oracle::look_at_link(size_t link, bool unfinished) const {
  Traffic* traffic = stage_.traffic()[link].get();
  if (traffic != nullptr) {
    return unfinished || traffic->is_wrong() ? traffic->outcome() : "";
  }
  return death_.touches(*stage_.links()[link]) ? "" : "connect: " + stage_.links()[link]->error();
}

std::string Oracle::verdict(bool ended) {
  if (!stage_.world().livelock().empty()) {
    return stage_.world().livelock();
  }
  if (!stage_.world().violation().empty()) {
    return stage_.world().violation();
  }
  if (std::string fault = faults(); !fault.empty()) {
    return fault;
  }
  // First what is wrong, then what has merely not ended because of it.
  for (const bool unfinished : {false, true}) {
    for (size_t i = 0; i < stage_.links().size() && wrong_.empty(); ++i) {
      wrong_ = look_at_link(i, unfinished);
      if (!wrong_.empty()) {
        wrong_ = fmt::format("connection {}: {}", i, wrong_);
      }
    }
  }
  if (wrong_.empty() && !ended) {
    wrong_ = "the run has no end";
  }
  return wrong_.empty() ? false_verdicts() : wrong_;
}

}  // namespace nccl_ha::rig
