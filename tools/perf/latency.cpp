#include "tools/perf/latency.h"

#include <fmt/format.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "runtime/base/clock.h"

namespace nccl_ha::tools {
namespace {

constexpr size_t slot_alignment = 64;
constexpr uint32_t passes_per_look = 4096;

size_t slot_bytes(size_t message_bytes) {
  return (std::max<size_t>(message_bytes, 1) + slot_alignment - 1) / slot_alignment *
         slot_alignment;
}

/// One side of the game.
class PingPong {
 public:
  PingPong(const NetApi& api, const LatencyOptions& options, const BufferSet& memory,
           const Link& send, const Link& recv, const IdleCheck& check)
      : api_(api),
        o_(options),
        slot_(slot_bytes(options.bytes)),
        out_(memory.span(Buffer::out)),
        in_(memory.span(Buffer::in)),
        send_(send),
        recv_(recv),
        check_(check),
        checker_(options.seed, DataType::uint8, ReduceOp::sum, {}) {}

  Result<LatencyResult> run() {
    if (o_.rank == 0 && o_.iterations > 0) {
      result_.half_round_trips_us.reserve(o_.iterations);
    }
    const double cpu_before = process_cpu_seconds();
    if (auto done = o_.rank == 0 ? serve() : answer(); !done) {
      return done.error();
    }
    result_.cpu_s = process_cpu_seconds() - cpu_before;
    return std::move(result_);
  }

 private:
  Result<void> serve() {
    SteadyClock clock;
    for (uint64_t i = 0; i < o_.iterations; ++i) {
      fill(i);
      if (auto posted = post_receives(i); !posted) {
        return posted;
      }
      if (auto rested = rest(i, clock); !rested) {
        return rested;
      }
      const Instant begin = clock.now();
      if (auto sent = send(i); !sent) {
        return sent;
      }
      if (auto sent = o_.send_first ? finish_send() : Result<void>(); !sent) {
        return sent;
      }
      if (auto received = receive(i); !received) {
        return received;
      }
      const Instant end = clock.now();
      if (auto sent = finish_send(); !sent) {
        return sent;
      }
      result_.half_round_trips_us.push_back(static_cast<double>((end - begin).count()) / 2000.0);
      verify(i);
    }
    return {};
  }

  Result<void> answer() {
    for (uint64_t i = 0; i < o_.iterations; ++i) {
      fill(i);
      if (auto posted = post_receives(i); !posted) {
        return posted;
      }
      if (auto received = receive(i); !received) {
        return received;
      }
      if (auto sent = send(i); !sent) {
        return sent;
      }
      if (auto sent = finish_send(); !sent) {
        return sent;
      }
      verify(i);
    }
    return {};
  }

  std::byte* slot(std::span<std::byte> area, uint64_t i) const {
    return area.data() + i % o_.depth * slot_;
  }

  void fill(uint64_t i) {
    fill_stream({slot(in_, i), o_.bytes}, 0, stream_key(o_.seed, o_.rank, o_.first_iteration + i),
                {});
  }

  void verify(uint64_t i) {
    if (o_.check) {
      const Expected expected{0, o_.bytes, 0, {1 - o_.rank}};
      checker_.check({slot(out_, i), o_.bytes}, expected, o_.first_iteration + i, result_.check);
    }
  }

  /// Lets the pause pass, testing meanwhile as NCCL does, until what was posted ahead and what the
  /// message before left behind is done on both sides.
  Result<void> rest(uint64_t i, Clock& clock) {
    if (o_.pause == Duration(0)) {
      return {};
    }
    const Instant end = clock.now() + o_.pause;
    for (uint32_t idle = 0; clock.now() < end;) {
      auto early = test_receive(i);
      if (!early) {
        return early.error();
      }
      if (*early) {
        return fail(Errc::remote, "a message came before it was asked for");
      }
      if (auto waited = pass(idle); !waited) {
        return waited;
      }
    }
    return {};
  }

  /// Keeps `depth` receives posted, none for messages beyond the last.
  Result<void> post_receives(uint64_t i) {
    const uint64_t until = std::min(o_.iterations, i + o_.depth);
    for (uint32_t idle = 0; posted_ < until;) {
      void* data = slot(out_, posted_);
      size_t bytes = o_.bytes;
      int tag = static_cast<int>(1 - o_.rank);
      void* mhandle = recv_.mhandles[static_cast<size_t>(Buffer::out)];
      void* request = nullptr;
      const auto result = api_.irecv(recv_.comm, 1, &data, &bytes, &tag, &mhandle, &request);
      if (result != abi::NcclResult::success) {
        return api_.call_failed("irecv", result);
      }
      if (request != nullptr) {
        requests_[posted_++ % o_.depth] = request;
      } else if (posted_ > i) {
        return {};  // enough to go on; the rest later
      } else if (auto waited = pass(idle); !waited) {
        return waited;
      }
    }
    return {};
  }

  Result<void> send(uint64_t i) {
    for (uint32_t idle = 0;;) {
      const auto result = api_.isend(send_.comm, slot(in_, i), o_.bytes, static_cast<int>(o_.rank),
                                     send_.mhandles[static_cast<size_t>(Buffer::in)], &sending_);
      if (result != abi::NcclResult::success) {
        return api_.call_failed("isend", result);
      }
      if (sending_ != nullptr) {
        return {};
      }
      if (auto waited = pass(idle); !waited) {
        return waited;
      }
    }
  }

  Result<bool> test_send() {
    int done = 0;
    int size = 0;
    const auto result = api_.test(sending_, &done, &size);
    if (result != abi::NcclResult::success) {
      return api_.call_failed("test of a send", result);
    }
    if (done != 0) {
      sending_ = nullptr;
    }
    return done != 0;
  }

  Result<bool> test_receive(uint64_t i) {
    int done = 0;
    int size = -1;
    const auto result = api_.test(requests_[i % o_.depth], &done, &size);
    if (result != abi::NcclResult::success) {
      return api_.call_failed("test of a receive", result);
    }
    if (done != 0 && static_cast<size_t>(size) != o_.bytes) {
      return fail(Errc::remote,
                  fmt::format("a message of {} bytes was reported as {}", o_.bytes, size));
    }
    return done != 0;
  }

  /// Waits for message i; looks after a send still under way meanwhile, as NCCL's loop does.
  Result<void> receive(uint64_t i) {
    for (uint32_t idle = 0;;) {
      if (sending_ != nullptr) {
        if (auto tested = test_send(); !tested) {
          return tested.error();
        }
      }
      auto done = test_receive(i);
      if (!done) {
        return done.error();
      }
      if (*done) {
        return {};
      }
      if (auto waited = pass(idle); !waited) {
        return waited;
      }
    }
  }

  Result<void> finish_send() {
    for (uint32_t idle = 0; sending_ != nullptr;) {
      auto done = test_send();
      if (!done) {
        return done.error();
      }
      if (!*done) {
        if (auto waited = pass(idle); !waited) {
          return waited;
        }
      }
    }
    return {};
  }

  Result<void> pass(uint32_t& idle) {
    if (!o_.spin) {
      sched_yield();
    }
    if (++idle % passes_per_look == 0) {
      return check_();
    }
    return {};
  }

  const NetApi& api_;
  const LatencyOptions& o_;
  const size_t slot_;
  const std::span<std::byte> out_;
  const std::span<std::byte> in_;
  const Link& send_;
  const Link& recv_;
  const IdleCheck& check_;
  Checker checker_;
  std::array<void*, depth_max> requests_{};
  void* sending_ = nullptr;
  uint64_t posted_ = 0;
  LatencyResult result_;
};

}  // namespace

double process_cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

size_t latency_buffer_bytes(size_t message_bytes, uint32_t depth) {
  return slot_bytes(message_bytes) * depth;
}

Result<LatencyResult> run_latency(const NetApi& api, const LatencyOptions& options,
                                  const BufferSet& memory, const LinkSet& links,
                                  const IdleCheck& check) {
  const Link* send = links.find(1 - options.rank, 0, true);
  const Link* recv = links.find(1 - options.rank, 0, false);
  if (send == nullptr || recv == nullptr) {
    return fail(Errc::internal, "the connections between ranks 0 and 1 are missing");
  }
  return PingPong(api, options, memory, *send, *recv, check).run();
}

LatencySummary summarize(std::vector<double> samples_us) {
  if (samples_us.empty()) {
    return {};
  }
  std::sort(samples_us.begin(), samples_us.end());
  const size_t n = samples_us.size();
  const double sum = std::accumulate(samples_us.begin(), samples_us.end(), 0.0);
  // Nearest rank: the smallest sample that p percent of all do not exceed.
  const auto percentile = [&](size_t p) { return samples_us[(n * p + 99) / 100 - 1]; };
  return {samples_us.front(), percentile(50), sum / static_cast<double>(n), percentile(99),
          samples_us.back()};
}

}  // namespace nccl_ha::tools
