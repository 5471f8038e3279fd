#include "tools/check/pairs.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/random.h"
#include "runtime/fabric/provider.h"
#include "tools/common/terminal.h"

namespace nccl_ha::tools {
namespace {

using nlohmann::json;

constexpr int the_device = 0;  ///< there is no other, see CheckedDevice
constexpr size_t small_bytes = 8;
constexpr size_t large_bytes = 4 << 20;
constexpr int small_rounds = 21;
constexpr int large_rounds = 5;  ///< one alone may meet a moment in which a host is busy
/// Whoever took longer for large messages so far is not asked for more of them.  One that is lost
/// and sent again costs a tenth of a second, which says nothing of the link.
constexpr auto large_time_max = std::chrono::milliseconds(800);

/// One rank's ends of the connections with one peer on one device.
class Meeting {
 public:
  Meeting(World& world, NetApi& api, Instant deadline)
      : world_(world), api_(api), deadline_(deadline) {}
  ~Meeting() { close(); }
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  /// For the peer to connect to.
  Result<void> listen(NetHandle& handle) {
    auto listening = api_.listen(the_device, handle);
    if (!listening) {
      return listening.error();
    }
    listening_ = *listening;
    return {};
  }

  Result<void> connect(NetHandle handle) {
    while (send_ == nullptr || receive_ == nullptr) {
      if (send_ == nullptr) {
        auto made = api_.connect(the_device, handle);
        if (!made) {
          return made.error();
        }
        send_ = *made;
      }
      if (receive_ == nullptr) {
        auto made = api_.accept(listening_);
        if (!made) {
          return made.error();
        }
        receive_ = *made;
      }
      if (auto going = go_on("connecting"); !going) {
        return going;
      }
    }
    auto out = api_.register_memory(send_, out_.data(), out_.size());
    auto in = api_.register_memory(receive_, in_.data(), in_.size());
    if (!out || !in) {
      return out ? in.error() : out.error();
    }
    out_key_ = *out;
    in_key_ = *in;
    registered_ = true;
    return {};
  }

  /// Small messages there and back: the median time of a round trip in microseconds.
  Result<double> small(bool first, uint64_t seed) {
    std::vector<double> times;
    SteadyClock clock;
    for (int round = 0; round < small_rounds; ++round) {
      fill(small_bytes, seed + static_cast<uint64_t>(round));
      const Instant begin = clock.now();
      // Whoever is not first answers.
      for (const bool sending : {first, !first}) {
        auto moved = move(sending ? small_bytes : 0, sending ? 0 : small_bytes);
        if (!moved) {
          return moved.error();
        }
      }
      times.push_back(std::chrono::duration<double, std::micro>(clock.now() - begin).count());
      if (!arrived(small_bytes, seed + static_cast<uint64_t>(round))) {
        return fail(Errc::remote, "a small message arrived with other bytes than were sent");
      }
    }
    std::nth_element(times.begin(), times.begin() + small_rounds / 2, times.end());
    return times[small_rounds / 2];
  }

  /// Large messages both ways at once: gigabytes per second of one direction, the median.
  Result<double> large(uint64_t seed) {
    std::vector<Duration> times;
    SteadyClock clock;
    Duration spent{};
    bool more = true;
    while (more) {
      fill(large_bytes, seed + times.size());
      const Instant begin = clock.now();
      if (auto moved = move(large_bytes, large_bytes); !moved) {
        return moved.error();
      }
      times.push_back(clock.now() - begin);
      spent += times.back();
      if (!arrived(large_bytes, seed + times.size() - 1)) {
        return fail(Errc::remote, "a large message arrived with other bytes than were sent");
      }
      if (times.size() == large_rounds) {
        break;
      }
      auto quick = both(spent < large_time_max);
      if (!quick) {
        return quick.error();
      }
      more = *quick;
    }
    const auto middle = times.begin() + static_cast<ptrdiff_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    const std::chrono::duration<double> took = *middle;
    return static_cast<double>(large_bytes) / took.count() / 1e9;
  }

  void close() {
    if (registered_) {
      registered_ = false;
      static_cast<void>(api_.deregister_memory(send_, out_key_));
      static_cast<void>(api_.deregister_memory(receive_, in_key_));
    }
    if (send_ != nullptr) {
      static_cast<void>(api_.close_send(std::exchange(send_, nullptr)));
    }
    if (receive_ != nullptr) {
      static_cast<void>(api_.close_recv(std::exchange(receive_, nullptr)));
    }
    if (listening_ != nullptr) {
      static_cast<void>(api_.close_listen(std::exchange(listening_, nullptr)));
    }
  }

 private:
  Result<void> go_on(const char* what) {
    SteadyClock clock;
    if (clock.now() > deadline_) {
      return fail(Errc::timed_out, fmt::format("{} took too long", what));
    }
    sched_yield();
    return world_.check();
  }

  /// Whether both sides say yes.
  Result<bool> both(bool mine) {
    std::memset(out_.data(), mine ? 1 : 0, small_bytes);
    if (auto moved = move(small_bytes, small_bytes); !moved) {
      return moved.error();
    }
    return mine && in_[0] == std::byte{1};
  }

  // The same content on both sides: each knows what it must get.
  void fill(size_t bytes, uint64_t seed) {
    Random random(seed);
    for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
      const uint64_t word = random.next();
      std::memcpy(out_.data() + i, &word, sizeof word);
    }
    std::memset(in_.data(), 0, bytes);
  }
  bool arrived(size_t bytes, uint64_t seed) {
    Random random(seed);
    for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
      const uint64_t word = random.next();
      if (std::memcmp(in_.data() + i, &word, sizeof word) != 0) {
        return false;
      }
    }
    return true;
  }

  /// Sends and receives at once; 0 bytes: nothing.
  Result<void> move(size_t send_bytes, size_t receive_bytes) {
    void* sending = nullptr;
    void* receiving = nullptr;
    bool to_send = send_bytes > 0;
    bool to_receive = receive_bytes > 0;
    while (to_send || to_receive) {
      if (auto step = step_receive(receiving, to_receive, receive_bytes); !step) {
        return step;
      }
      if (auto step = step_send(sending, to_send, send_bytes); !step) {
        return step;
      }
      if (auto going = go_on("a transfer"); !going) {
        return going;
      }
    }
    return {};
  }

  Result<void> step_send(void*& request, bool& left, size_t bytes) {
    if (left && request == nullptr) {
      const auto posted = api_.isend(send_, out_.data(), bytes, 0, out_key_, &request);
      if (posted != abi::NcclResult::success) {
        return api_.call_failed("isend", posted);
      }
    }
    return left && request != nullptr ? finish(request, left) : Result<void>();
  }

  Result<void> step_receive(void*& request, bool& left, size_t bytes) {
    if (left && request == nullptr) {
      void* data = in_.data();
      const int tag = 0;
      const auto posted = api_.irecv(receive_, 1, &data, &bytes, &tag, &in_key_, &request);
      if (posted != abi::NcclResult::success) {
        return api_.call_failed("irecv", posted);
      }
    }
    return left && request != nullptr ? finish(request, left) : Result<void>();
  }

  Result<void> finish(void* request, bool& left) {
    int done = 0;
    int sizes[8] = {};
    const auto tested = api_.test(request, &done, sizes);
    if (tested != abi::NcclResult::success) {
      return api_.call_failed("test", tested);
    }
    left = done == 0;
    return {};
  }

  World& world_;
  NetApi& api_;
  Instant deadline_;
  void* listening_ = nullptr;
  void* send_ = nullptr;
  void* receive_ = nullptr;
  bool registered_ = false;
  void* out_key_ = nullptr;
  void* in_key_ = nullptr;
  std::vector<std::byte> out_ = std::vector<std::byte>(large_bytes);
  std::vector<std::byte> in_ = std::vector<std::byte>(large_bytes);
};

/// One device's meetings: the plugin, loaded so that it sees this device only.
class DeviceTrial {
 public:
  DeviceTrial(World& world, Duration patience) : world_(world), patience_(patience) {}
  ~DeviceTrial() {
    if (library_) {
      static_cast<void>(library_->api().finalize());
      library_.reset();
    }
    if (before_) {
      setenv(variable_.c_str(), before_->c_str(), 1);
    } else if (!variable_.empty()) {
      unsetenv(variable_.c_str());
    }
  }
  DeviceTrial(const DeviceTrial&) = delete;
  DeviceTrial& operator=(const DeviceTrial&) = delete;

  Result<void> open(const std::string& plugin, const CheckedDevice& device) {
    variable_ = device.variable;
    if (const char* value = getenv(variable_.c_str())) {
      before_ = value;
    }
    setenv(variable_.c_str(), device.value.c_str(), 1);
    auto library = NetLibrary::open(plugin, 0, "");
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
      talk(*meeting, handle, world_.rank() < *partner, result);
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
  static void talk(Meeting& meeting, const NetHandle& handle, bool first, PairResult& result) {
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
  std::string unusable_;
  std::string variable_;
  std::optional<std::string> before_;
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
          {"gigabytes_per_s", r.gigabytes_per_s}};
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
    devices.push_back({device.name, rdma ? "HA_NCCL_IB_HCA" : "HA_NCCL_IFNAME", "=" + device.name});
  }
  return devices;
}

Result<std::vector<PairResult>> try_pairs(World& world, const std::string& plugin,
                                          const std::vector<CheckedDevice>& devices,
                                          Duration patience) {
  auto counts = world.all_gather(std::to_string(devices.size()));
  if (!counts) {
    return counts.error();
  }
  std::vector<size_t> device_counts;
  for (const std::string& count : *counts) {
    device_counts.push_back(static_cast<size_t>(std::atoi(count.c_str())));
  }
  std::vector<PairResult> results;
  ProgressLine progress;
  const size_t most = *std::max_element(device_counts.begin(), device_counts.end());
  const auto all_meetings = meetings(world.rank(), world.size());
  for (size_t device = 0; device < most; ++device) {
    DeviceTrial trial(world, patience);
    if (device < devices.size()) {
      if (auto opened = trial.open(plugin, devices[device]); !opened) {
        return opened.error();
      }
    }
    for (size_t at = 0; at < all_meetings.size(); ++at) {
      const auto& partner = all_meetings[at];
      if (world.rank() == 0 && progress.due()) {
        progress.show(
            fmt::format("trying connections between {} hosts: {}%", world.size(),
                        (device * all_meetings.size() + at) * 100 / (most * all_meetings.size())));
      }
      const bool take_part = partner && device < devices.size() && device < device_counts[*partner];
      PairResult result;
      result.device = static_cast<int>(device);
      const bool usable = trial.unusable().empty();
      auto met = trial.meet(take_part && usable ? partner : std::nullopt, result);
      if (!met) {
        return met.error();
      }
      if (take_part) {
        if (!usable) {
          result.from = std::min(world.rank(), *partner);
          result.to = std::max(world.rank(), *partner);
          result.error = trial.unusable();
        }
        result.device_name = devices[device].name;
        results.push_back(std::move(result));
      }
    }
  }
  return results;
}

bool is_worth_telling(const PairResult& result, uint32_t rank) {
  return rank == result.from || !result.error.empty() || !result.warnings.empty();
}

std::vector<PairResult> merge(const std::vector<PairResult>& seen,
                              const std::vector<std::string>& hosts) {
  std::map<std::tuple<uint32_t, uint32_t, int>, PairResult> merged;
  for (const PairResult& result : seen) {
    const auto [at, fresh] =
        merged.emplace(std::tuple(result.from, result.to, result.device), result);
    if (fresh) {
      continue;
    }
    PairResult& known = at->second;
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
