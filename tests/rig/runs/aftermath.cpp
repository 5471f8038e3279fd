#include "tests/rig/runs/aftermath.h"

#include <fmt/format.h>

#include <algorithm>

namespace nccl_ha::rig {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// docs/shadow-paths.md: up to 30 s between two sweeps, 12 s for a sweep of four pairs,
/// and twice that for more of them; first paths and rails within 4 s.
constexpr Duration stands_by_within = seconds(60);
/// Peers may be out of reach, and not run.
constexpr Duration ends_within = seconds(4);
/// A handshake that a death has met; last words for a peer that no way of this side's leads to any
/// more (HA_NCCL_RETRY_BUDGET_MS).
constexpr Duration dead_ends_within = seconds(45);

}  // namespace

/// What is away for seconds costs more than the traffic did: a third of the runs wait for it.
bool Aftermath::can_stand_by() const {
  const Scenario& scenario = stage_.scenario();
  return (scenario.seed % 3 == 0 || paths_.healed()) && scenario.backed() &&
         !scenario.plan.closes && !scenario.plan.may_end && !scenario.device_faults &&
         !death_.at() && !paths_.any_gone() && streams_.healed();
}

/// Shadows for which there is no NIC: of a device's rails none is one's.
uint64_t Aftermath::without_nic() const {
  const Scenario& scenario = stage_.scenario();
  int64_t wanted = INT64_MAX;
  for (const Config& config : scenario.configs) {
    wanted = std::min(wanted, config.shadow_paths);
  }
  const auto nics = static_cast<int64_t>(stage_.lines() - scenario.device_rails);
  return static_cast<uint64_t>(std::max<int64_t>(wanted - nics, 0));
}

bool Aftermath::all_stand_by() const {
  const uint64_t without = without_nic();
  for (const auto& link : stage_.links()) {
    for (const Channel* side : {static_cast<const Channel*>(&link->sender()),
                                static_cast<const Channel*>(&link->receiver())}) {
      const ConnectionCounters& counts = side->counters();
      if (counts.paths_missing.get() > without ||
          counts.streams_anew.get() < counts.streams_lost.get()) {
        return false;
      }
    }
  }
  return true;
}

std::string Aftermath::wait_for_paths() {
  if (!can_stand_by()) {
    return "";
  }
  static_cast<void>(stage_.world().run_until([&] { return paths_.healed(); }, seconds(10)));
  if (stage_.world().run_until([&] { return all_stand_by(); }, stands_by_within)) {
    ++stage_.totals().stood_by;
    return "";
  }
  std::string text = "paths do not stand by again:";
  for (size_t i = 0; i < stage_.links().size(); ++i) {
    const ConnectionCounters& sends = stage_.links()[i]->sender().counters();
    const ConnectionCounters& receives = stage_.links()[i]->receiver().counters();
    text += fmt::format(" connection {}: {} and {} missing, streams {} of {} and {} of {} anew;", i,
                        sends.paths_missing.get(), receives.paths_missing.get(),
                        sends.streams_anew.get(), sends.streams_lost.get(),
                        receives.streams_anew.get(), receives.streams_lost.get());
  }
  return text;
}

/// What a worker keeps for connections to come: a watch of each device, and a piece of memory
/// there.
std::string Aftermath::left_of(const sim::Process& process) const {
  if (!process.engine) {
    return "";
  }
  const size_t workers = process.engine->worker_count();
  size_t actors = 0;
  for (size_t i = 0; i < workers; ++i) {
    actors += process.engine->worker(i).actor_count();
  }
  size_t pairs = 0;
  size_t regions = 0;
  for (const sim::RdmaNic* nic : process.nics) {
    pairs += nic->objects().pairs;
    regions += nic->objects().regions;
  }
  std::vector<sim::Ip> addresses = process.addresses;
  addresses.push_back(process.management);
  const sim::Network& network = stage_.world().network();
  const size_t sockets = network.sockets(addresses);
  const size_t streams = network.tcp().held(addresses);
  const bool clean = actors <= process.nics.size() && pairs == 0 &&
                     regions <= process.nics.size() * workers && sockets == 0 && streams == 0;
  return clean ? ""
               : fmt::format("{} actors, {} queue pairs, {} regions, {} sockets and {} streams",
                             actors, pairs, regions, sockets, streams);
}

bool Aftermath::is_over() {
  if (stage_.now() < look_due_) {
    return false;
  }
  look_due_ = stage_.now() + milliseconds(1);
  return std::ranges::all_of(stage_.processes(),
                             [&](const auto* one) { return left_of(*one).empty(); });
}

std::string Aftermath::end() {
  for (auto& traffic : stage_.traffic()) {
    traffic.reset();
  }
  for (auto& link : stage_.links()) {
    link->close_receiver();
    link->close_listener();
  }
  const auto is_closed = [&] {
    for (auto& link : stage_.links()) {
      if (link->sender_lives() && !link->answered()) {
        static_cast<void>(link->step_connecting());  // there is nothing to close yet
      }
      link->close_sender();
    }
    return is_over();
  };
  const Duration within = death_.at() || paths_.any_gone() ? dead_ends_within : ends_within;
  if (stage_.world().run_until(is_closed, within)) {
    return "";
  }
  std::string text = stage_.world().livelock();
  for (size_t i = 0; i < stage_.processes().size(); ++i) {
    if (const std::string left = left_of(*stage_.processes()[i]); !left.empty()) {
      text += fmt::format("process {} has {} though its connections are over; ", i, left);
    }
  }
  return text;
}

}  // namespace nccl_ha::rig
