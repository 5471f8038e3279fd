// A worker: a set of actors and the duty cycle that drives them.
//
// One turn: mailbox, local messages, pollers, timers, streams, ended actors (Worker::cycle at the
// end of this file).  Who drives it is the executor's business: a thread of the worker's own, the
// callers of NCCL, or a test.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <thread>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/base/cpu.h"
#include "runtime/base/data_turn.h"
#include "runtime/base/secret.h"
#include "runtime/base/slot_table.h"
#include "runtime/engine/context.h"
#include "runtime/engine/mailbox.h"
#include "runtime/engine/turn_pacer.h"
#include "runtime/telemetry/counters.h"

namespace nccl_ha {

class Worker final : private Context {
 public:
  struct Options {
    uint32_t index = 0;
    uint64_t seed = 1;
    SecretSource* secrets = &kernel_secrets();
    std::shared_ptr<KeyFile> keys;  ///< HA_NCCL_KEY_FILE; null: none
    size_t actors_max = 8192;
    size_t senders_max = 4096;
    Waker* waker = nullptr;  ///< woken by messages from other threads
    bool ticks = false;      ///< the clock is the host's, so that its ticks tell when to look at it
    CounterPlace counters;   ///< for the worker's own and those of what lives on it
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
  /// Control plane: in order with all that is posted so, one caller at a time.  Waits for nothing:
  /// what finds the mailbox full waits beside it, in memory that is allocated: throws
  /// std::bad_alloc, and nothing has changed.  After stop() it is dropped, and an actor that was
  /// handed over is destroyed.
  void post(const Message& message);
  /// Hands an actor over; its start() runs on the worker.  The id is valid at once.  Throws
  /// std::bad_alloc as post(), and the actor is destroyed.
  Result<ActorId> adopt(std::unique_ptr<Actor> actor);
  /// How long the worker may be left without a turn while those who turn it are busy elsewhere.
  Duration max_poll_gap() const {
    return Duration(max_poll_gap_ns_.load(std::memory_order_relaxed));
  }
  /// After so many quick turns timers were looked at, if ticks have not told before.
  static constexpr unsigned turns_to_see_time = TurnPacer::turns_to_see_time;
  /// With at least so much of it nobody waits for what software does by itself.
  static constexpr Duration relaxed_poll_gap = std::chrono::milliseconds(10);
  bool relaxed() const { return max_poll_gap() >= relaxed_poll_gap; }
  size_t actor_count() const { return actor_count_.load(std::memory_order_acquire); }
  uint64_t turns() const { return turns_.load(std::memory_order_relaxed); }

  const WorkerCounters& statistics() const { return *counters_; }

  // --- the executor's thread
  /// A full turn; work done, 0 when idle.
  unsigned turn();
  /// The same for callers that make one turn after the other: looks at the clock, and at timers and
  /// streams with it, only when somebody needs the time and else every few turns.  One that found
  /// something to do ends early: its caller waits for that.  Work done, 0 when idle.
  unsigned quick_turn();
  /// A quick turn that is over at once when `found()`, which looks at memory only, says that what
  /// the caller needs is there.  Whether it was.
  template <class Found>
  bool turn_unless(Found&& found);
  /// Lets `post` make an actor of this worker post something, and sends that; everything else has
  /// to wait for the next turn.  `leisure`: what was posted takes a while to be answered, so that
  /// the clock is read now, and what depends on it looked at, instead of in one of the next turns.
  template <class Post>
  void push(Post&& post, bool leisure = false);
  /// Nothing queued and every poller agrees: the thread may sleep.
  bool may_sleep();
  /// Not later than this must turn() be called again; nullopt: only when something arrives.  For
  /// those that sleep until then: what the next turn comes later counts as lost time.
  std::optional<Instant> next_deadline();
  /// What to wait for besides the waker.  Throws std::bad_alloc.
  std::vector<int> wait_fds() const;
  /// Changes when wait_fds() does.
  uint64_t wait_version() const { return wait_version_; }
  /// Asks all actors to stop and turns until they and their streams are gone, for at most `limit`;
  /// for `owed_limit` more while one of them owes something.
  void stop(Duration limit, Duration owed_limit = {});
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
  /// Of streams: whoever waits for a handshake calls, and nobody else is in a hurry.
  static constexpr Duration default_poll_gap = relaxed_poll_gap;
  static constexpr Duration overrun_threshold = std::chrono::milliseconds(20);

  // Context
  Result<ActorId> add_actor(std::unique_ptr<Actor> actor) override;
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

  enum class Turn : uint8_t {
    full,   ///< everything, by the clock
    quick,  ///< the clock only when somebody needs it or it is due
    push,   ///< nothing is taken in, only what was posted goes out
  };
  template <Turn kind, class First>
  unsigned cycle(First&& first, bool leisure);
  template <Turn kind>
  unsigned poll_pollers(bool leisure);
  template <Turn kind>
  bool timed_part_is_due(unsigned work, bool leisure);
  [[gnu::noinline]] unsigned timed_part(Turn kind);
  unsigned poll_backed_off();
  [[gnu::noinline]] unsigned take_messages();
  /// What is polled, and how often it was; its own owner publishes that now and then.
  struct Polled {
    Poller* poller;
    uint64_t turns = 0;
    uint64_t busy_turns = 0;
    CounterBlock<PollerCounters> counters;
  };
  unsigned poll(size_t at);
  [[gnu::noinline]] void publish_turns();
  [[gnu::noinline]] void end_turn();
  unsigned take_overflow();
  void deliver(const Message& message);
  void drop(const Message& message);  ///< nobody will take it
  uint64_t ticks() const { return pacer_.counts_ticks() ? cpu_ticks() : 0; }
  void measure(Instant begin);
  void take_over(const Message& message);
  void reap();
  bool sleeps_soundly();
  void pollers_changed();
  template <class Call>
  unsigned survive(Call&& call);
  void on_no_memory();
  void update_poll_gap();
  Result<ActorId> reserve();
  void unreserve(const ActorId& id);
  Actor* find(ActorId id);

  std::shared_ptr<Mailbox<Message>> mailbox_;
  Waker* const waker_;
  std::mutex post_mutex_;
  Address<Message> post_address_;
  std::vector<Message> overflow_;       // younger than what lies in the mailbox
  std::atomic<bool> overflows_{false};  // some is there

  std::mutex reserve_mutex_;
  std::vector<uint32_t> free_slots_;
  std::vector<uint32_t> generations_;  // next generation of a slot, guarded by reserve_mutex_
  std::vector<Slot> slots_;
  std::atomic<size_t> actor_count_{0};

  std::vector<uint32_t> leaving_;
  std::deque<Message> local_;
  std::vector<Polled> pollers_;
  std::atomic<int64_t> max_poll_gap_ns_{Duration(default_poll_gap).count()};
  uint64_t wait_version_ = 1;
  std::atomic<uint64_t> turns_{0};
  uint64_t busy_turns_ = 0;
  TurnPacer pacer_;
  bool pending_work_ = false;  ///< there may be local messages, leavers, or streams to turn at once
  std::atomic<std::thread::id> owner_{};
};

// --- The duty cycle: what every turn is, whoever drives the worker and whatever for.

/// `first`: what the caller came for.  It posts something, or finds what is waited for: true, and
/// the turn is over.
template <Worker::Turn kind, class First>
[[gnu::always_inline]] inline unsigned Worker::cycle(First&& first, bool leisure) {
  const DataTurn turn;
  turn_clock_.begin_turn();
  turns_.store(turns_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  if (survive([&] { return first() ? 1U : 0U; }) != 0) {
    ++busy_turns_;
    return 1;
  }
  unsigned work = 0;
  if (kind == Turn::full || (kind == Turn::quick && (!mailbox_->looks_idle() || pending_work_)))
      [[unlikely]] {
    work += take_messages();
  }
  work += poll_pollers<kind>(leisure);
  if (timed_part_is_due<kind>(work, leisure)) [[unlikely]] {
    work += timed_part(kind);
  }
  if (pending_work_) [[unlikely]] {
    work += survive([&] {
      end_turn();
      return 0U;
    });
  }
  busy_turns_ += work != 0 ? 1 : 0;
  return work;
}

/// An exception that memory is out ends here: no thread of the host's may end by it.
template <class Call>
[[gnu::always_inline]] inline unsigned Worker::survive(Call&& call) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    on_no_memory();
    return 1;
  }
}

[[gnu::always_inline]] inline unsigned Worker::poll(size_t at) {
  Poller* const poller = pollers_[at].poller;
  ++pollers_[at].turns;
  const unsigned work = survive([&] { return poller->poll(turn_clock_); });
  if (work != 0 && at < pollers_.size() && pollers_[at].poller == poller) {
    ++pollers_[at].busy_turns;
  }
  return work;
}

/// A poller may remove itself and others.  Who has backed off is asked with the time only.
template <Worker::Turn kind>
[[gnu::always_inline]] inline unsigned Worker::poll_pollers([[maybe_unused]] bool leisure) {
  unsigned work = 0;
  for (size_t i = 0; i < pollers_.size(); ++i) {
    Poller& poller = *pollers_[i].poller;
    if (kind == Turn::push) {
      work += poller.wants_push(leisure) ? survive([&] { return poller.push(turn_clock_); }) : 0;
    } else {
      work += kind == Turn::quick && poller.backed_off() ? 0 : poll(i);
    }
  }
  return work;
}

/// A quick turn that found something leaves pending work to the next one: whoever waits for what
/// came goes on at once.
template <Worker::Turn kind>
[[gnu::always_inline]] inline bool Worker::timed_part_is_due([[maybe_unused]] unsigned work,
                                                             [[maybe_unused]] bool leisure) {
  if constexpr (kind == Turn::full) {
    return true;
  } else if constexpr (kind == Turn::push) {
    return leisure && pacer_.clock_soon_due(ticks());
  } else {
    if (pacer_.clock_due(ticks())) [[unlikely]] {
      static_cast<void>(turn_clock_.now());
    }
    return turn_clock_.was_read() || (pending_work_ && work == 0);
  }
}

[[gnu::always_inline]] inline unsigned Worker::quick_turn() {
  return cycle<Turn::quick>([] { return false; }, false);
}

template <class Found>
[[gnu::always_inline]] inline bool Worker::turn_unless(Found&& found) {
  bool is_there = false;
  static_cast<void>(cycle<Turn::quick>([&] { return is_there = found(); }, false));
  return is_there;
}

template <class Post>
[[gnu::always_inline]] inline void Worker::push(Post&& post, bool leisure) {
  const auto first = [&] {
    post();
    return false;
  };
  static_cast<void>(cycle<Turn::push>(first, leisure));
}

}  // namespace nccl_ha
