// A process with a flight recorder, whose events a test says with their times.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/telemetry/recorder.h"
#include "runtime/telemetry/trace_dump.h"
#include "tests/support/counter_files.h"
#include "tools/trace/sources.h"

namespace nccl_ha::test {

inline constexpr int64_t usec = 1000;
inline constexpr int64_t msec = 1'000'000;

/// A process with a recorder whose clock is `ahead` of the true time.
class TracedProcess {
 public:
  TracedProcess(const std::string& folder, uint32_t pid, int64_t ahead)
      : file_(CounterFile::create({folder, 64, 1, 4096, 1})),
        worker_({file_, 0}, "worker 0"),
        caller_({file_, 0}, "caller 1"),
        recorder_(worker_.place(), 4096),
        caller_ring_(file_->take_ring(caller_.id(), CounterFile::RingKind::caller)),
        caller_recorder_(caller_ring_.ring, caller_ring_.slots, file_),
        pid_(pid),
        clock_(pid),
        ahead_(ahead) {}

  void share_clock() { clock_ = 1; }

  uint32_t connect(const std::string& label, uint64_t key, const std::string& path) {
    auto& block = connections_.emplace_back(worker_.place(), label);
    const auto actor = static_cast<uint32_t>(connections_.size());
    block->key.set(key);
    block->actor.set(actor);
    paths_.emplace_back(block.place(), path);
    return actor;
  }
  /// One more of the connection that was made last.
  void add_path(uint32_t actor, const std::string& path) {
    paths_.emplace_back(connections_[actor - 1].place(), path);
  }
  void say(uint32_t actor, int64_t said, int64_t heard) {
    connections_[actor - 1]->said_ns.set(static_cast<uint64_t>(said + ahead_));
    connections_[actor - 1]->heard_ns.set(static_cast<uint64_t>(heard + ahead_));
  }
  void at(int64_t time, TraceEvent event, uint32_t actor, uint64_t a, uint64_t b = 0,
          uint16_t c = 0) {
    events_.push_back({time + ahead_, actor, event, c, a, b});
  }
  /// Of the thread that calls NCCL's entry points.
  void call(int64_t time, TraceEvent event, uint32_t actor, uint64_t a, uint64_t b) {
    calls_.push_back({time + ahead_, actor, event, 0, a, b});
  }
  /// As `nccl-ha trace` reads it; blocks began before all events.
  tools::TraceSource source() {
    record(recorder_, std::exchange(events_, {}));
    record(caller_recorder_, std::exchange(calls_, {}));
    auto bytes = copy_counters(file_->bytes(), "a test");
    EXPECT_TRUE(bytes);
    auto* header = reinterpret_cast<counter_layout::FileHeader*>(bytes->data());
    header->pid = pid_;
    header->clock = clock_;
    for (uint32_t i = 0; i < header->blocks.count; ++i) {
      auto* block = reinterpret_cast<counter_layout::Block*>(bytes->data() + header->blocks.offset +
                                                             i * sizeof(counter_layout::Block));
      block->began_ns.store(0);
    }
    // A mapping is aligned so.
    std::vector<std::byte> room(bytes->size() + 64);
    auto* begin = room.data() + (64 - reinterpret_cast<uintptr_t>(room.data()) % 64) % 64;
    std::memcpy(begin, bytes->data(), bytes->size());
    auto read = tools::read_dump("test", {begin, bytes->size()});
    EXPECT_TRUE(read);
    return read ? std::move(*read) : tools::TraceSource{};
  }

 private:
  static void record(Recorder& recorder, std::vector<RecordedEvent> events) {
    std::stable_sort(
        events.begin(), events.end(),
        [](const RecordedEvent& x, const RecordedEvent& y) { return x.time_ns < y.time_ns; });
    for (const RecordedEvent& one : events) {
      recorder.record(one.event, one.actor, one.a, one.b, Instant(Duration(one.time_ns)), one.c);
    }
  }

  std::shared_ptr<CounterFile> file_;
  CounterBlock<WorkerCounters> worker_;
  CounterBlock<CallerCounters> caller_;
  Recorder recorder_;
  CounterFile::RingPlace caller_ring_;
  Recorder caller_recorder_;
  std::vector<CounterBlock<ConnectionCounters>> connections_;
  std::vector<CounterBlock<PathCounters>> paths_;
  const uint32_t pid_;
  uint64_t clock_;
  const int64_t ahead_;
  // Not recorded yet: of one thread, times never go back.
  std::vector<RecordedEvent> events_;
  std::vector<RecordedEvent> calls_;
};

}  // namespace nccl_ha::test
