#include "runtime/engine/engine.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/log.h"
#include "runtime/engine/thread.h"
#include "runtime/streams/uv_streams.h"

namespace nccl_ha {
namespace {

constexpr Duration stop_limit = std::chrono::seconds(2);
constexpr Duration poll_interval_max = std::chrono::milliseconds(100);
constexpr int polls_per_heartbeat = 2;
/// The best that a clock of a processor's own ticks is worth; more is a count that jumped.
constexpr double fastest_ticks_per_ns = 16;

/// How long the fallback thread pauses at most while callers are busy.  None of what it then does
/// late may be late by as much as peers take for silence.
Duration longest_poll_interval(const Config& config) {
  const Duration beat = std::chrono::milliseconds(config.heartbeat_ms);
  return beat == Duration(0) ? poll_interval_max
                             : std::min(poll_interval_max, beat / polls_per_heartbeat);
}

}  // namespace

bool threads_drive(const Config& config) {
  return config.use_progress_thread &&
         processor_share().usable() > static_cast<size_t>(config.progress_threads);
}

Duration unanswered_limit(const Config& config) {
  const Duration least = std::chrono::seconds(30);
  return config.enable_backup ? least + std::chrono::milliseconds(config.retry_budget_ms) : least;
}

Result<std::unique_ptr<Engine>> Engine::start(const Config& config) {
  const Mode mode = config.use_progress_thread ? Mode::threads : Mode::inline_turns;
  auto cpus = parse_cpu_list(config.progress_cpus);
  if (!cpus) {
    return fail(Errc::invalid_argument, "HA_NCCL_PROGRESS_CPUS: " + cpus.error().what);
  }
  std::unique_ptr<Engine> engine(new Engine(config, mode, nullptr));
  const auto count = static_cast<size_t>(config.progress_threads);
  engine->loads_ = plan_workers(count, *cpus);
  engine->counters_.file =
      CounterFile::create({config.counters_dir, static_cast<size_t>(config.counters_blocks), count,
                           static_cast<size_t>(config.record_events)});
  const bool threads_first = threads_drive(config);
  for (uint32_t i = 0; i < count; ++i) {
    auto slot = std::make_unique<WorkerSlot>();
    auto parker = Parker::make();
    if (!parker) {
      return parker.error();
    }
    auto streams = make_uv_streams(unanswered_limit(config));
    if (!streams) {
      return streams.error();
    }
    slot->parker = std::move(*parker);
    // Inline mode has one sleeper for all workers.
    slot->sleeper =
        mode == Mode::threads || i == 0 ? slot->parker.get() : engine->slots_.front()->parker.get();
    slot->driver = threads_first ? WorkerSlot::Driver::thread : WorkerSlot::Driver::callers;
    slot->taken = mode == Mode::threads && !threads_first ? Taken::shared : Taken::back;
    Worker::Options options;
    options.index = i;
    options.seed = os_random_u64();
    options.ticks = true;
    options.counters = engine->counters_;
    options.waker = slot->sleeper;
    slot->worker =
        std::make_unique<Worker>(options, engine->config_, engine->clock_, std::move(*streams));
    engine->slots_.push_back(std::move(slot));
  }
  engine->fallback_parker_ = engine->slots_.front()->parker.get();
  for (size_t i = 0; i < count; ++i) {
    WorkerSlot& slot = *engine->slots_[i];
    if (mode == Mode::threads) {
      auto thread = start_thread(
          [raw = engine.get(), &slot, info = engine->loads_[i]] { raw->run_thread(slot, info); });
      if (!thread) {
        return thread.error();
      }
      slot.thread = std::move(*thread);
    }
  }
  if (mode == Mode::inline_turns) {
    auto thread = start_thread([raw = engine.get()] { raw->run_fallback(); });
    if (!thread) {
      return thread.error();
    }
    engine->fallback_threads_.push_back(std::move(*thread));
  }
  return engine;
}

std::unique_ptr<Engine> Engine::start_virtual(const Config& config, Clock& clock, uint64_t seed,
                                              const StreamSource& streams, bool callers_help) {
  const Mode mode = !config.use_progress_thread ? Mode::inline_turns
                    : callers_help              ? Mode::threads
                                                : Mode::virtual_time;
  std::unique_ptr<Engine> engine(new Engine(config, mode, &clock));
  const auto count = static_cast<size_t>(config.progress_threads);
  engine->loads_.resize(count);
  Random seeds(seed);
  for (uint32_t i = 0; i < count; ++i) {
    auto slot = std::make_unique<WorkerSlot>();
    Worker::Options options;
    options.index = i;
    options.seed = seeds.next();
    if (mode != Mode::virtual_time && i == 0) {
      auto parker = Parker::make();
      NHA_ASSERT(parker.ok(), "a simulated process needs two descriptors");
      slot->parker = std::move(*parker);
      engine->fallback_parker_ = slot->parker.get();
    }
    slot->driver = mode == Mode::threads ? WorkerSlot::Driver::thread : WorkerSlot::Driver::callers;
    slot->sleeper = engine->fallback_parker_;
    options.waker = slot->sleeper;
    slot->worker = std::make_unique<Worker>(options, engine->config_, clock, streams());
    engine->slots_.push_back(std::move(slot));
  }
  return engine;
}

Engine::~Engine() {
  stopping_.store(true, std::memory_order_seq_cst);
  if (virtual_) {
    for (auto& slot : slots_) {
      slot->worker->stop(Duration(0));  // time does not pass here
    }
    return;
  }
  for (auto& slot : slots_) {
    slot->parker->sleeping.store(0, std::memory_order_seq_cst);
    slot->parker->wake();
  }
  for (auto& slot : slots_) {
    if (slot->thread.joinable()) {
      slot->thread.join();
    }
  }
  for (std::thread& thread : fallback_threads_) {
    thread.join();
  }
  for (auto& slot : slots_) {
    slot->worker->stop(stop_limit);
  }
  if (counters_.file) {
    counters_.file->remove();  // what outlives the engine counts on, for nobody
  }
}

size_t Engine::assign_worker(int numa_node, double weight) {
  std::lock_guard lock(load_mutex_);
  const size_t index = nccl_ha::place(loads_, numa_node);
  loads_[index].load += weight;
  return index;
}

void Engine::unassign_worker(size_t worker, double weight) {
  std::lock_guard lock(load_mutex_);
  loads_[worker].load -= weight;
}

void Engine::prepare_thread(const char* name) {
  // The job's signals belong to the job's threads.
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
  pthread_setname_np(pthread_self(), name);
}

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
  if (slot.watched_version != worker.wait_version()) {
    slot.watched_version = worker.wait_version();
    slot.parker->watch(worker.wait_fds());
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
  if (info.cpu >= 0) {
    if (auto pinned = pin_current_thread(info.cpu); !pinned) {
      NHA_LOG_WARN("{}", pinned.error().message());
    }
  }
  Recorder& recorder = slot.worker->context().recorder();
  hold(slot);
  recorder.record(TraceEvent::worker_started, 0, index, static_cast<uint64_t>(info.cpu),
                  clock_.now());
  slot.busy.store(false, std::memory_order_release);
  IdlePolicy idle(std::chrono::microseconds(config_.idle_spin_us),
                  std::chrono::microseconds(config_.idle_yield_us));
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
    case Taken::shared:
    case Taken::starved:
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

bool Engine::take_over(WorkerSlot& slot, Caller& caller) {
  const bool asleep = slot.sleeper->sleeping.load(std::memory_order_acquire) != 0;
  if (!asleep) {
    if (!slot.asked.load(std::memory_order_relaxed)) {
      slot.asked.store(true, std::memory_order_relaxed);
    }
    const uint64_t turns = slot.thread_turns.load(std::memory_order_acquire);
    const uint64_t now = ticks();
    if (turns != caller.seen_turns) {
      caller.seen_turns = turns;
      caller.seen_ticks = now;
      return false;
    }
    // A count that another processor keeps may be behind.
    if (static_cast<int64_t>(now - caller.seen_ticks) <
        static_cast<int64_t>(slot.help_ticks.load(std::memory_order_relaxed))) {
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
    slot.worker->quick_turn();
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

void Engine::wake_sleeper(WorkerSlot& slot) {
  if (slot.sleeper->sleeping.exchange(0, std::memory_order_seq_cst) != 0) {
    slot.sleeper->wake();
  }
}

void Engine::assist_all() {
  for (auto& slot : slots_) {
    assist(slot->worker->context().worker());
  }
}

// Callers that turn one worker may wait for what only another one can do.
void Engine::poll_starved(std::span<const std::unique_ptr<WorkerSlot>> slots) {
  for (const auto& slot : slots) {
    if (slot->starved && !slot->busy.exchange(true, std::memory_order_acquire)) {
      slot->worker->bind_to_this_thread();
      slot->worker->context().set_callers_drive(true);
      static_cast<void>(slot->worker->turn());
      ++slot->seen_turns;
      slot->busy.store(false, std::memory_order_release);
    }
  }
}

Engine::Callers Engine::observe_callers(std::span<const std::unique_ptr<WorkerSlot>> slots) {
  Callers callers;
  for (const auto& slot : slots) {
    callers.poll_gap = std::min(callers.poll_gap, slot->worker->max_poll_gap());
    const uint64_t turns = slot->worker->turns();
    // So few turns may not even have looked at the clock.
    slot->starved =
        turns - slot->seen_turns < Worker::turns_to_see_time && slot->worker->actor_count() != 0;
    callers.any_starved = callers.any_starved || slot->starved;
    callers.any = callers.any || turns != slot->seen_turns;
    slot->seen_turns = turns;
  }
  return callers;
}

/// Waking takes a processor from somebody.  Callers that have called all along are looked at less
/// and less often, if nobody waits for software to answer.
Duration Engine::next_interval(const Callers& callers, Duration last) const {
  const bool relaxed = !callers.any_starved && callers.poll_gap >= Worker::relaxed_poll_gap;
  return relaxed ? std::max(callers.poll_gap, std::min(2 * last, longest_poll_interval(config_)))
                 : callers.poll_gap;
}

// Peers must get their acknowledgements while NCCL makes no calls.  The fallback thread looks now
// and then (Poller::max_poll_gap) whether somebody has turned the workers since; if nobody has, it
// drives them until somebody does.  A caller that turns pays nothing for that but a counter.
void Engine::run_fallback() {
  prepare_thread("nccl-ha-fb");
  // One parker serves all workers: it sleeps on every worker's descriptors.
  Parker& parker = *fallback_parker_;
  while (!stopping_.load(std::memory_order_seq_cst)) {
    const Rest rest = poll_workers();
    const Instant now = clock_.now();
    if (rest.kind == Rest::Kind::interval) {
      parker.wait_until(*rest.until, now);
      continue;
    }
    if (rest.kind == Rest::Kind::sleep) {
      parker.sleep(rest.until, now);
    }
    parker.sleeping.store(0, std::memory_order_seq_cst);
  }
}

Engine::Rest Engine::turn_fallback() {
  fallback_parker_->sleeping.store(0, std::memory_order_relaxed);
  const Rest rest = poll_workers();
  if (rest.kind != Rest::Kind::sleep) {
    fallback_parker_->sleeping.store(0, std::memory_order_relaxed);
  }
  return rest;
}

Engine::Rest Engine::poll_workers() {
  Fallback& own = fallback_state_;
  own.versions.resize(slots_.size(), 0);
  const Callers callers = observe_callers(slots_);
  const bool caller_active = std::exchange(own.met_caller, false) || callers.any;
  if (caller_active) {
    own.driving = false;
  }
  if (!own.driving) {
    own.driving = !caller_active;
    if (caller_active) {
      // Packets should not wake anybody while the callers look for them.
      poll_starved(slots_);
      own.poll_interval = next_interval(callers, own.poll_interval);
      return {Rest::Kind::interval, clock_.now() + own.poll_interval};
    }
    own.poll_interval = Duration(0);
  }
  unsigned work = 0;
  bool sleepy = true;
  std::optional<Instant> deadline;
  std::vector<int> fds;
  // Announced before the last look, as in park(); a message from now on wakes us.
  fallback_parker_->sleeping.exchange(1, std::memory_order_seq_cst);
  for (auto& slot : slots_) {
    if (slot->busy.exchange(true, std::memory_order_acquire)) {
      sleepy = false;
      own.met_caller = true;
      continue;
    }
    own.held.push_back(slot.get());
    slot->worker->bind_to_this_thread();
    slot->worker->context().set_callers_drive(true);
    work += slot->worker->turn();
    ++slot->seen_turns;
    sleepy = sleepy && slot->worker->may_sleep();
    const auto next = slot->worker->next_deadline();
    deadline = next && (!deadline || *next < *deadline) ? next : deadline;
    const size_t index = slot->worker->context().worker_index();
    own.changed = own.changed || own.versions[index] != slot->worker->wait_version();
    own.versions[index] = slot->worker->wait_version();
    const auto descriptors = slot->worker->wait_fds();
    fds.insert(fds.end(), descriptors.begin(), descriptors.end());
    slot->worker->context().request_stream_turns(1);
  }
  const bool sleeps = work == 0 && sleepy;
  if (sleeps && own.changed && !virtual_) {
    // While every worker is held, so that nobody closes one of these.
    fallback_parker_->watch(fds);
    own.changed = false;
  }
  for (WorkerSlot* slot : own.held) {
    slot->busy.store(false, std::memory_order_release);
  }
  own.held.clear();
  return {sleeps ? Rest::Kind::sleep : Rest::Kind::none, deadline};
}

}  // namespace nccl_ha
