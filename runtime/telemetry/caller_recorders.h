// Flight recorders of the threads that call NCCL's entry points: when a request was asked for, and
// when its end was noticed.
//
// Each thread has a ring and a clock of its own, so that an event takes no lock, no shared line and
// no reading of the clock but now and then.  There are so many and no more; the ring of a thread
// that has ended goes to the next one that comes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/tick_clock.h"
#include "runtime/telemetry/counter_file.h"
#include "runtime/telemetry/recorder.h"

namespace nccl_ha {

/// Of one thread.
class alignas(64) CallerRecorder {
 public:
  /// `ring` is there.
  CallerRecorder(CounterBlock<CallerCounters>&& counters, const CounterFile::RingPlace& ring,
                 std::shared_ptr<CounterFile> file)
      : recorder_(ring.ring, ring.slots, std::move(file)), counters_(std::move(counters)) {}

  void note_asked(uint32_t actor, uint32_t worker, uint64_t group, uint64_t what) {
    counters_->asked.add();
    record(TraceEvent::request_asked, actor, worker, group, what);
  }
  void note_noticed(uint32_t actor, uint32_t worker, uint64_t group, uint64_t what) {
    counters_->noticed.add();
    record(TraceEvent::request_noticed, actor, worker, group, what);
  }

 private:
  friend class CallerRecorders;
  void record(TraceEvent event, uint32_t actor, uint32_t worker, uint64_t group, uint64_t what) {
    recorder_.record(event, actor, group, what, clock_.now(), static_cast<uint16_t>(worker));
  }

  Recorder recorder_;
  CounterBlock<CallerCounters> counters_;
  SteadyClock exact_;
  TickClock clock_{exact_};
  int thread_ = 0;  ///< its number in the kernel
};

class CallerRecorders {
 public:
  /// In the file of `place`, whose rings of callers say how many there are.
  explicit CallerRecorders(CounterPlace place) : place_(std::move(place)) {}
  CallerRecorders(const CallerRecorders&) = delete;
  CallerRecorders& operator=(const CallerRecorders&) = delete;

  /// The calling thread's; null: there was none left when it came.
  CallerRecorder* mine() {
    if (latest.of != number_) [[unlikely]] {
      latest = {number_, find()};
    }
    return latest.recorder;
  }

 private:
  [[gnu::noinline]] CallerRecorder* find();
  CallerRecorder* take(int thread);

  /// What a thread asked for last.
  struct Latest {
    uint64_t of = 0;
    CallerRecorder* recorder = nullptr;
  };
  // NCCL opens the plugin with dlopen(), where this is found by a call unless it says so.
  [[gnu::tls_model("initial-exec")]] static constinit thread_local Latest latest;
  static std::atomic<uint64_t> last_number;

  const uint64_t number_ = last_number.fetch_add(1, std::memory_order_relaxed) + 1;
  const CounterPlace place_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<CallerRecorder>> recorders_;
};

}  // namespace nccl_ha
