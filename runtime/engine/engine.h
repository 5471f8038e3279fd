// The executors: workers on threads of their own, turned by NCCL's threads, or on virtual time.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "runtime/base/cpu.h"
#include "runtime/engine/idle.h"
#include "runtime/engine/parker.h"
#include "runtime/engine/worker.h"
#include "runtime/telemetry/counter_file.h"

namespace nccl_ha {

/// How long a control connection may go without acknowledgements: it must outlive every outage that
/// its paths may.
Duration unanswered_limit(const Config& config);

class Engine {
 public:
  enum class Mode {
    threads,
    inline_turns,
    virtual_time,  ///< no threads and no sleep: whoever owns the time calls Worker::turn()
  };

  /// Threads run when this returns.  `config` is copied.
  static Result<std::unique_ptr<Engine>> start(const Config& config);
  /// Virtual time: one process of a simulation, all on the caller's thread.  `clock` is the
  /// simulation's; workers draw their randomness from `seed`; `streams` makes each its network.
  /// With HA_NCCL_USE_PROGRESS_THREAD=0 the mode is inline_turns, and whoever owns the time calls
  /// turn_fallback() instead.
  using StreamSource = std::function<std::unique_ptr<StreamFactory>()>;
  static std::unique_ptr<Engine> start_virtual(const Config& config, Clock& clock, uint64_t seed,
                                               const StreamSource& streams);
  /// Stops: actors say goodbye, streams are flushed (at most two seconds), threads are joined.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  Mode mode() const { return mode_; }
  size_t worker_count() const { return slots_.size(); }
  Worker& worker(size_t index) { return *slots_[index]->worker; }
  /// Where counters are kept; its file is gone when the engine is.  In virtual time plain memory.
  const CounterPlace& counters() const { return counters_; }

  /// Any thread.  Chooses a worker for something that lives on `numa_node` (-1: anywhere) and adds
  /// `weight` to its load; unassign_worker() takes it off again.
  size_t assign_worker(int numa_node, double weight);
  void unassign_worker(size_t worker, double weight);

  /// Of a caller who only waits.
  static constexpr unsigned wait_poll_limit = 16;

  /// What the fallback thread does between two turns.
  struct Rest {
    enum class Kind : uint8_t {
      none,
      interval,  ///< whatever happens
      sleep      ///< until something does, or until then if there is a time
    } kind = Kind::none;
    std::optional<Instant> until;
  };
  /// Virtual time, inline mode: the fallback thread wakes, does what it has to, and rests again.
  Rest turn_fallback();
  /// Virtual time: the fallback thread sleeps, and nobody has woken it.
  bool fallback_sleeps() const {
    return fallback_parker_->sleeping.load(std::memory_order_relaxed) != 0;
  }

  struct WorkerSlot;
  /// Any thread.  Inline mode: where its callers turn the worker.  With threads: nullptr.
  WorkerSlot* slot_of(Worker& worker) {
    return mode_ == Mode::inline_turns ? slots_[worker.context().worker_index()].get() : nullptr;
  }
  /// Any thread.  One turn of the slot's worker; never blocks.  False: somebody is turning it
  /// already.
  bool turn(WorkerSlot& slot);
  /// A turn that does nothing but let an actor post something (Worker::push); false: it was not
  /// let.  `answered_late`: by a peer's caller, so that there is leisure for other things.
  template <class Post>
  [[nodiscard]] bool turn(WorkerSlot& slot, Post&& post, bool answered_late) {
    if (!try_acquire(slot)) [[unlikely]] {
      return false;
    }
    slot.last_waiter = nullptr;
    slot.worker->push(std::forward<Post>(post), answered_late);
    release(slot);
    return true;
  }
  /// For a caller that asks for `what`: a turn that is over when `found()` says so
  /// (Worker::turn_unless).  A caller that asks for the same thing twice in a row only waits for
  /// it, and enters the kernel before it asks again (NCCL's proxy yields), so it gets several
  /// turns, at most until `done()`: a microsecond of them, so that nothing else that it serves
  /// waits; only one where sockets are looked at, which takes longer.
  template <class Found, class Done>
  void turn_for(WorkerSlot& slot, const void* what, Found&& found, Done&& done) {
    if (!try_acquire(slot)) [[unlikely]] {
      return;
    }
    const bool waits = slot.last_waiter == what && slot.worker->relaxed();
    unsigned turns = waits ? wait_poll_limit : 1;
    slot.last_waiter = what;
    while (!slot.worker->turn_unless(found) && --turns != 0 && !done()) {
    }
    release(slot);
  }
  /// Any thread.  Inline mode: a turn of the worker, of all workers.  With threads: nothing.
  void assist(Worker& worker) {
    if (WorkerSlot* slot = slot_of(worker); slot != nullptr) {
      static_cast<void>(turn(*slot));
    }
  }
  void assist_all();

  /// A worker with what drives it.
  struct WorkerSlot {
    std::unique_ptr<Parker> parker;
    std::unique_ptr<Worker> worker;
    std::thread thread;  // threads mode
    uint64_t watched_version = 0;
    // inline mode: who turns
    alignas(64) std::atomic<bool> busy{false};
    const void* last_waiter = nullptr;  // by the caller who turned it last
    uint64_t seen_turns = 0;            // fallback thread's: the callers' before, and its own
    bool starved = false;               // fallback thread's: callers turned it hardly ever lately
  };

 private:
  Engine(const Config& config, Mode mode, Clock* clock)
      : config_(config),
        mode_(mode),
        virtual_(clock != nullptr),
        clock_(clock == nullptr ? own_clock_ : *clock) {}
  void run_thread(WorkerSlot& slot, WorkerInfo info);
  void run_fallback();
  void poll_starved();
  /// What the fallback thread sees of those who turn the workers since it looked last.
  struct Callers {
    bool any = false;
    bool any_starved = false;             ///< a worker that was turned hardly ever
    Duration poll_gap = Duration::max();  ///< the least of the workers'
  };
  Callers observe_callers();
  /// One look of the fallback thread at callers and, if there are none, one turn of all workers.
  Rest poll_workers();
  bool try_acquire(WorkerSlot& slot);
  void release(WorkerSlot& slot);
  [[gnu::noinline]] void wake_fallback();
  /// Puts the calling thread to sleep unless there is work; false: there was.
  bool park(WorkerSlot& slot);
  static void prepare_thread(const char* name);

  Config config_;
  const Mode mode_;
  const bool virtual_;
  SteadyClock own_clock_;
  Clock& clock_;
  CounterPlace counters_;
  std::vector<std::unique_ptr<WorkerSlot>> slots_;
  Parker* fallback_parker_ = nullptr;  ///< the fallback thread's, as the next
  struct Fallback {
    bool driving = false;
    bool met_caller = false;  ///< in a turn, perhaps a long one
    bool changed = true;      ///< what to sleep on differs from what the parker watches
    Duration poll_interval{};
    std::vector<uint64_t> versions;
    std::vector<WorkerSlot*> held;
  } fallback_state_;
  std::mutex load_mutex_;
  std::vector<WorkerInfo> loads_;
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> fallback_threads_;
};

// What every call of NCCL's goes through in inline mode: without a call of its own.

inline bool Engine::try_acquire(WorkerSlot& slot) {
  if (slot.busy.load(std::memory_order_relaxed) ||
      slot.busy.exchange(true, std::memory_order_acquire)) [[unlikely]] {
    return false;  // somebody is at it
  }
  if (stopping_.load(std::memory_order_relaxed)) [[unlikely]] {
    slot.busy.store(false, std::memory_order_release);
    return false;
  }
  slot.worker->bind_to_this_thread();
  return true;
}

inline void Engine::release(WorkerSlot& slot) {
  slot.busy.store(false, std::memory_order_release);
  // What this turn left to do later (an acknowledgement, a timeout) may come before the deadline
  // that a sleeping standby knows of.
  if (fallback_parker_->sleeping.load(std::memory_order_relaxed) != 0) [[unlikely]] {
    wake_fallback();
  }
}

inline bool Engine::turn(WorkerSlot& slot) {
  if (!try_acquire(slot)) [[unlikely]] {
    return false;
  }
  slot.worker->quick_turn();
  release(slot);
  return true;
}

}  // namespace nccl_ha
