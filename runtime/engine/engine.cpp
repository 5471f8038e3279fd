#include "runtime/engine/engine.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/log.h"
#include "runtime/base/own_thread.h"
#include "runtime/engine/thread.h"
#include "runtime/streams/uv_streams.h"

namespace nccl_ha {
namespace {

constexpr Duration stop_limit = std::chrono::seconds(2);
constexpr Duration poll_interval_max = std::chrono::milliseconds(100);
constexpr int polls_per_heartbeat = 2;

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

namespace {

Result<std::shared_ptr<KeyFile>> job_keys(const Config& config) {
  if (config.key_file.empty()) {
    return std::shared_ptr<KeyFile>();
  }
  auto keys = KeyFile::open(config.key_file);
  if (!keys) {
    return fail(keys.error().code, "HA_NCCL_KEY_FILE: " + keys.error().what, keys.error().sys);
  }
  return keys;
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::start(const Config& config) {
  const Mode mode = config.use_progress_thread ? Mode::threads : Mode::inline_turns;
  auto cpus = parse_cpu_list(config.progress_cpus);
  if (!cpus) {
    return fail(Errc::invalid_argument, "HA_NCCL_PROGRESS_CPUS: " + cpus.error().what);
  }
  const auto keys = job_keys(config);
  if (!keys) {
    return keys.error();
  }
  std::unique_ptr<Engine> engine(new Engine(config, mode, nullptr));
  const auto count = static_cast<size_t>(config.progress_threads);
  engine->loads_ = plan_workers(count, *cpus);
  engine->counters_.file = CounterFile::create(
      {config.counters_dir, static_cast<size_t>(config.counters_blocks), count,
       static_cast<size_t>(config.record_events), static_cast<size_t>(config.record_callers)});
  if (engine->counters_.file && config.record_events != 0 && config.record_callers != 0) {
    engine->caller_recorders_ = std::make_shared<CallerRecorders>(engine->counters_);
  }
  if (!engine->counters_.file && !config.trace_dir.empty() && config.trace_mb != 0) {
    NHA_LOG_WARN(
        "HA_NCCL_TRACE_DIR={} gets no dumps: they are copies of the file of counters, and there is "
        "none (HA_NCCL_COUNTERS_DIR)",
        config.trace_dir);
  }
  engine->trace_keeper_ =
      TraceKeeper::start(engine->counters_.file, TraceKeeper::options_of(config));
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
    options.seed = kernel_secrets().draw().told();
    options.ticks = true;
    options.keys = *keys;
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
                                              const StreamSource& streams, bool callers_help,
                                              SecretSource& secrets) {
  const Mode mode = !config.use_progress_thread ? Mode::inline_turns
                    : callers_help              ? Mode::threads
                                                : Mode::virtual_time;
  std::unique_ptr<Engine> engine(new Engine(config, mode, &clock));
  const auto count = static_cast<size_t>(config.progress_threads);
  engine->loads_.resize(count);
  Random seeds(seed);
  const auto keys = job_keys(config);
  NHA_ASSERT(keys.ok(), "the key file of a simulated process cannot be used");
  for (uint32_t i = 0; i < count; ++i) {
    auto slot = std::make_unique<WorkerSlot>();
    Worker::Options options;
    options.index = i;
    options.seed = seeds.next();
    options.secrets = &secrets;
    options.keys = *keys;
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
    if (!hold_unless_own(*slot)) {
      static_cast<void>(slot.release());  // the turn below does not go on
      continue;
    }
    // What was told to be done is not given up before a peer to which nothing leads is.
    slot->worker->stop(stop_limit, std::chrono::milliseconds(config_.retry_budget_ms));
  }
  trace_keeper_.reset();
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

void Engine::add_load(size_t worker, double weight) {
  std::lock_guard lock(load_mutex_);
  loads_[worker].load += weight;
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

/// While every worker is held, so that nobody closes what it waits for.
void Engine::watch(Parker& parker, std::span<WorkerSlot* const> held) {
  try {
    std::vector<int> fds;
    for (const WorkerSlot* slot : held) {
      const auto own = slot->worker->wait_fds();
      fds.insert(fds.end(), own.begin(), own.end());
    }
    parker.watch(std::move(fds));
  } catch (const std::bad_alloc&) {
    parker.lose_track();
  }
}

Engine::Rest Engine::poll_workers() {
  Fallback& own = fallback_state_;
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
    slot->worker->context().request_stream_turns(1);
  }
  const bool sleeps = work == 0 && sleepy;
  if (sleeps && (own.changed || !fallback_parker_->whole()) && !virtual_) {
    watch(*fallback_parker_, own.held);
    own.changed = false;
  }
  for (WorkerSlot* slot : own.held) {
    slot->busy.store(false, std::memory_order_release);
  }
  own.held.clear();
  return {sleeps ? Rest::Kind::sleep : Rest::Kind::none, deadline};
}

}  // namespace nccl_ha
