// A worker: a set of actors and the duty cycle that drives them.
//
// One turn: mailbox, local messages, pollers, timers, streams, ended actors.  Who calls turn()
// is the executor's business: a thread of the worker's own, the callers of NCCL, or a test.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "runtime/check.h"
#include "runtime/context.h"
#include "runtime/counters.h"
#include "runtime/cpu.h"
#include "runtime/mailbox.h"
#include "runtime/slot_table.h"

namespace nccl_ha {

class Worker final : private Context {
 public:
  struct Options {
    uint32_t index = 0;
    uint64_t seed = 1;
    size_t actors_max = 8192;
    size_t senders_max = 4096;
    Waker* waker = nullptr;  ///< woken by messages from other threads
    bool ticks = false;      ///< the clock is the host's, so that its ticks tell when to look at it
  };
  /// `streams` made by the executor: libuv in production, memory in tests.
  Worker(const Options& options, const Config& config, Clock& clock,
         std::unique_ptr<StreamFactory> streams);
  ~Worker() override;
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // --- any thread
  /// A sender's end of the mailbox; see Mailbox::open.
  Result<Address<Message>> open_address(size_t credits) { return mailbox_->open(credits); }
  /// Control plane: sends over a shared address, one caller at a time.  Waits while it is full only
  /// as long as the worker needs to take messages out; never call it from this worker's thread.
  Result<void> post(const Message& message);
  /// Hands an actor over; its start() runs on the worker.  The id is valid at once.
  Result<ActorId> adopt(std::unique_ptr<Actor> actor);
  /// How long the worker may be left without a turn while those who turn it are busy elsewhere.
  Duration max_poll_gap() const {
    return Duration(max_poll_gap_ns_.load(std::memory_order_relaxed));
  }
  /// After so many quick turns timers were looked at, if ticks have not told before.
  static constexpr unsigned turns_to_see_time = 64;
  /// With at least so much of it nobody waits for what software does by itself.
  static constexpr Duration relaxed_poll_gap = std::chrono::milliseconds(10);
  bool relaxed() const { return max_poll_gap() >= relaxed_poll_gap; }
  size_t actor_count() const { return actor_count_.load(std::memory_order_acquire); }
  uint64_t turns() const { return turns_.load(std::memory_order_relaxed); }

  struct Statistics {
    Counter messages;
    Counter dropped_messages;  ///< to actors that are gone
    Counter overruns;          ///< turns longer than the threshold
    Counter longest_turn_ns;
  };
  const Statistics& statistics() const { return statistics_; }

  // --- the executor's thread
  /// One duty cycle; work done, 0 when idle.
  unsigned turn();
  /// The same for callers that make one turn after the other: looks at the clock, and at timers and
  /// streams with it, only when somebody needs the time and else every few turns.  One that found
  /// something to do ends early: its caller waits for that.
  void quick_turn() {
    static_cast<void>(turn_unless([] { return false; }));
  }
  /// A quick turn that is over at once when `found()`, which looks at memory only, says that what
  /// the caller needs is there.  Whether it was.
  template <class Found>
  bool turn_unless(Found&& found);
  /// Lets `post` make an actor of this worker post something, and sends that; everything else has
  /// to wait for the next turn.
  template <class Post>
  void push(Post&& post) {
    turn_clock_.begin_turn();
    post();
    for (size_t i = 0; i < pollers_.size(); ++i) {
      if (pollers_[i]->wants_push()) [[unlikely]] {
        static_cast<void>(pollers_[i]->push(turn_clock_));
      }
    }
    if (pending_work_) [[unlikely]] {
      reap();
    }
    count_turn();
  }
  /// What the caller waits for takes a while yet: looks at the clock now, instead of in one of the
  /// next turns, and at what depends on it.
  void use_time() {
    if (until_clock_ < look_early_below_ || ticks_passed(look_ticks_ / 2)) [[unlikely]] {
      poll_timed(true);
    }
  }
  /// Nothing queued and every poller agrees: the thread may sleep.
  bool may_sleep();
  /// Not later than this must turn() be called again; nullopt: only when something arrives.  For
  /// those that sleep until then: what the next turn comes later counts as lost time.
  std::optional<Instant> next_deadline();
  /// What to wait for besides the waker.
  std::vector<int> wait_fds() const;
  /// Changes when wait_fds() does.
  uint64_t wait_version() const { return wait_version_; }
  /// Asks all actors to stop and turns until they and their streams are gone, for at most `limit`.
  void stop(Duration limit);
  /// The beginning of that, for who turns the worker itself: those who have something to say stay.
  void ask_to_stop();
  /// The thread that owns the worker from now on; actors' owner checks compare with it.
  void bind_to_this_thread() {
#ifdef NHA_DASSERTS
    owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
#endif
  }
  Context& context() { return *this; }

 private:
  static constexpr size_t drain_limit = 64;
  static constexpr unsigned stream_period = 64;
  // How often quick turns look at the clock, in turns, and at timers: seldom where nobody waits for
  // what software does by itself.  What they wait for may come later by such a look, so that
  // use_time() takes it from them.
  static constexpr unsigned clock_period = 16;
  static constexpr unsigned relaxed_clock_period = turns_to_see_time;
  static constexpr unsigned relaxed_turns_before_early_look = 16;
  // The same where ticks tell: what is left of them if they should not.
  static constexpr unsigned ticking_clock_period = 256;
  static constexpr Duration timer_period = std::chrono::microseconds(200);
  static constexpr Duration relaxed_timer_period = std::chrono::milliseconds(1);
  // A look at streams enters the kernel.  Whoever expects something there asks for more turns, and
  // what peers say unasked also comes over paths; carriers that are lost are heard of here only.
  static constexpr Duration quick_stream_period_max = std::chrono::milliseconds(10);
  static constexpr Duration quick_stream_period_min = std::chrono::milliseconds(1);
  static constexpr int stream_looks_per_heartbeat = 20;
  /// Of streams: whoever waits for a handshake calls, and nobody else is in a hurry.
  static constexpr Duration default_poll_gap = relaxed_poll_gap;
  static constexpr Duration overrun_threshold = std::chrono::milliseconds(20);

  // Context
  ActorId add_actor(std::unique_ptr<Actor> actor) override;
  void remove_actor(ActorId id) override;
  void add_poller(Poller* poller) override;
  void remove_poller(Poller* poller) override;
  void send_self(const Message& message) override;
  void request_stream_turns(unsigned turns) override;
  void assert_owner() const override;

  /// A message to nobody in particular that hands an actor over.
  static constexpr uint32_t adopt_kind = UINT32_MAX;

  struct Slot {
    std::unique_ptr<Actor> actor;
    uint32_t generation = 1;
    bool alive = false;
  };

  void deliver(const Message& message);
  [[gnu::noinline]] unsigned take_messages();
  unsigned poll_pollers(bool knows_time);
  [[gnu::noinline]] void poll_timed(bool knows_time);
  void count_turn();
  bool ticks_passed(uint64_t ticks) const {
    return counts_ticks_ && cpu_ticks() - looked_ticks_ >= ticks;
  }
  void watch_ticks();
  void measure(Instant begin);
  void take_over(const Message& message);
  [[gnu::noinline]] void reap();
  void pollers_changed();
  void update_poll_gap();
  Result<ActorId> reserve();
  Actor* find(ActorId id);

  std::shared_ptr<Mailbox<Message>> mailbox_;
  std::mutex post_mutex_;
  Address<Message> post_address_;

  std::mutex reserve_mutex_;
  std::vector<uint32_t> free_slots_;
  std::vector<uint32_t> generations_;  // next generation of a slot, guarded by reserve_mutex_
  std::vector<Slot> slots_;
  std::atomic<size_t> actor_count_{0};

  std::vector<uint32_t> leaving_;
  std::deque<Message> local_;
  std::vector<Poller*> pollers_;
  std::atomic<int64_t> max_poll_gap_ns_{Duration(default_poll_gap).count()};
  uint64_t wait_version_ = 1;
  std::atomic<uint64_t> turns_{0};
  unsigned stream_countdown_ = 0;
  unsigned until_clock_ = clock_period;  ///< quick turns
  unsigned look_early_below_ = 0;        ///< with fewer left, use_time() looks
  const bool counts_ticks_;
  uint64_t looked_ticks_ = 0;         ///< of the last look at the clock
  uint64_t look_ticks_ = UINT64_MAX;  ///< from one to the next
  double ticks_per_ns_ = 0;           ///< 0: not known yet
  uint64_t measured_ticks_ = 0;       ///< when that was measured last
  Instant measured_{};
  bool pending_work_ = false;  ///< there may be local messages, leavers, or streams to turn at once
  // Of quick turns: as soon as the time is known to be this.
  Instant timer_look_{};
  Instant stream_look_{};
  const Duration quick_stream_period_;
  unsigned eager_stream_turns_ = 0;
  std::atomic<std::thread::id> owner_{};
  Statistics statistics_;
};

// A poller may remove itself and others.
inline unsigned Worker::poll_pollers(bool knows_time) {
  unsigned work = 0;
  for (size_t i = 0; i < pollers_.size(); ++i) {
    Poller& poller = *pollers_[i];
    work += !knows_time && poller.backed_off() ? 0 : poller.poll(turn_clock_);
  }
  return work;
}

inline void Worker::count_turn() {
  turns_.store(turns_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

template <class Found>
[[gnu::always_inline]] inline bool Worker::turn_unless(Found&& found) {
  turn_clock_.begin_turn();
  if (found()) {
    count_turn();
    return true;
  }
  unsigned work = 0;
  if (!mailbox_->looks_idle() || pending_work_) [[unlikely]] {
    work += take_messages();
  }
  work += poll_pollers(false);
  count_turn();
  const bool clock_due = --until_clock_ == 0 || ticks_passed(look_ticks_);
  if (clock_due || turn_clock_.was_read() || (pending_work_ && work == 0)) [[unlikely]] {
    poll_timed(clock_due || turn_clock_.was_read());
  }  // else whoever waits for what came goes on at once
  return false;
}

}  // namespace nccl_ha
