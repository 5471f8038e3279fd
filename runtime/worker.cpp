#include "runtime/worker.h"

#include <sched.h>

#include <algorithm>
#include <array>

#include "runtime/check.h"
#include "runtime/log.h"

namespace nccl_ha {
namespace {

constexpr size_t post_credits = 256;
constexpr size_t credits_per_sender = 4;
constexpr size_t fds_per_poller = 8;

}  // namespace

Worker::Worker(const Options& options, const Config& config, Clock& clock,
               std::unique_ptr<StreamFactory> streams)
    : Context(*this, options.index, config, clock, options.seed),
      mailbox_(std::make_shared<Mailbox<Message>>(
          options.senders_max * credits_per_sender + post_credits, options.senders_max,
          options.waker)),
      generations_(options.actors_max, 1),
      slots_(options.actors_max),
      counts_ticks_(options.ticks && cpu_ticks() != 0),
      quick_stream_period_(
          config.heartbeat_ms == 0
              ? quick_stream_period_max
              : std::clamp<Duration>(
                    std::chrono::milliseconds(config.heartbeat_ms) / stream_looks_per_heartbeat,
                    quick_stream_period_min, quick_stream_period_max)) {
  streams_ = std::move(streams);
  auto address = mailbox_->open(post_credits);
  NHA_ASSERT(address.ok(), "a new mailbox has no room");
  post_address_ = std::move(*address);
  for (size_t i = options.actors_max; i > 0; --i) {
    free_slots_.push_back(static_cast<uint32_t>(i - 1));
  }
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
                "too many connections for one progress thread; use more of them "
                "(HA_NCCL_PROGRESS_THREADS)");
  }
  const uint32_t index = free_slots_.back();
  free_slots_.pop_back();
  actor_count_.fetch_add(1, std::memory_order_acq_rel);
  return ActorId{index, generations_[index]};
}

Result<void> Worker::post(const Message& message) {
  std::lock_guard lock(post_mutex_);
  // A burst of connects can outrun the worker; it empties the box within a turn or two.
  for (int attempt = 0; attempt < 100000; ++attempt) {
    if (post_address_.try_send(message)) {
      return {};
    }
    sched_yield();
  }
  return fail(Errc::no_memory, "a progress thread does not take its messages");
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
  message.a = reinterpret_cast<uint64_t>(actor.release());
  auto sent = post(message);
  if (!sent) {
    delete reinterpret_cast<Actor*>(message.a);
    std::lock_guard lock(reserve_mutex_);
    free_slots_.push_back(id->index);
    actor_count_.fetch_sub(1, std::memory_order_acq_rel);
    return sent.error();
  }
  return id;
}

void Worker::take_over(const Message& message) {
  Slot& slot = slots_[message.to.index];
  slot.actor.reset(reinterpret_cast<Actor*>(message.a));
  slot.generation = message.to.generation;
  slot.alive = true;
  slot.actor->start(*this);
}

ActorId Worker::add_actor(std::unique_ptr<Actor> actor) {
  assert_owner();
  auto id = reserve();
  NHA_ASSERT(id.ok(), "no room for an actor");
  actor->id_ = *id;
  Message message{};
  message.to = *id;
  message.a = reinterpret_cast<uint64_t>(actor.release());
  take_over(message);
  return *id;
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
  pollers_.push_back(poller);
  pollers_changed();
}

void Worker::remove_poller(Poller* poller) {
  assert_owner();
  std::erase(pollers_, poller);
  pollers_changed();
}

void Worker::pollers_changed() {
  ++wait_version_;
  update_poll_gap();
}

void Worker::update_poll_gap() {
  Duration least = default_poll_gap;
  for (const Poller* poller : pollers_) {
    least = std::min(least, poller->max_poll_gap());
  }
  max_poll_gap_ns_.store(least.count(), std::memory_order_relaxed);
}

void Worker::send_self(const Message& message) {
  assert_owner();
  local_.push_back(message);
  pending_work_ = true;
}

void Worker::request_stream_turns(unsigned turns) {
  eager_stream_turns_ = std::max(eager_stream_turns_, turns);
  pending_work_ = true;
}

void Worker::assert_owner() const {
  NHA_DASSERT(owner_.load(std::memory_order_relaxed) == std::this_thread::get_id(),
              "called from a thread that does not own this worker");
}

void Worker::deliver(const Message& message) {
  statistics_.messages.add();
  if (message.kind == adopt_kind) {
    take_over(message);
    return;
  }
  Actor* actor = find(message.to);
  if (actor == nullptr) {
    statistics_.dropped_messages.add();
    return;
  }
  actor->on(message);
}

unsigned Worker::turn() {
  turn_clock_.begin_turn();
  const Instant begin = turn_clock_.now();
  unsigned work = take_messages();
  work += poll_pollers(true);
  work += static_cast<unsigned>(timers_.expire(begin));
  const bool eager = eager_stream_turns_ != 0;
  if (eager || ++stream_countdown_ >= stream_period) {
    stream_countdown_ = 0;
    eager_stream_turns_ -= eager ? 1 : 0;
    work += streams_->turn();
    update_poll_gap();
  }
  if (!leaving_.empty()) {
    reap();
  }
  recorder_.stamp(begin);
  count_turn();
  if (work != 0) {
    measure(begin);
  }
  return work;
}

void Worker::poll_timed(bool knows_time) {
  if (knows_time) {
    until_clock_ = relaxed() ? relaxed_clock_period : clock_period;
    look_early_below_ = relaxed() ? relaxed_clock_period - relaxed_turns_before_early_look : 0;
    if (counts_ticks_) {
      watch_ticks();
    }
    for (size_t i = 0; i < pollers_.size(); ++i) {
      if (pollers_[i]->backed_off()) {
        static_cast<void>(pollers_[i]->poll(turn_clock_));
      }
    }
  }
  if (knows_time && turn_clock_.now() >= timer_look_) {
    const Instant now = turn_clock_.now();
    timer_look_ = now + (relaxed() ? relaxed_timer_period : timer_period);
    static_cast<void>(timers_.expire(now));
    // A look at streams enters the kernel, and hardly ever anything is there.
    if (now >= stream_look_) {
      stream_look_ = now + quick_stream_period_;
      update_poll_gap();
      eager_stream_turns_ = std::max(eager_stream_turns_, 1U);
    }
  }
  if (eager_stream_turns_ != 0) [[unlikely]] {
    --eager_stream_turns_;
    static_cast<void>(streams_->turn());
  }
  if (!leaving_.empty()) [[unlikely]] {
    reap();
  }
  if (knows_time && recorder_.unstamped() != 0) {
    recorder_.stamp(turn_clock_.now());
  }
  pending_work_ = !local_.empty() || !leaving_.empty() || eager_stream_turns_ != 0;
}

/// From a look at the clock to the next: by ticks, whose rate is measured again and again.
void Worker::watch_ticks() {
  constexpr Duration measure_period = std::chrono::milliseconds(10);
  constexpr double fastest = 16;  // per nanosecond; more is a count that jumped
  const Instant now = turn_clock_.now();
  looked_ticks_ = cpu_ticks();
  if (now - measured_ >= measure_period) {
    const double rate = static_cast<double>(looked_ticks_ - measured_ticks_) /
                        static_cast<double>((now - measured_).count());
    const bool begins = measured_ == Instant{};
    ticks_per_ns_ = begins || rate > fastest ? 0 : rate;
    measured_ = now;
    measured_ticks_ = looked_ticks_;
  }
  if (ticks_per_ns_ <= 0) {
    look_ticks_ = UINT64_MAX;  // turns are counted until it is known
    return;
  }
  const Duration period = relaxed() ? relaxed_timer_period : timer_period;
  look_ticks_ = static_cast<uint64_t>(ticks_per_ns_ * static_cast<double>(period.count())) + 1;
  until_clock_ = ticking_clock_period;
  look_early_below_ = 0;
}

unsigned Worker::take_messages() {
  auto work = static_cast<unsigned>(
      mailbox_->drain(drain_limit, [this](const Message& message) { deliver(message); }));
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
    statistics_.overruns.add();
    recorder_.record(TraceEvent::worker_overrun, 0, index_, static_cast<uint64_t>(took.count()),
                     begin);
  }
  const auto ns = static_cast<uint64_t>(took.count());
  if (ns > statistics_.longest_turn_ns.get()) {
    statistics_.longest_turn_ns.add(ns - statistics_.longest_turn_ns.get());
  }
}

bool Worker::may_sleep() {
  // libuv registers what it watches only when its loop runs: once more before anybody sleeps on it.
  if (streams_->turn() != 0) {
    return false;
  }
  if (!mailbox_->looks_empty() || !local_.empty()) {
    return false;
  }
  return std::all_of(pollers_.begin(), pollers_.end(),
                     [](Poller* poller) { return poller->prepare_sleep(); });
}

std::optional<Instant> Worker::next_deadline() {
  std::optional<Instant> deadline = timers_.next_deadline();
  if (const auto limit = streams_->wait_limit()) {
    const Instant at = clock_.now() + *limit;
    deadline = deadline ? std::min(*deadline, at) : at;
  }
  for (Poller* poller : pollers_) {
    const auto other = poller->next_deadline();
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
  for (const Poller* poller : pollers_) {
    const size_t count = poller->wait_fds(buffer);
    fds.insert(fds.end(), buffer.begin(), buffer.begin() + static_cast<ptrdiff_t>(count));
  }
  return fds;
}

void Worker::ask_to_stop() {
  bind_to_this_thread();
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].alive) {
      slots_[i].actor->stop();
      if (!slots_[i].actor->lingers()) {
        remove_actor(slots_[i].actor->id());
      }
    }
  }
  reap();
}

void Worker::stop(Duration limit) {
  if (!post_address_) {
    return;  // stopped before
  }
  bind_to_this_thread();
  static_cast<void>(turn());
  ask_to_stop();
  recorder_.stamp(clock_.now());
  const Instant end = clock_.now() + limit;
  const auto any_left = [this] {
    return std::any_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.alive; });
  };
  while ((any_left() || (streams_ && streams_->open_handles() != 0)) && clock_.now() < end) {
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
  static_cast<void>(mailbox_->drain(SIZE_MAX, [this](const Message& message) {
    if (message.kind == adopt_kind) {
      delete reinterpret_cast<Actor*>(message.a);
      actor_count_.fetch_sub(1, std::memory_order_acq_rel);
    }
  }));
  post_address_.reset();
  mailbox_->detach_waker();
}

}  // namespace nccl_ha
