#include "runtime/engine/worker.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <array>

#include "runtime/base/check.h"
#include "runtime/base/log.h"

namespace nccl_ha {
namespace {

constexpr size_t post_credits = 256;
constexpr size_t credits_per_sender = 4;
constexpr size_t fds_per_poller = 8;

// A look at streams enters the kernel.  Whoever expects something there asks for more turns, and
// what peers say unasked also comes over paths; carriers that are lost are heard of here only.
constexpr Duration stream_period_max = std::chrono::milliseconds(10);
constexpr Duration stream_period_min = std::chrono::milliseconds(1);
constexpr int stream_looks_per_heartbeat = 20;

Duration stream_period(const Config& config) {
  return config.heartbeat_ms == 0
             ? stream_period_max
             : std::clamp<Duration>(
                   std::chrono::milliseconds(config.heartbeat_ms) / stream_looks_per_heartbeat,
                   stream_period_min, stream_period_max);
}

}  // namespace

Worker::Worker(const Options& options, const Config& config, Clock& clock,
               std::unique_ptr<StreamFactory> streams)
    : Context(*this, options.index, config, clock, options.ticks && cpu_ticks() != 0, options.seed,
              *options.secrets, options.keys, options.counters),
      mailbox_(std::make_shared<Mailbox<Message>>(
          options.senders_max * credits_per_sender + post_credits, options.senders_max,
          options.waker)),
      waker_(options.waker),
      generations_(options.actors_max, 1),
      slots_(options.actors_max),
      pacer_(ticks_, stream_period(config)) {
  streams_ = std::move(streams);
  auto address = mailbox_->open(post_credits);
  NHA_ASSERT(address.ok(), "a new mailbox has no room");
  post_address_ = std::move(*address);
  for (size_t i = options.actors_max; i > 0; --i) {
    free_slots_.push_back(static_cast<uint32_t>(i - 1));
  }
  leaving_.reserve(options.actors_max);  // whoever goes needs no memory for it
  owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
}

Worker::~Worker() {
  stop(std::chrono::milliseconds(0));
  streams_.reset();
}

Result<ActorId> Worker::reserve() {
  std::lock_guard lock(reserve_mutex_);
  if (free_slots_.empty()) {
    return fail(Errc::no_memory,
                fmt::format("progress thread {} has {} connections, and room for no more; use "
                            "more threads (HA_NCCL_PROGRESS_THREADS)",
                            worker_index(), slots_.size()));
  }
  const uint32_t index = free_slots_.back();
  free_slots_.pop_back();
  actor_count_.fetch_add(1, std::memory_order_acq_rel);
  return ActorId{index, generations_[index]};
}

/// Nobody has had it.
void Worker::unreserve(const ActorId& id) {
  std::lock_guard lock(reserve_mutex_);
  free_slots_.push_back(id.index);
  actor_count_.fetch_sub(1, std::memory_order_acq_rel);
}

void Worker::post(const Message& message) {
  std::unique_lock lock(post_mutex_);
  if (!post_address_) {
    lock.unlock();
    drop(message);
    return;
  }
  if (overflow_.empty() && post_address_.try_send(message)) {
    return;
  }
  overflow_.push_back(message);
  // As a message is published: the worker looks once more before it sleeps (Waker).
  overflows_.store(true, std::memory_order_seq_cst);
  if (waker_ != nullptr) {
    waker_->notify();
  }
}

/// Once all that was posted before has left the mailbox.
unsigned Worker::take_overflow() {
  std::vector<Message> messages;
  {
    std::lock_guard lock(post_mutex_);
    if (post_address_.credits_left() != post_credits) {
      return 0;
    }
    messages.swap(overflow_);
    overflows_.store(false, std::memory_order_relaxed);
  }
  for (const Message& message : messages) {
    deliver(message);
  }
  return static_cast<unsigned>(messages.size());
}

Result<ActorId> Worker::adopt(std::unique_ptr<Actor> actor) {
  auto id = reserve();
  if (!id) {
    return id.error();
  }
  actor->id_ = *id;
  Message message{};
  message.to = *id;
  message.kind = adopt_kind;
  message.a = reinterpret_cast<uint64_t>(actor.get());
  try {
    post(message);
  } catch (const std::bad_alloc&) {
    unreserve(*id);
    throw;
  }
  static_cast<void>(actor.release());  // it may have been destroyed by now
  return id;
}

void Worker::take_over(const Message& message) {
  Slot& slot = slots_[message.to.index];
  slot.actor.reset(reinterpret_cast<Actor*>(message.a));
  slot.generation = message.to.generation;
  slot.alive = true;
  slot.actor->start(*this);
}

Result<ActorId> Worker::add_actor(std::unique_ptr<Actor> actor) {
  assert_owner();
  auto id = reserve();
  if (!id) {
    return id.error();
  }
  actor->id_ = *id;
  Message message{};
  message.to = *id;
  message.a = reinterpret_cast<uint64_t>(actor.release());
  take_over(message);
  return id;
}

inline Actor* Worker::find(ActorId id) {
  if (id.index >= slots_.size()) {
    return nullptr;
  }
  const Slot& slot = slots_[id.index];
  return slot.alive && slot.generation == id.generation ? slot.actor.get() : nullptr;
}

void Worker::remove_actor(ActorId id) {
  assert_owner();
  if (find(id) != nullptr) {
    slots_[id.index].alive = false;
    leaving_.push_back(id.index);
    pending_work_ = true;
  }
}

void Worker::reap() {
  // Destructors may remove further actors.
  while (!leaving_.empty()) {
    const uint32_t index = leaving_.back();
    leaving_.pop_back();
    slots_[index].actor.reset();
    std::lock_guard lock(reserve_mutex_);
    generations_[index] = generations_[index] + 1 == 0 ? 1 : generations_[index] + 1;
    free_slots_.insert(free_slots_.begin(), index);
    actor_count_.fetch_sub(1, std::memory_order_acq_rel);
  }
}

void Worker::add_poller(Poller* poller) {
  assert_owner();
  pollers_.push_back({poller, 0, 0, {counters_.place(), poller->name()}});
  pollers_changed();
}

void Worker::remove_poller(Poller* poller) {
  assert_owner();
  publish_turns();
  std::erase_if(pollers_, [poller](const Polled& one) { return one.poller == poller; });
  pollers_changed();
}

void Worker::pollers_changed() {
  ++wait_version_;
  update_poll_gap();
}

void Worker::update_poll_gap() {
  Duration least = default_poll_gap;
  for (const Polled& one : pollers_) {
    least = std::min(least, one.poller->max_poll_gap());
  }
  max_poll_gap_ns_.store(least.count(), std::memory_order_relaxed);
}

void Worker::send_self(const Message& message) {
  assert_owner();
  local_.push_back(message);
  pending_work_ = true;
}

void Worker::request_stream_turns(unsigned turns) {
  pacer_.want_stream_turns(turns);
  pending_work_ = true;
}

void Worker::assert_owner() const {
  NHA_DASSERT(owner_.load(std::memory_order_relaxed) == std::this_thread::get_id(),
              "called from a thread that does not own this worker");
}

void Worker::deliver(const Message& message) {
  counters_->messages.add();
  static_cast<void>(survive([&] {
    if (message.kind == adopt_kind) {
      take_over(message);
    } else if (Actor* actor = find(message.to); actor != nullptr) {
      actor->on(message);
    } else {
      counters_->dropped_messages.add();
    }
    return 1U;
  }));
}

/// The host's process goes on, and so does the worker: whoever was half way through something
/// fails.
void Worker::on_no_memory() {
  counters_->out_of_memory.add();
  for (Slot& slot : slots_) {
    if (slot.alive) {
      try {
        slot.actor->on_no_memory();
      } catch (const std::bad_alloc&) {
        continue;  // it has done as much as it could
      }
    }
  }
}

unsigned Worker::turn() {
  Instant begin;
  const auto read_clock = [&] {
    begin = turn_clock_.now();
    return false;
  };
  const unsigned work = cycle<Turn::full>(read_clock, false);
  if (work != 0) {
    measure(begin);
  }
  return work;
}

/// Those who have backed off, timers and streams; the last perhaps without the time.
unsigned Worker::timed_part(Turn kind) {
  const bool full = kind == Turn::full;
  const bool knows_time = kind != Turn::quick || turn_clock_.was_read();
  unsigned work = 0;
  if (knows_time) {
    const Instant now = turn_clock_.now();
    if (!full) {
      pacer_.on_clock(now, ticks(), relaxed());
      work += poll_backed_off();
      publish_turns();
    }
    if (full || pacer_.take_timers_due(now, relaxed())) {
      work += survive([&] { return static_cast<unsigned>(timers_.expire(now)); });
      if (!full && pacer_.take_streams_due(now)) {
        pacer_.want_stream_turns(1);
      }
    }
  }
  if (full ? pacer_.take_full_turn_streams_due() : pacer_.take_stream_turn()) {
    work += survive([&] { return streams_->turn(); });
    update_poll_gap();
    publish_turns();
  }
  // Quick turns take messages when the mailbox has some, or there is pending work.
  pending_work_ = pending_work_ || overflows_.load(std::memory_order_relaxed);
  if (knows_time) {
    recorder_.stamp(turn_clock_.now());
  }
  return work;
}

unsigned Worker::poll_backed_off() {
  unsigned work = 0;
  for (size_t i = 0; i < pollers_.size(); ++i) {
    work += pollers_[i].poller->backed_off() ? poll(i) : 0;
  }
  return work;
}

/// When there may be pending work: messages to actors of this worker stay for the next turn.
void Worker::end_turn() {
  reap();
  pending_work_ =
      !local_.empty() || pacer_.wants_stream_turn() || overflows_.load(std::memory_order_relaxed);
}

unsigned Worker::take_messages() {
  auto work = static_cast<unsigned>(
      mailbox_->drain(drain_limit, [this](const Message& message) { deliver(message); }));
  if (overflows_.load(std::memory_order_acquire)) {
    work += take_overflow();
  }
  for (size_t i = local_.size(); i > 0; --i) {
    const Message message = local_.front();
    local_.pop_front();
    deliver(message);
    ++work;
  }
  return work;
}

void Worker::measure(Instant begin) {
  const Duration took = clock_.now() - begin;
  if (took > overrun_threshold) {
    counters_->overruns.add();
    recorder_.record(TraceEvent::worker_overrun, 0, index_, static_cast<uint64_t>(took.count()),
                     begin);
  }
  counters_->longest_turn_ns.raise_to(static_cast<uint64_t>(took.count()));
}

/// Counting every turn where others see it would cost every turn.
void Worker::publish_turns() {
  counters_->turns.set(turns());
  counters_->busy_turns.set(busy_turns_);
  counters_->actors.set(actor_count());
  for (const Polled& one : pollers_) {
    one.counters->turns.set(one.turns);
    one.counters->busy_turns.set(one.busy_turns);
  }
}

bool Worker::may_sleep() {
  return survive([&] { return sleeps_soundly() ? 0U : 1U; }) == 0;
}

bool Worker::sleeps_soundly() {
  // libuv registers what it watches only when its loop runs: once more before anybody sleeps on it.
  if (streams_->turn() != 0) {
    return false;
  }
  publish_turns();
  if (!mailbox_->looks_empty() || overflows_.load(std::memory_order_seq_cst) || !local_.empty()) {
    return false;
  }
  return std::all_of(pollers_.begin(), pollers_.end(), [this](Polled& one) {
    const bool sleepy = one.poller->prepare_sleep();
    wait_version_ += one.poller->take_waits_changed() ? 1 : 0;
    return sleepy;
  });
}

std::optional<Instant> Worker::next_deadline() {
  std::optional<Instant> deadline = timers_.next_deadline();
  if (const auto limit = streams_->wait_limit()) {
    const Instant at = clock_.now() + *limit;
    deadline = deadline ? std::min(*deadline, at) : at;
  }
  for (Polled& one : pollers_) {
    const auto other = one.poller->next_deadline();
    if (other && (!deadline || *other < *deadline)) {
      deadline = other;
    }
  }
  // Who asks is about to sleep until then.
  turn_clock_.lost().rest_until(deadline.value_or(Instant::max()));
  return deadline;
}

std::vector<int> Worker::wait_fds() const {
  std::vector<int> fds;
  if (const int fd = streams_->wait_fd(); fd >= 0) {
    fds.push_back(fd);
  }
  std::array<int, fds_per_poller> buffer;
  for (const Polled& one : pollers_) {
    const size_t count = one.poller->wait_fds(buffer);
    fds.insert(fds.end(), buffer.begin(), buffer.begin() + static_cast<ptrdiff_t>(count));
  }
  return fds;
}

void Worker::drop(const Message& message) {
  if (message.kind == adopt_kind) {
    delete reinterpret_cast<Actor*>(message.a);
    actor_count_.fetch_sub(1, std::memory_order_acq_rel);
  }
}

void Worker::ask_to_stop() {
  bind_to_this_thread();
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].alive) {
      static_cast<void>(survive([&] {
        slots_[i].actor->stop();
        return 0U;
      }));
      if (!slots_[i].actor->lingers()) {
        remove_actor(slots_[i].actor->id());
      }
    }
  }
  reap();
}

void Worker::stop(Duration limit, Duration owed_limit) {
  if (!post_address_) {
    return;  // stopped before
  }
  bind_to_this_thread();
  static_cast<void>(turn());
  ask_to_stop();
  recorder_.stamp(clock_.now());
  publish_turns();
  const Instant end = clock_.now() + limit;
  const auto any_left = [this] {
    return std::any_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.alive; });
  };
  const auto any_owes = [this] {
    return std::any_of(slots_.begin(), slots_.end(),
                       [](const Slot& slot) { return slot.alive && slot.actor->owes(); });
  };
  while ((any_left() || (streams_ && streams_->open_handles() != 0)) &&
         (clock_.now() < end || (any_owes() && clock_.now() < end + owed_limit))) {
    request_stream_turns(1);
    if (turn() == 0) {
      sched_yield();
    }
  }
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].alive) {
      remove_actor(slots_[i].actor->id());
    }
  }
  reap();
  std::vector<Message> late;
  {
    std::lock_guard lock(post_mutex_);
    post_address_.reset();
    late.swap(overflow_);
  }
  const auto drop_it = [this](const Message& message) { drop(message); };
  static_cast<void>(mailbox_->drain(SIZE_MAX, drop_it));
  std::for_each(late.begin(), late.end(), drop_it);
  mailbox_->detach_waker();
}

}  // namespace nccl_ha
