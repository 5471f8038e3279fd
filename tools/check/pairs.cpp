#include "tools/check/pairs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/fabric/provider.h"
#include "runtime/telemetry/counter_reader.h"
#include "tools/check/meeting.h"
#include "tools/common/terminal.h"

namespace nccl_ha::tools {
namespace {

using nlohmann::json;

/// A setting of this process for as long as this lives.
class Setting {
 public:
  Setting(std::string variable, const std::string& value) : variable_(std::move(variable)) {
    if (const char* before = getenv(variable_.c_str())) {
      before_ = before;
    }
    setenv(variable_.c_str(), value.c_str(), 1);
  }
  ~Setting() {
    if (before_) {
      setenv(variable_.c_str(), before_->c_str(), 1);
    } else {
      unsetenv(variable_.c_str());
    }
  }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  std::string variable_;
  std::optional<std::string> before_;
};

/// What this process has sent as datagrams over each of its paths, and what was found lost of it.
struct SegmentCount {
  uint64_t sent = 0;
  uint64_t lost = 0;
};
/// By the id of the path's block, of which none is used twice.
using SegmentCounts = std::map<uint64_t, SegmentCount>;

/// Nothing where the plugin keeps no counters.
SegmentCounts count_segments(const std::string& directory) {
  SegmentCounts counts;
  if (directory.empty()) {
    return counts;
  }
  const auto files = read_counters_of(static_cast<uint32_t>(getpid()), directory, EventsWanted::no);
  for (const ProcessCounterFile& file : files ? *files : std::vector<ProcessCounterFile>()) {
    for (const CounterSnapshot::Block& block : file.snapshot.blocks) {
      const CounterSnapshot::Scope& scope = file.snapshot.scopes[block.scope];
      for (size_t i = 0; scope.name == "datagram_path" && i < block.values.size(); ++i) {
        const std::string& name = scope.counters[i].name;
        counts[block.id].sent += name == "segments_sent" ? block.values[i] : 0;
        counts[block.id].lost += name == "fast_retransmits" ? block.values[i] : 0;
      }
    }
  }
  return counts;
}

/// Those of paths that are not in `before`: they belong to one meeting.
void add_segments(const SegmentCounts& before, const SegmentCounts& now, PairResult& result) {
  for (const auto& [path, count] : now) {
    if (!before.contains(path)) {
      result.segments += count.sent;
      result.segments_lost += count.lost;
    }
  }
}

/// One device's meetings: the plugin, loaded so that it sees this device only.
class DeviceTrial {
 public:
  DeviceTrial(World& world, Duration patience, std::string counters_dir)
      : world_(world), patience_(patience), counters_dir_(std::move(counters_dir)) {}
  ~DeviceTrial() {
    if (library_) {
      static_cast<void>(library_->api().finalize());
      library_.reset();
    }
  }
  DeviceTrial(const DeviceTrial&) = delete;
  DeviceTrial& operator=(const DeviceTrial&) = delete;

  Result<void> open(const std::string& plugin, const CheckedDevice& device) {
    only_.emplace(device.variable, device.value);
    auto library = NetLibrary::open(plugin, 0);
    if (!library) {
      return library.error();
    }
    library_ = std::move(*library);
    // A device may have gone since this host was looked at: that is what is looked for here.
    if (auto begun = library_->api().init(); !begun) {
      unusable_ = begun.error().message();
      return {};
    }
    auto count = library_->api().devices();
    if (!count || *count < 1) {
      unusable_ = count ? fmt::format("the plugin has no device {} any more", device.name)
                        : count.error().message();
    }
    return {};
  }
  /// Why the device cannot be tried; empty: it can.
  const std::string& unusable() const { return unusable_; }

  /// Every rank calls it, those without a partner too: they take part in the exchange.
  Result<void> meet(std::optional<uint32_t> partner, PairResult& result) {
    static_cast<void>(take_plugin_warnings());
    NetHandle handle{};
    std::optional<Meeting> meeting;
    if (partner) {
      SteadyClock clock;
      result.from = std::min(world_.rank(), *partner);
      result.to = std::max(world_.rank(), *partner);
      meeting.emplace(world_, library_->api(), clock.now() + patience_);
      if (auto listening = meeting->listen(handle); !listening) {
        result.error = listening.error().message();
      }
    }
    auto handles = world_.all_gather(
        partner && result.error.empty()
            ? std::string(reinterpret_cast<const char*>(handle.data()), handle.size())
            : std::string());
    if (!handles) {
      return handles.error();
    }
    if (!partner) {
      return {};
    }
    const std::string& peer = (*handles)[*partner];
    if (result.error.empty() && peer.size() == handle.size()) {
      std::memcpy(handle.data(), peer.data(), peer.size());
      const SegmentCounts before = count_segments(counters_dir_);
      talk(*meeting, handle, world_.rank() < *partner, result);
      add_segments(before, count_segments(counters_dir_), result);
    } else if (result.error.empty()) {
      result.error = "the other side could not listen";
    }
    meeting.reset();
    result.warnings = take_plugin_warnings();
    // What made it fail is told by the error already.
    std::erase_if(result.warnings, [&](const std::string& warning) {
      return result.error.find(warning) != std::string::npos;
    });
    return {};
  }

 private:
  /// Runs one meeting to its end and writes down how it went.
  void talk(Meeting& meeting, const NetHandle& handle, bool first, PairResult& result) const {
    const uint64_t seed = (uint64_t{result.from} << 40) + (uint64_t{result.to} << 16) +
                          static_cast<uint64_t>(result.device);
    if (auto connected = meeting.connect(handle); !connected) {
      result.error = connected.error().message();
      return;
    }
    auto small = meeting.small(first, seed);
    if (!small) {
      result.error = "small messages: " + small.error().message();
      return;
    }
    result.round_trip_us = *small;
    auto large = meeting.large(seed + 1000);
    if (!large) {
      result.error = "large messages: " + large.error().message();
      return;
    }
    result.gigabytes_per_s = *large;
  }

  World& world_;
  Duration patience_;
  std::unique_ptr<NetLibrary> library_;
  std::string counters_dir_;  ///< empty: nothing is counted
  std::string unusable_;
  std::optional<Setting> only_;
};

/// 0 is unknown.
template <class T>
T slower_of(T one, T other) {
  return one == T{} ? other : other == T{} ? one : std::min(one, other);
}

/// Of two results about a pair and a device the better one stays.
void keep_better(std::vector<PairResult>& results, PairResult result) {
  const auto before = std::find_if(results.begin(), results.end(), [&](const PairResult& one) {
    return one.from == result.from && one.to == result.to && one.device == result.device;
  });
  if (before == results.end()) {
    results.push_back(std::move(result));
  } else if (!before->error.empty()) {
    *before = std::move(result);
  } else if (result.error.empty()) {
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

/// Tries these cables, at most one of this rank's, and enters its result or the better one of two.
Result<void> try_round(World& world, const Trials& trials, const MeshPlan& plan,
                       const std::vector<MeshSheet>& sheets, const std::vector<size_t>& cables,
                       std::vector<PairResult>& results) {
  DeviceTrial trial(world, trials.patience, trials.counters_dir);
  std::optional<uint32_t> partner;
  PairResult result;
  for (const size_t number : cables) {
    const auto& ends = plan.cables[number].ends;
    const size_t own = ends[0].rank == world.rank() ? 0 : 1;
    if (ends[own].rank != world.rank()) {
      continue;
    }
    partner = ends[1 - own].rank;
    result.device = static_cast<int>(number);
    result.device_name = cable_name(plan.cables[number], sheets);
    const std::string& interface = sheets[world.rank()].ports[ends[own].port].name;
    const auto device = std::find_if(trials.devices.begin(), trials.devices.end(),
                                     [&](const auto& one) { return one.interface == interface; });
    if (device == trials.devices.end()) {
      return fail(Errc::internal, "no device at " + interface);
    }
    if (auto opened = trial.open(trials.plugin, *device); !opened) {
      return opened.error();
    }
    result.speed_mbps = device->speed_mbps;
    result.own_gigabytes_per_s = trials.own_gigabytes_per_s;
  }
  const bool usable = trial.unusable().empty();
  if (auto met = trial.meet(usable ? partner : std::nullopt, result); !met || !partner) {
    return met;
  }
  result.from = std::min(world.rank(), *partner);
  result.to = std::max(world.rank(), *partner);
  result.error = usable ? result.error : trial.unusable();
  keep_better(results, std::move(result));
  return {};
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
    if (auto tried = try_some_again(); !tried) {
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
      DeviceTrial trial(world_, trials_.patience, trials_.counters_dir);
      if (device < trials_.devices.size()) {
        if (auto opened = trial.open(trials_.plugin, trials_.devices[device]); !opened) {
          return opened;
        }
      }
      for (size_t at = 0; at < partners.size(); ++at) {
        if (world_.rank() == 0 && progress.due()) {
          progress.show(
              fmt::format("trying connections between {} hosts: {}%", world_.size(),
                          (device * partners.size() + at) * 100 / (most * partners.size())));
        }
        if (auto met = meet(trial, device, partners[at]); !met) {
          return met;
        }
      }
    }
    return {};
  }

  /// Hosts were busy with other pairs, perhaps: what went badly is tried alone.
  Result<void> try_some_again() {
    const auto seen = seen_by_all(world_, results_);
    if (!seen) {
      return seen.error();
    }
    const std::vector<size_t> again = to_try_again(*seen);
    for (size_t i = 0; i < again.size(); ++i) {
      const PairResult& pair = (*seen)[again[i]];
      if (i >= tries_again_max) {
        forget_losses(pair);
        continue;
      }
      const bool takes_part = world_.rank() == pair.from || world_.rank() == pair.to;
      const auto device = static_cast<size_t>(pair.device);
      DeviceTrial trial(world_, trials_.patience, trials_.counters_dir);
      if (takes_part) {
        if (auto opened = trial.open(trials_.plugin, trials_.devices[device]); !opened) {
          return opened;
        }
      }
      const uint32_t other = world_.rank() == pair.from ? pair.to : pair.from;
      if (auto met = meet(trial, device, takes_part ? std::optional(other) : std::nullopt); !met) {
        return met;
      }
    }
    return {};
  }

  /// What gets lost while other pairs are busy says nothing of the network.
  void forget_losses(const PairResult& pair) {
    for (PairResult& one : results_) {
      if (one.from == pair.from && one.to == pair.to && one.device == pair.device) {
        one.segments_lost = 0;
      }
    }
  }

  /// All ranks call it together, those without a partner too.
  Result<void> meet(DeviceTrial& trial, size_t device, std::optional<uint32_t> partner) {
    if (partner && (device >= trials_.devices.size() || device >= device_counts_[*partner])) {
      partner.reset();
    }
    PairResult result;
    result.device = static_cast<int>(device);
    const bool usable = trial.unusable().empty();
    if (auto met = trial.meet(usable ? partner : std::nullopt, result); !met || !partner) {
      return met;
    }
    result.from = std::min(world_.rank(), *partner);
    result.to = std::max(world_.rank(), *partner);
    result.device_name = trials_.devices[device].name;
    result.speed_mbps = trials_.devices[device].speed_mbps;
    result.own_gigabytes_per_s = trials_.own_gigabytes_per_s;
    result.error = usable ? result.error : trial.unusable();
    keep_better(results_, std::move(result));
    return {};
  }

  /// So many at most: each takes a second or more, and more than these are no accident.
  static constexpr size_t tries_again_max = 16;

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
          {"own_gigabytes_per_s", r.own_gigabytes_per_s},
          {"segments", r.segments},
          {"segments_lost", r.segments_lost}};
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
    result.own_gigabytes_per_s = from.value("own_gigabytes_per_s", 0.0);
    result.segments = from.value("segments", uint64_t{0});
    result.segments_lost = from.value("segments_lost", uint64_t{0});
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
  ProgressLine progress;
  for (size_t round = 0; round < plan.rounds.size(); ++round) {
    if (world.rank() == 0 && progress.due()) {
      progress.show(fmt::format("trying {} cables: {}%", plan.cables.size(),
                                round * 100 / plan.rounds.size()));
    }
    if (auto tried = try_round(world, trials, plan, sheets, plan.rounds[round], results); !tried) {
      return tried.error();
    }
  }
  const auto seen = seen_by_all(world, results);
  if (!seen) {
    return seen.error();
  }
  // Hosts were busy with others, perhaps: each of these alone.
  for (const size_t index : to_try_again(*seen)) {
    const auto cable = static_cast<size_t>((*seen)[index].device);
    if (auto tried = try_round(world, trials, plan, sheets, {cable}, results); !tried) {
      return tried.error();
    }
  }
  return results;
}

bool is_worth_telling(const PairResult& result, uint32_t rank) {
  return rank == result.from || !result.error.empty() || !result.warnings.empty() ||
         result.segments_lost > 0;
}

std::vector<PairResult> merge(const std::vector<PairResult>& seen,
                              const std::vector<std::string>& hosts) {
  std::map<std::tuple<uint32_t, uint32_t, int>, PairResult> merged;
  for (const PairResult& result : seen) {
    const auto [at, fresh] =
        merged.emplace(std::tuple(result.from, result.to, result.device), result);
    PairResult& known = at->second;
    known.speed_mbps = slower_of(known.speed_mbps, result.speed_mbps);
    known.own_gigabytes_per_s = slower_of(known.own_gigabytes_per_s, result.own_gigabytes_per_s);
    if (!result.error.empty() || !result.warnings.empty()) {
      known.sides[result.seen_by] = result.error +
                                    (result.error.empty() || result.warnings.empty() ? "" : "; ") +
                                    fmt::format("{}", fmt::join(result.warnings, "; "));
    }
    if (fresh) {
      continue;
    }
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
