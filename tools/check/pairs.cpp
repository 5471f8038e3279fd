#include "tools/check/pairs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "runtime/fabric/provider.h"
#include "tools/check/device_trial.h"
#include "tools/common/terminal.h"

namespace nccl_ha::tools {
namespace {

using nlohmann::json;

/// 0 is unknown.
int64_t slower_of(int64_t one, int64_t other) {
  return one == 0 ? other : other == 0 ? one : std::min(one, other);
}

/// Of two results about a pair and a device the better one stays, with what the hosts moved to
/// themselves at the later one: it was tried again because the first proved nothing.
void keep_better(std::vector<PairResult>& results, PairResult result) {
  const auto before = std::find_if(results.begin(), results.end(), [&](const PairResult& one) {
    return one.from == result.from && one.to == result.to && one.device == result.device;
  });
  if (before == results.end()) {
    results.push_back(std::move(result));
    return;
  }
  if (!before->error.empty()) {
    *before = std::move(result);
    return;
  }
  before->alone |= result.alone;
  before->own_gigabytes_per_s = result.own_gigabytes_per_s;
  if (result.error.empty()) {
    before->segments_dropped = std::max(before->segments_dropped, result.segments_dropped);
    before->round_trip_us = std::min(before->round_trip_us, result.round_trip_us);
    before->gigabytes_per_s = std::max(before->gigabytes_per_s, result.gigabytes_per_s);
    if (result.segments_lost < before->segments_lost) {
      before->segments = result.segments;
      before->segments_lost = result.segments_lost;
    }
  }
}

/// What all ranks saw so far, one result for each pair and device.
Result<std::vector<PairResult>> seen_by_all(World& world, const std::vector<PairResult>& own) {
  json told = json::array();
  for (const PairResult& one : own) {
    told.push_back(to_json(one));
  }
  auto texts = world.all_gather(told.dump(-1, ' ', false, json::error_handler_t::replace));
  if (!texts) {
    return texts.error();
  }
  std::vector<PairResult> all;
  for (const std::string& text : *texts) {
    for (const json& one : json::parse(text, nullptr, false)) {
      if (auto pair = pair_from_json(one)) {
        all.push_back(std::move(*pair));
      }
    }
  }
  return merge(all, std::vector<std::string>(world.size()));
}

/// What one rank does in a round: one device with one partner, or nothing.
struct Turn {
  std::optional<uint32_t> partner;
  const CheckedDevice* device = nullptr;
  PairResult result = {};  ///< so far: its device
};

/// Every rank calls it.  The plugin is loaded for this turn only, as what it says later of a
/// connection that failed is not about the next partner.  `alone`: no other rank has a partner, and
/// each of both also measures what it moves to itself in that moment, before and after.
Result<void> take_turn(World& world, const Trials& trials, Turn turn, bool alone,
                       std::vector<PairResult>& results) {
  PairResult& result = turn.result;
  const bool measures = alone && turn.partner;
  const double before = measures ? own_rate(world, trials, *turn.device) : 0;
  {
    DeviceTrial trial(world, trials);
    if (turn.partner) {
      if (auto opened = trial.open(*turn.device); !opened) {
        return opened.error();
      }
    }
    const bool usable = trial.unusable().empty();
    if (auto met = trial.meet(usable ? turn.partner : std::nullopt, result);
        !met || !turn.partner) {
      return met;
    }
    result.error = usable ? result.error : trial.unusable();
  }
  result.from = std::min(world.rank(), *turn.partner);
  result.to = std::max(world.rank(), *turn.partner);
  result.alone = alone;
  result.speed_mbps = turn.device->speed_mbps;
  if (measures) {
    result.own_gigabytes_per_s = std::min(before, own_rate(world, trials, *turn.device));
  }
  keep_better(results, std::move(result));
  return {};
}

/// What went badly is tried alone: hosts were busy with other pairs, perhaps, or with something
/// else.  `of_cables`: results are compared with each other whatever their number.  `take` has
/// every rank take its turn with one of them.
template <class Take>
Result<void> try_some_again(World& world, const std::vector<PairResult>& results, bool of_cables,
                            Take&& take) {
  constexpr int tries_max = 3;
  for (int i = 0; i < tries_max; ++i) {
    const auto seen = seen_by_all(world, results);
    if (!seen) {
      return seen.error();
    }
    std::vector<PairResult> compared = *seen;
    for (PairResult& one : compared) {
      one.device = of_cables ? 0 : one.device;
    }
    const std::vector<size_t> again = to_try_again(compared);
    if (again.empty()) {
      return {};
    }
    for (const size_t index : again) {
      if (auto taken = take((*seen)[index]); !taken) {
        return taken;
      }
    }
  }
  return {};
}

/// A rank's turn with these cables, of which it has one end at most.
Result<Turn> turn_of(const World& world, const Trials& trials, const MeshPlan& plan,
                     const std::vector<MeshSheet>& sheets, const std::vector<size_t>& cables) {
  Turn turn;
  for (const size_t number : cables) {
    const auto& ends = plan.cables[number].ends;
    const size_t own = ends[0].rank == world.rank() ? 0 : 1;
    if (ends[own].rank != world.rank()) {
      continue;
    }
    turn.partner = ends[1 - own].rank;
    turn.result.device = static_cast<int>(number);
    turn.result.device_name = cable_name(plan.cables[number], sheets);
    const std::string& interface = sheets[world.rank()].ports[ends[own].port].name;
    const auto device = std::find_if(trials.devices.begin(), trials.devices.end(),
                                     [&](const auto& one) { return one.interface == interface; });
    if (device == trials.devices.end()) {
      return fail(Errc::internal, "no device at " + interface);
    }
    turn.device = &*device;
  }
  return turn;
}

/// The devices of a host that are tried with other hosts' devices of the same number.
class PairTrials {
 public:
  PairTrials(World& world, const Trials& trials) : world_(world), trials_(trials) {}

  Result<std::vector<PairResult>> run() {
    auto counts = world_.all_gather(std::to_string(trials_.devices.size()));
    if (!counts) {
      return counts.error();
    }
    for (const std::string& count : *counts) {
      device_counts_.push_back(static_cast<size_t>(std::atoi(count.c_str())));
    }
    if (auto tried = try_all(); !tried) {
      return tried.error();
    }
    const auto again = [&](const PairResult& pair) {
      Turn turn;
      if (world_.rank() == pair.from || world_.rank() == pair.to) {
        turn = turn_with(world_.rank() == pair.from ? pair.to : pair.from,
                         static_cast<size_t>(pair.device));
      }
      return take_turn(world_, trials_, std::move(turn), true, results_);
    };
    if (auto tried = try_some_again(world_, results_, false, again); !tried) {
      return tried.error();
    }
    return std::move(results_);
  }

 private:
  Result<void> try_all() {
    ProgressLine progress;
    const size_t most = *std::max_element(device_counts_.begin(), device_counts_.end());
    const auto partners = meetings(world_.rank(), world_.size());
    for (size_t device = 0; device < most; ++device) {
      for (size_t at = 0; at < partners.size(); ++at) {
        if (world_.rank() == 0 && progress.due()) {
          progress.show(
              fmt::format("trying connections between {} hosts: {}%", world_.size(),
                          (device * partners.size() + at) * 100 / (most * partners.size())));
        }
        Turn turn;
        if (partners[at] && device < trials_.devices.size() &&
            device < device_counts_[*partners[at]]) {
          turn = turn_with(*partners[at], device);
        }
        if (auto taken = take_turn(world_, trials_, std::move(turn), false, results_); !taken) {
          return taken;
        }
      }
    }
    return {};
  }

  Turn turn_with(uint32_t partner, size_t device) const {
    Turn turn{partner, &trials_.devices[device]};
    turn.result.device = static_cast<int>(device);
    turn.result.device_name = turn.device->name;
    return turn;
  }

  World& world_;
  const Trials& trials_;
  std::vector<size_t> device_counts_;  ///< by rank
  std::vector<PairResult> results_;
};

}  // namespace

std::vector<std::optional<uint32_t>> meetings(uint32_t rank, uint32_t ranks) {
  // Everybody sits in a circle and moves on by one chair each round, but the last, who stays.  With
  // an odd number there is one more chair, and whoever faces it has a break.
  const uint32_t chairs = ranks + ranks % 2;
  std::vector<std::optional<uint32_t>> partners;
  for (uint32_t round = 0; round + 1 < chairs; ++round) {
    const uint32_t circle = chairs - 1;
    uint32_t partner = 0;
    if (rank == circle) {
      // The one whose sum with itself is the round's number.
      partner = round % 2 == 0 ? round / 2 : (round + circle) / 2;
    } else {
      partner = (round + circle - rank) % circle;
      partner = partner == rank ? circle : partner;
    }
    partners.push_back(partner < ranks ? std::optional(partner) : std::nullopt);
  }
  return partners;
}

json to_json(const PairResult& r) {
  return {{"from", r.from},
          {"to", r.to},
          {"device", r.device},
          {"device_name", r.device_name},
          {"error", r.error},
          {"warnings", r.warnings},
          {"round_trip_us", r.round_trip_us},
          {"gigabytes_per_s", r.gigabytes_per_s},
          {"speed_mbps", r.speed_mbps},
          {"alone", r.alone},
          {"own_gigabytes_per_s", r.own_gigabytes_per_s},
          {"segments", r.segments},
          {"segments_lost", r.segments_lost},
          {"segments_dropped", r.segments_dropped}};
}

Result<PairResult> pair_from_json(const json& from) {
  try {
    PairResult result;
    result.from = from.at("from");
    result.to = from.at("to");
    result.device = from.at("device");
    result.device_name = from.at("device_name");
    result.error = from.at("error");
    result.warnings = from.at("warnings").get<std::vector<std::string>>();
    result.round_trip_us = from.at("round_trip_us");
    result.gigabytes_per_s = from.at("gigabytes_per_s");
    result.speed_mbps = from.value("speed_mbps", int64_t{0});
    result.alone = from.value("alone", false);
    result.own_gigabytes_per_s = from.value("own_gigabytes_per_s", 0.0);
    result.segments = from.value("segments", uint64_t{0});
    result.segments_lost = from.value("segments_lost", uint64_t{0});
    result.segments_dropped = from.value("segments_dropped", uint64_t{0});
    return result;
  } catch (const json::exception& error) {
    return fail(Errc::internal, fmt::format("a rank's result cannot be read: {}", error.what()));
  }
}

Result<std::vector<CheckedDevice>> checked_devices(const HostFacts& facts) {
  auto provider = fabric::Provider::make(facts.config, facts.interfaces, 0);
  if (!provider) {
    return provider.error();
  }
  std::vector<CheckedDevice> devices;
  for (const fabric::NetDevice& device : (*provider)->devices()) {
    const bool rdma = !(*provider)->is_universal(device.kind);
    devices.push_back({device.name, fabric::nic_name(device),
                       rdma ? "HA_NCCL_IB_HCA" : "HA_NCCL_IFNAME", "=" + device.name,
                       device.speed_mbps});
  }
  return devices;
}

Result<std::vector<PairResult>> try_pairs(World& world, const Trials& trials) {
  return PairTrials(world, trials).run();
}

Result<std::vector<PairResult>> try_cables(World& world, const Trials& trials, const MeshPlan& plan,
                                           const std::vector<MeshSheet>& sheets) {
  // A way over relays would hide what is wrong with the cable.
  const Setting no_relays("HA_NCCL_MESH_RELAY", "off");
  std::vector<PairResult> results;
  const auto take = [&](const std::vector<size_t>& cables, bool alone) -> Result<void> {
    auto turn = turn_of(world, trials, plan, sheets, cables);
    return turn ? take_turn(world, trials, std::move(*turn), alone, results)
                : Result<void>(turn.error());
  };
  ProgressLine progress;
  for (size_t round = 0; round < plan.rounds.size(); ++round) {
    if (world.rank() == 0 && progress.due()) {
      progress.show(fmt::format("trying {} cables: {}%", plan.cables.size(),
                                round * 100 / plan.rounds.size()));
    }
    if (auto tried = take(plan.rounds[round], false); !tried) {
      return tried.error();
    }
  }
  const auto again = [&](const PairResult& pair) {
    return take({static_cast<size_t>(pair.device)}, true);
  };
  if (auto tried = try_some_again(world, results, true, again); !tried) {
    return tried.error();
  }
  return results;
}

bool is_worth_telling(const PairResult& result, uint32_t rank) {
  return rank == result.from || !result.error.empty() || !result.warnings.empty() ||
         result.segments_lost > 0 || result.alone;
}

std::vector<PairResult> merge(const std::vector<PairResult>& seen,
                              const std::vector<std::string>& hosts) {
  std::map<std::tuple<uint32_t, uint32_t, int>, PairResult> merged;
  for (const PairResult& result : seen) {
    const auto [at, fresh] =
        merged.emplace(std::tuple(result.from, result.to, result.device), result);
    PairResult& known = at->second;
    known.speed_mbps = slower_of(known.speed_mbps, result.speed_mbps);
    known.own_gigabytes_per_s = std::min(known.own_gigabytes_per_s, result.own_gigabytes_per_s);
    if (!result.error.empty() || !result.warnings.empty()) {
      known.sides[result.seen_by] = result.error +
                                    (result.error.empty() || result.warnings.empty() ? "" : "; ") +
                                    fmt::format("{}", fmt::join(result.warnings, "; "));
    }
    if (fresh) {
      continue;
    }
    known.segments_dropped += result.segments_dropped;
    if (result.segments_lost > known.segments_lost) {
      known.segments = result.segments;
      known.segments_lost = result.segments_lost;
    }
    if (known.error.empty()) {
      known.error = result.error;
    } else if (!result.error.empty() && result.seen_by != known.seen_by &&
               result.error != known.error) {
      // The cause is often on one side only, and the other one sees no more than that it is gone.
      known.error = fmt::format("{}: {}; {}: {}", hosts[known.seen_by], known.error,
                                hosts[result.seen_by], result.error);
    }
    for (const std::string& warning : result.warnings) {
      if (std::find(known.warnings.begin(), known.warnings.end(), warning) ==
          known.warnings.end()) {
        known.warnings.push_back(warning);
      }
    }
  }
  std::vector<PairResult> all;
  all.reserve(merged.size());
  for (auto& [key, result] : merged) {
    all.push_back(std::move(result));
  }
  return all;
}

}  // namespace nccl_ha::tools
