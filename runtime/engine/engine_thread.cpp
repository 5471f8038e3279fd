// What a progress thread does: it drives its worker, leaves it to callers, and comes back.
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <utility>

#include "runtime/base/data_turn.h"
#include "runtime/base/log.h"
#include "runtime/base/own_thread.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/thread.h"

namespace nccl_ha {
namespace {

/// The best that a clock of a processor's own ticks is worth; more is a count that jumped.
constexpr double fastest_ticks_per_ns = 16;
/// Schedulers leave a processor to somebody else for at least that long.
constexpr Duration time_slice_min = std::chrono::microseconds(500);
/// How often a caller looks at the thread in the time after which it helps.
constexpr uint64_t looks_per_help = 4;

}  // namespace

Duration Engine::thread_cpu_time() const {
  if (virtual_) {
    return Duration(0);
  }
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + Duration(time.tv_nsec);
}

uint64_t Engine::ticks() const {
  return counts_ticks_ ? cpu_ticks()
                       : static_cast<uint64_t>(clock_.now().time_since_epoch().count());
}

void Engine::hold(WorkerSlot& slot) {
  while (slot.busy.exchange(true, std::memory_order_acquire)) {
    sched_yield();  // for the rest of a caller's turn
  }
  slot.worker->bind_to_this_thread();
}

/// A caller may be in the middle of a turn, which ends; or this very thread, which a signal's
/// handler has taken out of its turn to end the process.
bool Engine::hold_unless_own(WorkerSlot& slot) {
  while (slot.busy.exchange(true, std::memory_order_acquire)) {
    if (DataTurn::is_here()) {
      return false;
    }
    sched_yield();
  }
  slot.worker->bind_to_this_thread();
  return true;
}

/// Called with the worker held, which it gives back.
bool Engine::park(WorkerSlot& slot) {
  Worker& worker = *slot.worker;
  slot.parker->sleeping.exchange(1, std::memory_order_seq_cst);
  // Announced; whatever was published before this point is found by the last look, whatever comes
  // after it wakes us (see Waker).
  if (!worker.may_sleep() || stopping_.load(std::memory_order_seq_cst)) {
    slot.parker->sleeping.store(0, std::memory_order_seq_cst);
    slot.busy.store(false, std::memory_order_release);
    return false;
  }
  if (slot.watched_version != worker.wait_version() || !slot.parker->whole()) {
    slot.watched_version = worker.wait_version();
    WorkerSlot* const held = &slot;
    watch(*slot.parker, std::span(&held, 1));
  }
  const Instant now = clock_.now();
  const auto deadline = worker.next_deadline();
  const uint32_t index = worker.context().worker_index();
  const Duration timeout = deadline ? std::max(*deadline - now, Duration(0)) : Duration::max();
  worker.context().counters()->parks.add();
  worker.context().recorder().record(TraceEvent::worker_parked, 0, index,
                                     static_cast<uint64_t>(timeout.count()), now);
  worker.context().request_stream_turns(1);
  show_running(slot);  // when it wakes
  slot.busy.store(false, std::memory_order_release);
  slot.parker->sleep(deadline, now);
  slot.parker->sleeping.store(0, std::memory_order_seq_cst);
  const Instant woken = clock_.now();
  if (!slot.busy.exchange(true, std::memory_order_acquire)) {  // else a caller woke it
    slot.worker->bind_to_this_thread();
    worker.context().recorder().record(TraceEvent::worker_woken, 0, index,
                                       static_cast<uint64_t>((woken - now).count()), woken);
    slot.busy.store(false, std::memory_order_release);
  }
  return true;
}

void Engine::run_thread(WorkerSlot& slot, WorkerInfo info) {
  const uint32_t index = slot.worker->context().worker_index();
  prepare_thread(fmt::format("nccl-ha-{}", index).c_str());
  const auto pin = [&] {
    if (auto pinned = pin_current_thread(info.cpu); !pinned) {
      NHA_LOG_WARN("{}", pinned.error().message());
    }
  };
  if (info.cpu >= 0) {
    run_to_its_end(pin, "a progress thread");
  }
  Recorder& recorder = slot.worker->context().recorder();
  hold(slot);
  recorder.record(TraceEvent::worker_started, 0, index, static_cast<uint64_t>(info.cpu),
                  clock_.now());
  slot.busy.store(false, std::memory_order_release);
  IdlePolicy idle(config_);
  while (!stopping_.load(std::memory_order_seq_cst)) {
    drive(slot, idle);
    stand_by(slot);
  }
  hold(slot);
  recorder.record(TraceEvent::worker_stopped, 0, index, slot.worker->turns(), clock_.now());
  slot.busy.store(false, std::memory_order_release);
}

/// Until callers have the worker.
void Engine::drive(WorkerSlot& slot, IdlePolicy& idle) {
  begin_window(slot);
  while (slot.driver.load(std::memory_order_acquire) == WorkerSlot::Driver::thread &&
         !stopping_.load(std::memory_order_relaxed)) {
    Instant now{};
    const unsigned work = turn_as_thread(slot, now);
    const auto step = idle.next(work != 0, now);
    // For callers that are away nothing but what arrives is done, at no more cost than that.
    switch (slot.substitutes && work == 0 ? IdlePolicy::Step::sleep : step) {
      case IdlePolicy::Step::spin:
        break;
      case IdlePolicy::Step::yield:
        sched_yield();
        break;
      case IdlePolicy::Step::sleep:
        if (!slot.busy.exchange(true, std::memory_order_acquire)) {
          slot.worker->bind_to_this_thread();
          if (park(slot)) {
            begin_window(slot);
            continue;
          }
        }
        break;
    }
    if (slot.substitutes) {
      end_substitution(slot, now);
    } else if (slot.policy.judgement_due(now)) {
      judge(slot);
    }
  }
}

/// Until the thread drives the worker again.
void Engine::stand_by(WorkerSlot& slot) {
  std::optional<Instant> until = clock_.now();
  for (bool began = begin_standing_by(slot); began; began = until.has_value()) {
    until = look_at_callers(slot);
    if (until && !stopping_.load(std::memory_order_seq_cst)) {
      slot.parker->wait_until(*until, clock_.now());
    }
  }
}

/// False: the thread drives.
bool Engine::begin_standing_by(WorkerSlot& slot) {
  if (slot.driver.load(std::memory_order_acquire) == WorkerSlot::Driver::thread) {
    return false;
  }
  const Instant now = clock_.now();
  switch (slot.taken.exchange(Taken::back, std::memory_order_acq_rel)) {
    case Taken::back:
      break;
    case Taken::starved:
      if (now - slot.turned < time_slice_min) {
        slot.policy.stand_by_after_sleep(now);  // an interrupt, or a host that was busy elsewhere
        break;
      }
      [[fallthrough]];
    case Taken::shared:
      slot.policy.stand_by(now);
      break;
    case Taken::asleep:
      if (!slot.substitutes) {  // else its pause goes on
        slot.policy.stand_by_after_sleep(now);
      }
      break;
  }
  // What was turned up to now says nothing of callers.
  slot.seen_turns = slot.worker->turns() - Worker::turns_to_see_time;
  slot.poll_interval = Duration(0);
  return true;
}

std::optional<Instant> Engine::look_at_callers(WorkerSlot& slot) {
  const std::span all(slots_);
  const auto own = all.subspan(slot.worker->context().worker_index(), 1);
  const Callers callers = observe_callers(own);
  const Instant now = clock_.now();
  const bool may_return = slot.policy.may_return(now);
  if (!callers.any || may_return || stopping_.load(std::memory_order_seq_cst)) {
    slot.substitutes = !may_return;
    slot.asked.store(false, std::memory_order_relaxed);
    show_running(slot);  // before its first turn nobody may take it for one that does not run
    slot.driver.store(WorkerSlot::Driver::thread, std::memory_order_release);
    return std::nullopt;
  }
  poll_starved(own);
  slot.poll_interval = next_interval(callers, slot.poll_interval);
  return now + slot.poll_interval;
}

/// Callers see that the thread runs.
void Engine::show_running(WorkerSlot& slot) {
  slot.thread_turns.store(slot.thread_turns.load(std::memory_order_relaxed) + 1,
                          std::memory_order_release);
}

unsigned Engine::turn_as_thread(WorkerSlot& slot, Instant& now) {
  if (slot.busy.exchange(true, std::memory_order_acquire)) {
    now = clock_.now();
    return 0;  // a caller is just taking it over
  }
  Worker& worker = *slot.worker;
  worker.bind_to_this_thread();
  worker.context().set_callers_drive(slot.substitutes);
  const unsigned work = worker.turn();
  now = worker.context().now();
  slot.turned = now;
  show_running(slot);
  slot.busy.store(false, std::memory_order_release);
  return work;
}

/// The clock and the ticks are read together: what comes in between would be taken for their rate.
void Engine::begin_window(WorkerSlot& slot) {
  const Duration cpu = thread_cpu_time();
  slot.began = clock_.now();
  slot.began_ticks = ticks();
  slot.policy.begin(slot.began, cpu);
}

void Engine::judge(WorkerSlot& slot) {
  const Duration cpu = thread_cpu_time();
  const Instant now = clock_.now();
  const uint64_t seen_ticks = ticks();
  const double rate = static_cast<double>(seen_ticks - slot.began_ticks) /
                      static_cast<double>((now - slot.began).count());
  slot.began = now;
  slot.began_ticks = seen_ticks;
  const bool own = slot.policy.judge(now, cpu);
  const bool asked = slot.asked.exchange(false, std::memory_order_relaxed);
  // A window in which the thread was off its processor is no measurement.
  if (own && rate > 0 && rate < fastest_ticks_per_ns) {
    slot.help_ticks.store(static_cast<uint64_t>(rate * static_cast<double>(help_after.count())) + 1,
                          std::memory_order_relaxed);
  }
  if (!own && asked) {
    hold(slot);
    slot.worker->context().counters()->stood_by.add();
    slot.busy.store(false, std::memory_order_release);
    hand_to_callers(slot, Taken::shared);
  }
}

/// The callers have the worker back as soon as one asks.
void Engine::end_substitution(WorkerSlot& slot, Instant now) {
  if (slot.asked.load(std::memory_order_relaxed)) {
    hand_to_callers(slot, Taken::back);
  } else if (slot.policy.may_return(now)) {
    slot.substitutes = false;
    begin_window(slot);
  }
}

void Engine::hand_to_callers(WorkerSlot& slot, Taken why) {
  slot.taken.store(why, std::memory_order_relaxed);
  slot.driver.store(WorkerSlot::Driver::callers, std::memory_order_release);
}

/// Of a worker whose thread sleeps, for somebody who waits: nobody wakes it for nothing.  Whether
/// there was work.
bool Engine::try_a_turn(WorkerSlot& slot) {
  if (!try_acquire(slot)) {
    return false;
  }
  if (slot.worker->quick_turn() == 0) {
    slot.busy.store(false, std::memory_order_release);
    return false;
  }
  slot.worker->context().counters()->taken_over.add();
  hand_to_callers(slot, Taken::asleep);
  release(slot);
  return true;
}

bool Engine::take_over(WorkerSlot& slot, Caller& caller, bool waits) {
  // A call may come every few nanoseconds, and a look takes the thread's lines from it.
  const uint64_t now = ticks();
  const uint64_t help_ticks = slot.help_ticks.load(std::memory_order_relaxed);
  if (now - caller.looked_ticks < help_ticks / looks_per_help) {
    return false;
  }
  caller.looked_ticks = now;
  const bool asleep = slot.sleeper->sleeping.load(std::memory_order_acquire) != 0;
  if (asleep && waits) {
    if (now - caller.tried_ticks < help_ticks) {
      return false;
    }
    caller.tried_ticks = now;
    return try_a_turn(slot);
  }
  if (!asleep) {
    if (!slot.asked.load(std::memory_order_relaxed)) {
      slot.asked.store(true, std::memory_order_relaxed);
    }
    const uint64_t turns = slot.thread_turns.load(std::memory_order_acquire);
    if (turns != caller.seen_turns) {
      caller.seen_turns = turns;
      caller.seen_ticks = now;
      return false;
    }
    // A count that another processor keeps may be behind.
    if (static_cast<int64_t>(now - caller.seen_ticks) < static_cast<int64_t>(help_ticks)) {
      return false;
    }
  }
  if (!try_acquire(slot)) {
    return false;  // it stands still in the middle of a turn
  }
  slot.worker->context().counters()->taken_over.add();
  hand_to_callers(slot, asleep ? Taken::asleep : Taken::starved);
  release(slot);
  return true;
}

void Engine::assist(WorkerSlot& slot) {
  if (slot.driver.load(std::memory_order_relaxed) == WorkerSlot::Driver::callers &&
      try_acquire(slot)) {
    static_cast<void>(slot.worker->quick_turn());
    release(slot);
  }
}

Engine::ThreadTurn Engine::turn_thread(size_t worker) {
  WorkerSlot& slot = *slots_[worker];
  if (slot.driver.load(std::memory_order_relaxed) == WorkerSlot::Driver::callers) {
    if (!std::exchange(slot.standing_by, true)) {
      static_cast<void>(begin_standing_by(slot));
    }
    if (const auto until = look_at_callers(slot)) {
      return {0, until};
    }
    slot.standing_by = false;
  }
  Instant now{};
  const unsigned work = turn_as_thread(slot, now);
  if (slot.substitutes) {
    end_substitution(slot, now);
  }
  return {work, std::nullopt};
}

}  // namespace nccl_ha
