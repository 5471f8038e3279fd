#include "tools/check/device_trial.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/telemetry/counter_reader.h"
#include "tools/check/interface_facts.h"
#include "tools/check/meeting.h"

namespace nccl_ha::tools {
namespace {

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

}  // namespace

Setting::Setting(std::string variable, const std::string& value) : variable_(std::move(variable)) {
  if (const char* before = getenv(variable_.c_str())) {
    before_ = before;
  }
  setenv(variable_.c_str(), value.c_str(), 1);
}

Setting::~Setting() {
  if (before_) {
    setenv(variable_.c_str(), before_->c_str(), 1);
  } else {
    unsetenv(variable_.c_str());
  }
}

DeviceTrial::~DeviceTrial() {
  if (library_) {
    static_cast<void>(library_->api().finalize());
    library_.reset();
  }
}

Result<void> DeviceTrial::open(const CheckedDevice& device) {
  settings_.emplace_back(device.variable, device.value);
  // A plugin that lacks a device which these name does not start.
  for (const char* names :
       {"HA_NCCL_HCA_SOUT", "MPIB_HCA_SOUT", "HA_NCCL_HCA_SUP", "MPIB_HCA_SUP"}) {
    settings_.emplace_back(names, "");
  }
  if (device.variable == "HA_NCCL_IFNAME") {
    settings_.emplace_back("HA_NCCL_OOB_IF", "");
    settings_.emplace_back("MPIB_OOB_IF", "");
  }
  auto library = NetLibrary::open(trials_.plugin, 0);
  if (!library) {
    return library.error();
  }
  library_ = std::move(*library);
  static_cast<void>(take_plugin_warnings());
  // A device may have gone since this host was looked at: that is what is looked for here.
  if (auto begun = library_->api().init(); !begun) {
    unusable_ = begun.error().message();
    return {};
  }
  for (const std::string& said : take_plugin_warnings()) {
    // A call into a driver that hangs keeps the library loaded, too.
    if (said.find("settings and devices stay as they were") != std::string::npos) {
      unusable_ = said;
    }
  }
  auto count = library_->api().devices();
  if (!count || *count < 1) {
    unusable_ = count ? fmt::format("the plugin has no device {} any more", device.name)
                      : count.error().message();
  }
  return {};
}

Result<void> DeviceTrial::meet(std::optional<uint32_t> partner, PairResult& result) {
  static_cast<void>(take_plugin_warnings());
  NetHandle handle{};
  std::optional<Meeting> meeting;
  if (partner) {
    SteadyClock clock;
    result.from = std::min(world_.rank(), *partner);
    result.to = std::max(world_.rank(), *partner);
    meeting.emplace(world_, library_->api(), clock.now() + trials_.patience);
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
    return world_.barrier();
  }
  const std::string& peer = (*handles)[*partner];
  if (result.error.empty() && peer.size() == handle.size()) {
    std::memcpy(handle.data(), peer.data(), peer.size());
    const SegmentCounts before = count_segments(trials_.counters_dir);
    const uint64_t without_room = datagrams_without_room();
    talk(*meeting, handle, world_.rank() < *partner, result);
    add_segments(before, count_segments(trials_.counters_dir), result);
    // What the kernel puts together counts once there.
    constexpr uint64_t segments_together = 64;
    result.segments_dropped = (datagrams_without_room() - without_room) * segments_together;
  } else if (result.error.empty()) {
    result.error = "the other side could not listen";
  }
  meeting.reset();
  result.warnings = take_plugin_warnings();
  // What made it fail is told by the error already.
  std::erase_if(result.warnings, [&](const std::string& warning) {
    return result.error.find(warning) != std::string::npos;
  });
  return world_.barrier();
}

double DeviceTrial::meet_itself() {
  SteadyClock clock;
  Meeting meeting(world_, library_->api(), clock.now() + trials_.patience);
  NetHandle handle{};
  if (!meeting.listen(handle) || !meeting.connect(handle)) {
    return 0;
  }
  const auto rate = meeting.large(1);
  return rate ? *rate : 0;
}

/// Runs one meeting to its end and writes down how it went.
void DeviceTrial::talk(Meeting& meeting, const NetHandle& handle, bool first,
                       PairResult& result) const {
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

double own_rate(World& world, const Trials& trials, const CheckedDevice& device) {
  // The peer is this process: no cable leads there.
  const Setting no_relays("HA_NCCL_MESH_RELAY", "off");
  const bool rdma = device.variable == "HA_NCCL_IB_HCA";
  DeviceTrial trial(world, trials);
  const auto opened =
      trial.open(rdma ? device : CheckedDevice{"lo", "lo", "HA_NCCL_IFNAME", "=lo"});
  return opened && trial.unusable().empty() ? trial.meet_itself() : 0;
}

}  // namespace nccl_ha::tools
