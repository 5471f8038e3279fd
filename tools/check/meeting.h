// Two ranks that try one device with each other.
#pragma once

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/random.h"
#include "tools/common/bootstrap.h"
#include "tools/common/net_library.h"

namespace nccl_ha::tools {

inline constexpr int the_device = 0;  ///< there is no other, see CheckedDevice
inline constexpr size_t small_bytes = 8;
inline constexpr size_t large_bytes = 4 << 20;
inline constexpr int small_rounds = 21;
inline constexpr int large_rounds = 5;  ///< one alone may meet a moment in which a host is busy
/// Whoever took longer for large messages so far is not asked for more of them.  One that is lost
/// and sent again costs a tenth of a second, which says nothing of the link.
inline constexpr auto large_time_max = std::chrono::milliseconds(800);

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

}  // namespace nccl_ha::tools
