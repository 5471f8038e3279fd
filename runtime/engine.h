// The executors: workers on threads of their own, turned by NCCL's threads, or on virtual time.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "runtime/cpu.h"
#include "runtime/idle.h"
#include "runtime/parker.h"
#include "runtime/worker.h"

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
  /// turn_standby() instead.
  using StreamSource = std::function<std::unique_ptr<StreamFactory>()>;
  static std::unique_ptr<Engine> start_virtual(const Config& config, Clock& clock, uint64_t seed,
                                               const StreamSource& streams);
  /// Stops: actors say goodbye, streams are flushed (at most two seconds), threads are joined.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  Mode mode() const { return mode_; }
  size_t worker_count() const { return seats_.size(); }
  Worker& worker(size_t index) { return *seats_[index]->worker; }

  /// Any thread.  Chooses a worker for something that lives on `numa_node` (-1: anywhere) and adds
  /// `weight` to its load; release() takes it off again.
  size_t place(int numa_node, double weight);
  void release(size_t worker, double weight);

  /// Of a caller who only waits.
  static constexpr unsigned turns_of_who_waits = 16;

  /// What the standby does between two turns.
  struct Rest {
    enum class Kind : uint8_t {
      none,
      nap,   ///< whatever happens
      sleep  ///< until something does, or until then if there is a time
    } kind = Kind::none;
    std::optional<Instant> until;
  };
  /// Virtual time, inline mode: the standby wakes, does what it has to, and rests again.
  Rest turn_standby();
  /// Virtual time: the standby sleeps, and nobody has roused it.
  bool standby_sleeps() const { return bed_->sleeping.load(std::memory_order_relaxed) != 0; }

  struct Seat;
  /// Any thread.  Inline mode: where its callers turn the worker.  With threads: nullptr.
  Seat* seat_of(Worker& worker) {
    return mode_ == Mode::inline_turns ? seats_[worker.context().worker_index()].get() : nullptr;
  }
  /// Any thread.  One turn of the seat's worker; never blocks.  False: somebody is turning it
  /// already.
  bool turn(Seat& seat);
  /// A turn that does nothing but let an actor post something (Worker::push); false: it was not
  /// let.  `answered_late`: by a peer's caller, so that there is time for other things.
  template <class Post>
  [[nodiscard]] bool turn(Seat& seat, Post&& post, bool answered_late) {
    if (!sit_down(seat)) [[unlikely]] {
      return false;
    }
    seat.asked_for = nullptr;
    seat.worker->push(std::forward<Post>(post));
    if (answered_late) {
      seat.worker->use_time();
    }
    get_up(seat);
    return true;
  }
  /// For a caller that asks for `what`: a turn that is over when `found()` says so
  /// (Worker::turn_unless).  Who asks for the same thing twice in a row has nothing else to do than
  /// to wait for it, and is going to enter the kernel before he asks again (NCCL's proxy yields):
  /// he gets several turns, at most until `done()`.  A microsecond of them, so that nothing else
  /// that he may have to look after waits; only one where sockets are looked at, which takes
  /// longer.
  template <class Found, class Done>
  void turn_for(Seat& seat, const void* what, Found&& found, Done&& done) {
    if (!sit_down(seat)) [[unlikely]] {
      return;
    }
    const bool waits = seat.asked_for == what && seat.worker->calm();
    unsigned turns = waits ? turns_of_who_waits : 1;
    seat.asked_for = what;
    while (!seat.worker->turn_unless(found) && --turns != 0 && !done()) {
    }
    get_up(seat);
  }
  /// Any thread.  Inline mode: a turn of the worker, of all workers.  With threads: nothing.
  void assist(Worker& worker) {
    if (Seat* seat = seat_of(worker); seat != nullptr) {
      static_cast<void>(turn(*seat));
    }
  }
  void assist_all();

  /// A worker with what drives it.
  struct Seat {
    std::unique_ptr<Parker> parker;
    std::unique_ptr<Worker> worker;
    std::thread thread;  // threads mode
    uint64_t watched_version = 0;
    // inline mode: who turns
    alignas(64) std::atomic<bool> busy{false};
    const void* asked_for = nullptr;  // by the caller who turned it last
    uint64_t seen_turns = 0;          // standby's: the callers' before, and its own
    bool left_alone = false;          // standby's: callers turned it hardly ever lately
  };

 private:
  Engine(const Config& config, Mode mode, Clock* clock)
      : config_(config),
        mode_(mode),
        virtual_(clock != nullptr),
        clock_(clock == nullptr ? own_clock_ : *clock) {}
  void run_thread(Seat& seat, WorkerInfo info);
  void run_standby();
  void turn_left_alone();
  /// What the standby sees of those who turn the workers since it looked last.
  struct Callers {
    bool any = false;
    bool left_one_alone = false;          ///< a worker that was turned hardly ever
    Duration patience = Duration::max();  ///< the least of the workers'
  };
  Callers look_for_callers();
  /// One look of the standby at callers and, if there are none, one turn of all workers.
  Rest look_after_workers();
  bool sit_down(Seat& seat);
  void get_up(Seat& seat);
  [[gnu::noinline]] void rouse_standby();
  /// Puts the calling thread to sleep unless there is work; false: there was.
  bool park(Seat& seat);
  static void prepare_thread(const char* name);

  Config config_;
  const Mode mode_;
  const bool virtual_;
  SteadyClock own_clock_;
  Clock& clock_;
  std::vector<std::unique_ptr<Seat>> seats_;
  Parker* bed_ = nullptr;  ///< the standby's, as the next
  struct Standby {
    bool driving = false;
    bool met_caller = false;  ///< in a turn, perhaps a long one
    bool changed = true;      ///< what to sleep on differs from what the bed watches
    Duration nap{};
    std::vector<uint64_t> versions;
    std::vector<Seat*> held;
  } standby_state_;
  std::mutex load_mutex_;
  std::vector<WorkerInfo> loads_;
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> standby_;
};

// What every call of NCCL's goes through in inline mode: without a call of its own.

inline bool Engine::sit_down(Seat& seat) {
  if (seat.busy.load(std::memory_order_relaxed) ||
      seat.busy.exchange(true, std::memory_order_acquire)) [[unlikely]] {
    return false;  // somebody is at it
  }
  if (stopping_.load(std::memory_order_relaxed)) [[unlikely]] {
    seat.busy.store(false, std::memory_order_release);
    return false;
  }
  seat.worker->bind_to_this_thread();
  return true;
}

inline void Engine::get_up(Seat& seat) {
  seat.busy.store(false, std::memory_order_release);
  // What this turn left to do later (an acknowledgement, a timeout) may come before the deadline
  // that a sleeping standby knows of.
  if (bed_->sleeping.load(std::memory_order_relaxed) != 0) [[unlikely]] {
    rouse_standby();
  }
}

inline bool Engine::turn(Seat& seat) {
  if (!sit_down(seat)) [[unlikely]] {
    return false;
  }
  seat.worker->quick_turn();
  get_up(seat);
  return true;
}

}  // namespace nccl_ha
