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
#include "runtime/base/secret.h"
#include "runtime/engine/drive_policy.h"
#include "runtime/engine/idle.h"
#include "runtime/engine/parker.h"
#include "runtime/engine/worker.h"
#include "runtime/telemetry/caller_recorders.h"
#include "runtime/telemetry/counter_file.h"
#include "runtime/telemetry/trace_keeper.h"

namespace nccl_ha {

/// How long a control connection may go without acknowledgements: it must outlive every outage that
/// its paths may.
Duration unanswered_limit(const Config& config);

/// Whether progress threads drive the workers from the beginning: where there is a processor for
/// each of them and one for a caller.  Else they begin by standing by; either changes by what they
/// meet (DrivePolicy).
bool threads_drive(const Config& config);

class Engine {
 public:
  enum class Mode {
    threads,       ///< a thread drives each worker; callers do where it does not run
    inline_turns,  ///< callers drive the workers; a thread does where nobody calls
    virtual_time,  ///< no threads and no sleep: whoever owns the time calls Worker::turn()
  };

  /// Threads run when this returns.  `config` is copied.
  static Result<std::unique_ptr<Engine>> start(const Config& config);
  /// Virtual time: one process of a simulation, all on the caller's thread.  `clock` is the
  /// simulation's; workers draw their randomness from `seed` and their secrets from `secrets`,
  /// which outlives the engine; `streams` makes each its network. With
  /// HA_NCCL_USE_PROGRESS_THREAD=0 the mode is inline_turns, and whoever owns the time calls
  /// turn_fallback() instead; with `callers_help` it is threads, and turn_thread().
  using StreamSource = std::function<std::unique_ptr<StreamFactory>()>;
  static std::unique_ptr<Engine> start_virtual(const Config& config, Clock& clock, uint64_t seed,
                                               const StreamSource& streams,
                                               bool callers_help = false,
                                               SecretSource& secrets = kernel_secrets());
  /// Stops: actors say goodbye, streams are flushed (at most two seconds), threads are joined.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  Mode mode() const { return mode_; }
  size_t worker_count() const { return slots_.size(); }
  Worker& worker(size_t index) { return *slots_[index]->worker; }
  /// Where counters are kept; its file is gone when the engine is.  In virtual time plain memory.
  const CounterPlace& counters() const { return counters_; }
  /// Of the threads that call NCCL's entry points; null: they record nothing.
  const std::shared_ptr<CallerRecorders>& caller_recorders() const { return caller_recorders_; }
  /// Any thread: what the flight recorders hold is worth keeping.
  void ask_trace(TraceCause cause) {
    if (trace_keeper_) {
      trace_keeper_->ask(cause);
    }
  }

  /// Any thread.  Chooses a worker for something that lives on `numa_node` (-1: anywhere) and adds
  /// `weight` to its load, which add_load() takes off again.
  size_t assign_worker(int numa_node, double weight);
  void add_load(size_t worker, double weight);

  /// Of a caller who only waits.
  static constexpr unsigned wait_poll_limit = 16;
  /// A thread that made no turn for so long does not run: a turn takes a few microseconds, a time
  /// slice of somebody else's milliseconds.
  static constexpr Duration help_after = std::chrono::microseconds(20);
  /// The same in ticks until their rate is known: at 5 GHz, the fastest there are.
  static constexpr uint64_t first_help_ticks = 100'000;

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

  /// Virtual time, threads: the worker's thread runs: it drives, or looks whether callers still do.
  /// How much work it did, and when it looks again, if it stands by.
  struct ThreadTurn {
    unsigned work = 0;
    std::optional<Instant> stands_by_until;
  };
  ThreadTurn turn_thread(size_t worker);

  struct WorkerSlot;
  /// What one caller remembers of the thread that drives the worker.  That caller's own.
  struct Caller {
    uint64_t looked_ticks = 0;  ///< when it looked at the thread last, which is seldom
    uint64_t seen_turns = 0;    ///< the thread's, when the caller looked
    uint64_t seen_ticks = 0;    ///< when it saw so many for the first time
    uint64_t tried_ticks = 0;   ///< when it made a turn of a worker whose thread slept
  };
  /// Any thread.  Where callers turn the worker; nullptr in virtual time without them.
  WorkerSlot* slot_of(Worker& worker) {
    return mode_ == Mode::virtual_time ? nullptr : slots_[worker.context().worker_index()].get();
  }
  /// Whether the caller, who has something to be done, should turn the worker: with threads only
  /// where its thread sleeps, or has not run since the caller asked first, which it does with this.
  bool may_turn(WorkerSlot& slot, Caller& caller) {
    return slot.driver.load(std::memory_order_acquire) == WorkerSlot::Driver::callers ||
           take_over(slot, caller, false);
  }
  /// The same for one who waits, and leaves a thread asleep unless there turns out to be work.
  bool may_wait_turn(WorkerSlot& slot, Caller& caller) {
    return slot.driver.load(std::memory_order_acquire) == WorkerSlot::Driver::callers ||
           take_over(slot, caller, true);
  }
  /// One turn of the slot's worker; never blocks.  False: somebody is turning it already, or its
  /// thread will.
  bool turn(WorkerSlot& slot, Caller& caller);
  /// A turn that does nothing but let an actor post something (Worker::push); false: it was not
  /// let.  `answered_late`: by a peer's caller, so that there is leisure for other things.
  template <class Post>
  [[nodiscard]] bool turn(WorkerSlot& slot, Caller& caller, Post&& post, bool answered_late) {
    if (!may_turn(slot, caller) || !try_acquire(slot)) [[unlikely]] {
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
  void turn_for(WorkerSlot& slot, Caller& caller, const void* what, Found&& found, Done&& done) {
    if (!may_wait_turn(slot, caller) || !try_acquire(slot)) [[unlikely]] {
      return;
    }
    const bool waits = slot.last_waiter == what && slot.worker->relaxed();
    unsigned turns = waits ? wait_poll_limit : 1;
    slot.last_waiter = what;
    while (!slot.worker->turn_unless(found) && --turns != 0 && !done()) {
    }
    release(slot);
  }
  /// Any thread.  A turn of the worker, of all workers, where callers drive them; with threads that
  /// run nothing.
  void assist(Worker& worker) {
    if (WorkerSlot* slot = slot_of(worker); slot != nullptr) {
      assist(*slot);
    }
  }
  void assist_all();
  /// Tests, simulations: callers take the worker over now, as if its thread shared its processor.
  void give_to_callers(size_t worker) { hand_to_callers(*slots_[worker], Taken::shared); }

  /// Why callers have a worker whose thread drove it.
  enum class Taken : uint8_t {
    back,     ///< it was theirs, and they are there again
    shared,   ///< the thread shares its processor
    starved,  ///< it did not run; for how long, it finds out itself
    asleep,   ///< it slept
  };

  /// A worker with what drives it.
  struct WorkerSlot {
    /// Who turns the worker.  `busy` keeps them apart; this says whose turn it is.
    enum class Driver : uint8_t { thread, callers };

    std::unique_ptr<Parker> parker;
    std::unique_ptr<Worker> worker;
    std::thread thread;         // threads mode
    Parker* sleeper = nullptr;  // of the thread that looks after it when callers do not
    uint64_t watched_version = 0;
    // What callers read with each call is hardly ever written, and what is written with each turn
    // is on other lines.
    alignas(64) std::atomic<Driver> driver{Driver::callers};
    std::atomic<uint64_t> help_ticks{first_help_ticks};  // callers help when it stood for so long
    // whoever turns
    alignas(64) std::atomic<bool> busy{false};
    const void* last_waiter = nullptr;  // by the caller who turned it last
    uint64_t seen_turns = 0;            // fallback thread's: the callers' before, and its own
    bool starved = false;               // fallback thread's: callers turned it hardly ever lately
    // threads mode: the thread writes with each turn, callers read now and then
    alignas(64) std::atomic<uint64_t> thread_turns{1};  // and signs that it will turn
    // the other way round
    alignas(64) std::atomic<bool> asked{false};  // by a caller, since the last judgement
    std::atomic<Taken> taken{Taken::back};
    // the thread's
    DrivePolicy policy;
    Duration poll_interval{};
    uint64_t began_ticks = 0;  // of the policy's window
    Instant began{};
    Instant turned{};          // last, before it found that callers have the worker
    bool standing_by = false;  // virtual time: it has looked at callers before
    bool substitutes = false;  // it drives only because no caller does
  };

 private:
  Engine(const Config& config, Mode mode, Clock* clock)
      : config_(config),
        mode_(mode),
        virtual_(clock != nullptr),
        counts_ticks_(clock == nullptr && cpu_ticks() != 0),
        clock_(clock == nullptr ? own_clock_ : *clock) {
    fallback_state_.versions.resize(static_cast<size_t>(config.progress_threads));
    fallback_state_.held.reserve(static_cast<size_t>(config.progress_threads));
  }
  void run_thread(WorkerSlot& slot, WorkerInfo info);
  void drive(WorkerSlot& slot, IdlePolicy& idle);
  void stand_by(WorkerSlot& slot);
  bool begin_standing_by(WorkerSlot& slot);
  /// Until when the thread stands by; nullopt: it drives from now on.
  std::optional<Instant> look_at_callers(WorkerSlot& slot);
  unsigned turn_as_thread(WorkerSlot& slot, Instant& now);
  void begin_window(WorkerSlot& slot);
  void judge(WorkerSlot& slot);
  static void show_running(WorkerSlot& slot);
  void end_substitution(WorkerSlot& slot, Instant now);
  void hand_to_callers(WorkerSlot& slot, Taken why);
  [[gnu::noinline]] bool take_over(WorkerSlot& slot, Caller& caller, bool waits);
  bool try_a_turn(WorkerSlot& slot);
  /// Of a thread, without a caller that helps: for what must not be missed.
  void hold(WorkerSlot& slot);
  bool hold_unless_own(WorkerSlot& slot);
  void assist(WorkerSlot& slot);
  Duration thread_cpu_time() const;
  uint64_t ticks() const;
  void run_fallback();
  void poll_starved(std::span<const std::unique_ptr<WorkerSlot>> slots);
  /// What the fallback thread sees of those who turn the workers since it looked last.
  struct Callers {
    bool any = false;
    bool any_starved = false;             ///< a worker that was turned hardly ever
    Duration poll_gap = Duration::max();  ///< the least of the workers'
  };
  Callers observe_callers(std::span<const std::unique_ptr<WorkerSlot>> slots);
  /// When callers that turn workers are looked at again; `last`: how long that was last time.
  Duration next_interval(const Callers& callers, Duration last) const;
  /// One look of the fallback thread at callers and, if there are none, one turn of all workers.
  Rest poll_workers();
  bool try_acquire(WorkerSlot& slot);
  void release(WorkerSlot& slot);
  [[gnu::noinline]] void wake_sleeper(WorkerSlot& slot);
  /// Puts the calling thread to sleep unless there is work; false: there was.
  bool park(WorkerSlot& slot);
  static void watch(Parker& parker, std::span<WorkerSlot* const> held);

  Config config_;
  const Mode mode_;
  const bool virtual_;
  const bool counts_ticks_;
  SteadyClock own_clock_;
  Clock& clock_;
  CounterPlace counters_;
  std::shared_ptr<CallerRecorders> caller_recorders_;
  std::unique_ptr<TraceKeeper> trace_keeper_;  ///< null: no dumps
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

[[gnu::always_inline]] inline bool Engine::try_acquire(WorkerSlot& slot) {
  if (slot.busy.load(std::memory_order_relaxed) ||
      slot.busy.exchange(true, std::memory_order_acquire)) [[unlikely]] {
    return false;  // somebody is at it
  }
  if (stopping_.load(std::memory_order_relaxed)) [[unlikely]] {
    slot.busy.store(false, std::memory_order_release);
    return false;
  }
  slot.worker->bind_to_this_thread();
  slot.worker->context().set_callers_drive(true);
  return true;
}

inline void Engine::release(WorkerSlot& slot) {
  // What this turn left to do later (an acknowledgement, a timeout) may come before the deadline
  // that a sleeping thread knows of.  One that falls asleep from here on looks at the worker
  // before, and stays awake where it finds it held, as one does that is woken here.  The engine may
  // end when it is not held any more.
  if (slot.sleeper->sleeping.load(std::memory_order_relaxed) != 0) [[unlikely]] {
    wake_sleeper(slot);
  }
  slot.busy.store(false, std::memory_order_release);
}

inline bool Engine::turn(WorkerSlot& slot, Caller& caller) {
  if (!may_turn(slot, caller) || !try_acquire(slot)) [[unlikely]] {
    return false;
  }
  static_cast<void>(slot.worker->quick_turn());
  release(slot);
  return true;
}

}  // namespace nccl_ha
