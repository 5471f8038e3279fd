#include "runtime/engine.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <utility>

#include "runtime/check.h"
#include "runtime/log.h"
#include "runtime/thread.h"
#include "runtime/uv_streams.h"

namespace nccl_ha {
namespace {

constexpr Duration stop_limit = std::chrono::seconds(2);
constexpr Duration nap_limit = std::chrono::milliseconds(100);
constexpr int naps_per_heartbeat = 2;

/// How long the standby naps at most while callers are busy.  None of what it then does late may be
/// late by as much as peers take for silence.
Duration longest_nap(const Config& config) {
  const Duration beat = std::chrono::milliseconds(config.heartbeat_ms);
  return beat == Duration(0) ? nap_limit : std::min(nap_limit, beat / naps_per_heartbeat);
}

}  // namespace

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
  for (uint32_t i = 0; i < count; ++i) {
    auto seat = std::make_unique<Seat>();
    auto parker = Parker::make();
    if (!parker) {
      return parker.error();
    }
    auto streams = make_uv_streams(unanswered_limit(config));
    if (!streams) {
      return streams.error();
    }
    seat->parker = std::move(*parker);
    Worker::Options options;
    options.index = i;
    options.seed = os_random_u64();
    options.ticks = true;
    // Inline mode has one sleeper for all workers.
    options.waker =
        mode == Mode::threads || i == 0 ? seat->parker.get() : engine->seats_.front()->parker.get();
    seat->worker =
        std::make_unique<Worker>(options, engine->config_, engine->clock_, std::move(*streams));
    engine->seats_.push_back(std::move(seat));
  }
  engine->bed_ = engine->seats_.front()->parker.get();
  for (size_t i = 0; i < count; ++i) {
    Seat& seat = *engine->seats_[i];
    if (mode == Mode::threads) {
      auto thread = start_thread(
          [raw = engine.get(), &seat, info = engine->loads_[i]] { raw->run_thread(seat, info); });
      if (!thread) {
        return thread.error();
      }
      seat.thread = std::move(*thread);
    }
  }
  if (mode == Mode::inline_turns) {
    auto thread = start_thread([raw = engine.get()] { raw->run_standby(); });
    if (!thread) {
      return thread.error();
    }
    engine->standby_.push_back(std::move(*thread));
  }
  return engine;
}

std::unique_ptr<Engine> Engine::start_virtual(const Config& config, Clock& clock, uint64_t seed,
                                              const StreamSource& streams) {
  const Mode mode = config.use_progress_thread ? Mode::virtual_time : Mode::inline_turns;
  std::unique_ptr<Engine> engine(new Engine(config, mode, &clock));
  const auto count = static_cast<size_t>(config.progress_threads);
  engine->loads_.resize(count);
  Random seeds(seed);
  for (uint32_t i = 0; i < count; ++i) {
    auto seat = std::make_unique<Seat>();
    Worker::Options options;
    options.index = i;
    options.seed = seeds.next();
    if (mode == Mode::inline_turns && i == 0) {
      auto parker = Parker::make();
      NHA_ASSERT(parker.ok(), "a simulated process needs two descriptors");
      seat->parker = std::move(*parker);
      engine->bed_ = seat->parker.get();
    }
    options.waker = engine->bed_;
    seat->worker = std::make_unique<Worker>(options, engine->config_, clock, streams());
    engine->seats_.push_back(std::move(seat));
  }
  return engine;
}

Engine::~Engine() {
  stopping_.store(true, std::memory_order_seq_cst);
  if (virtual_) {
    for (auto& seat : seats_) {
      seat->worker->stop(Duration(0));  // time does not pass here
    }
    return;
  }
  for (auto& seat : seats_) {
    seat->parker->sleeping.store(0, std::memory_order_seq_cst);
    seat->parker->wake();
  }
  for (auto& seat : seats_) {
    if (seat->thread.joinable()) {
      seat->thread.join();
    }
  }
  for (std::thread& thread : standby_) {
    thread.join();
  }
  for (auto& seat : seats_) {
    seat->worker->stop(stop_limit);
  }
}

size_t Engine::place(int numa_node, double weight) {
  std::lock_guard lock(load_mutex_);
  const size_t index = nccl_ha::place(loads_, numa_node);
  loads_[index].load += weight;
  return index;
}

void Engine::release(size_t worker, double weight) {
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

bool Engine::park(Seat& seat) {
  Worker& worker = *seat.worker;
  seat.parker->sleeping.exchange(1, std::memory_order_seq_cst);
  // Announced; whatever was published before this point is found by the last look, whatever comes
  // after it wakes us (see Waker).
  if (!worker.may_sleep() || stopping_.load(std::memory_order_seq_cst)) {
    seat.parker->sleeping.store(0, std::memory_order_seq_cst);
    return false;
  }
  if (seat.watched_version != worker.wait_version()) {
    seat.watched_version = worker.wait_version();
    seat.parker->watch(worker.wait_fds());
  }
  const Instant now = clock_.now();
  const auto deadline = worker.next_deadline();
  Recorder& recorder = worker.context().recorder();
  const uint32_t index = worker.context().worker_index();
  const Duration timeout = deadline ? std::max(*deadline - now, Duration(0)) : Duration::max();
  recorder.record(TraceEvent::worker_parked, 0, index, static_cast<uint64_t>(timeout.count()), now);
  seat.parker->sleep(deadline, now);
  seat.parker->sleeping.store(0, std::memory_order_seq_cst);
  const Instant woken = clock_.now();
  recorder.record(TraceEvent::worker_woken, 0, index, static_cast<uint64_t>((woken - now).count()),
                  woken);
  worker.context().request_stream_turns(1);
  return true;
}

void Engine::run_thread(Seat& seat, WorkerInfo info) {
  const uint32_t index = seat.worker->context().worker_index();
  prepare_thread(fmt::format("nccl-ha-{}", index).c_str());
  if (info.cpu >= 0) {
    if (auto pinned = pin_current_thread(info.cpu); !pinned) {
      NHA_LOG_WARN("{}", pinned.error().message());
    }
  }
  seat.worker->bind_to_this_thread();
  Recorder& recorder = seat.worker->context().recorder();
  recorder.record(TraceEvent::worker_started, 0, index, static_cast<uint64_t>(info.cpu),
                  clock_.now());
  IdlePolicy idle(std::chrono::microseconds(config_.idle_spin_us),
                  std::chrono::microseconds(config_.idle_yield_us));
  while (!stopping_.load(std::memory_order_relaxed)) {
    const unsigned work = seat.worker->turn();
    switch (idle.next(work != 0, seat.worker->context().now())) {
      case IdlePolicy::Step::spin:
        break;
      case IdlePolicy::Step::yield:
        sched_yield();
        break;
      case IdlePolicy::Step::sleep:
        static_cast<void>(park(seat));
        break;
    }
  }
  recorder.record(TraceEvent::worker_stopped, 0, index, seat.worker->turns(), clock_.now());
}

void Engine::rouse_standby() {
  if (bed_->sleeping.exchange(0, std::memory_order_seq_cst) != 0) {
    bed_->wake();
  }
}

void Engine::assist_all() {
  if (mode_ == Mode::inline_turns) {
    for (auto& seat : seats_) {
      static_cast<void>(turn(*seat));
    }
  }
}

// Callers that turn one worker may wait for what only another one can do.
void Engine::turn_left_alone() {
  for (auto& seat : seats_) {
    if (seat->left_alone && !seat->busy.exchange(true, std::memory_order_acquire)) {
      seat->worker->bind_to_this_thread();
      static_cast<void>(seat->worker->turn());
      ++seat->seen_turns;
      seat->busy.store(false, std::memory_order_release);
    }
  }
}

Engine::Callers Engine::look_for_callers() {
  Callers callers;
  for (auto& seat : seats_) {
    callers.patience = std::min(callers.patience, seat->worker->patience());
    const uint64_t turns = seat->worker->turns();
    // So few turns may not even have looked at the clock.
    seat->left_alone =
        turns - seat->seen_turns < Worker::turns_to_see_time && seat->worker->actor_count() != 0;
    callers.left_one_alone = callers.left_one_alone || seat->left_alone;
    callers.any = callers.any || turns != seat->seen_turns;
    seat->seen_turns = turns;
  }
  return callers;
}

// Peers must get their acknowledgements while NCCL makes no calls.  The standby looks now and
// then (Poller::patience) whether somebody has turned the workers since; if nobody has, it drives
// them until somebody does.  A caller that turns pays nothing for that but a counter.
void Engine::run_standby() {
  prepare_thread("nccl-ha-standby");
  // One parker serves all workers: it sleeps on every worker's descriptors.
  Parker& bed = *bed_;
  while (!stopping_.load(std::memory_order_seq_cst)) {
    const Rest rest = look_after_workers();
    const Instant now = clock_.now();
    if (rest.kind == Rest::Kind::nap) {
      bed.nap(*rest.until, now);
      continue;
    }
    if (rest.kind == Rest::Kind::sleep) {
      bed.sleep(rest.until, now);
    }
    bed.sleeping.store(0, std::memory_order_seq_cst);
  }
}

Engine::Rest Engine::turn_standby() {
  bed_->sleeping.store(0, std::memory_order_relaxed);
  const Rest rest = look_after_workers();
  if (rest.kind != Rest::Kind::sleep) {
    bed_->sleeping.store(0, std::memory_order_relaxed);
  }
  return rest;
}

Engine::Rest Engine::look_after_workers() {
  Standby& own = standby_state_;
  own.versions.resize(seats_.size(), 0);
  const Callers callers = look_for_callers();
  const bool caller_active = std::exchange(own.met_caller, false) || callers.any;
  if (caller_active) {
    own.driving = false;
  }
  if (!own.driving) {
    own.driving = !caller_active;
    if (caller_active) {
      // Packets should not wake anybody while the callers look for them.
      turn_left_alone();
      // Waking takes a processor from somebody.  Who has called all along is asked less and less
      // often whether he still does, if nobody waits for software to answer.
      const bool calm = !callers.left_one_alone && callers.patience >= Worker::calm_patience;
      own.nap = calm ? std::max(callers.patience, std::min(2 * own.nap, longest_nap(config_)))
                     : callers.patience;
      return {Rest::Kind::nap, clock_.now() + own.nap};
    }
    own.nap = Duration(0);
  }
  unsigned work = 0;
  bool sleepy = true;
  std::optional<Instant> deadline;
  std::vector<int> fds;
  // Announced before the last look, as in park(); a message from now on wakes us.
  bed_->sleeping.exchange(1, std::memory_order_seq_cst);
  for (auto& seat : seats_) {
    if (seat->busy.exchange(true, std::memory_order_acquire)) {
      sleepy = false;
      own.met_caller = true;
      continue;
    }
    own.held.push_back(seat.get());
    seat->worker->bind_to_this_thread();
    work += seat->worker->turn();
    ++seat->seen_turns;
    sleepy = sleepy && seat->worker->may_sleep();
    const auto next = seat->worker->next_deadline();
    deadline = next && (!deadline || *next < *deadline) ? next : deadline;
    const size_t index = seat->worker->context().worker_index();
    own.changed = own.changed || own.versions[index] != seat->worker->wait_version();
    own.versions[index] = seat->worker->wait_version();
    const auto descriptors = seat->worker->wait_fds();
    fds.insert(fds.end(), descriptors.begin(), descriptors.end());
    seat->worker->context().request_stream_turns(1);
  }
  const bool sleeps = work == 0 && sleepy;
  if (sleeps && own.changed && !virtual_) {
    // While every worker is held, so that nobody closes one of these.
    bed_->watch(fds);
    own.changed = false;
  }
  for (Seat* seat : own.held) {
    seat->busy.store(false, std::memory_order_release);
  }
  own.held.clear();
  return {sleeps ? Rest::Kind::sleep : Rest::Kind::none, deadline};
}

}  // namespace nccl_ha
