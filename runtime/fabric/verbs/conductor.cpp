#include "runtime/fabric/verbs/conductor.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/data_turn.h"
#include "runtime/base/log.h"
#include "runtime/base/own_thread.h"
#include "runtime/engine/thread.h"

namespace nccl_ha::fabric::verbs {
namespace {

void call(const Conductor::Command& command) {
  if (command) {
    run_to_its_end(command, "what an RDMA device is to do");
  }
}

/// A command that takes less time is none that hangs, whatever its thread waits for.
constexpr Duration looked_after = std::chrono::milliseconds(20);

/// Of this host, also in a simulation's process.
int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Conductor::Conductor(const Library& library, ibv_context* context)
    : library_(library), context_(context) {}

Conductor::~Conductor() {
  {
    std::lock_guard lock(mutex_);
    NHA_DASSERT(none_waits() && !under_way_, "a device ends after its commands");
    ending_ = true;
  }
  added_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

bool Conductor::none_waits() const {
  return std::ranges::all_of(waiting_, [](const auto& of_rank) { return of_rank.empty(); });
}

Conductor::Order Conductor::take() {
  const auto first = std::ranges::find_if(waiting_, [](const auto& one) { return !one.empty(); });
  Order order = std::move(first->front());
  first->pop_front();
  return order;
}

void Conductor::add(Rank rank, Command command, Command tell, Duration allowed) {
  put(rank, {std::move(command), std::move(tell), nullptr, allowed});
}

std::shared_ptr<const Answer> Conductor::ask() {
  {
    // One answer serves all who ask after the same commands.
    std::lock_guard lock(mutex_);
    const auto& stops = waiting_[static_cast<size_t>(Rank::stop)];
    if (!stops.empty() && stops.back().question) {
      return stops.back().question;
    }
  }
  auto answer = std::make_shared<Answer>();
  auto result = std::make_shared<int>(ENOMEM);
  put(Rank::stop, {[this, result] { *result = question(); },
                   [answer, result] { answer->result.store(*result, std::memory_order_release); },
                   answer,
                   {}});
  return answer;
}

int Conductor::question() const {
  // For a queue, as no driver can say by itself that there is one (README.md).
  ibv_cq* queue = nullptr;
  for (const int entries : {1, 64}) {  // the more where a provider takes none of one entry
    errno = 0;
    queue = library_.completion.create_queue(context_, entries, nullptr, nullptr, 0);
    if (queue != nullptr || errno != EINVAL) {
      break;
    }
  }
  if (queue == nullptr) {
    return errno > 0 ? errno : EIO;
  }
  if (const int error = library_.completion.destroy_queue(queue); error != 0) {
    NHA_LOG_WARN_LIMITED("an RDMA device keeps a completion queue that nobody uses: {}",
                         std::strerror(error));
  }
  return 0;
}

void Conductor::put(Rank rank, Order order) {
  const DataTurn exception(false);
  std::unique_lock lock(mutex_);
  if (library_.waited == nullptr && !thread_.joinable()) {
    auto thread = start_thread([this] { run(); });
    if (!thread) {
      NHA_LOG_WARN_LIMITED("a call that may block is made on a progress thread: {}",
                           thread.error().message());
      lock.unlock();
      order.command();
      if (order.tell) {
        order.tell();
      }
      order = {};  // what it keeps may end by control verbs
      return;
    }
    thread_ = std::move(*thread);
  }
  waiting_[static_cast<size_t>(rank)].push_back(std::move(order));
  if (library_.waited != nullptr) {
    lock.unlock();
    static_cast<void>(pump(now_));
    return;
  }
  added_.notify_one();
}

void Conductor::tell() {
  if (const Command told = std::exchange(untold_, {})) {
    told();
  }
}

std::optional<Instant> Conductor::pump(Instant now) {
  const DataTurn exception(false);
  if (std::exchange(under_way_, true)) {
    return std::nullopt;  // a command adds another one
  }
  now_ = std::max(now_, now);
  Duration& waited = library_.waited(context_);
  while (busy_until_ <= now_) {
    tell();
    if (none_waits()) {
      break;
    }
    Order order = take();
    allowed_.store(order.allowed, std::memory_order_relaxed);
    busy_since_ = now_;
    const Duration before = std::exchange(waited, Duration(0));
    order.command();
    busy_until_ = now_ + std::exchange(waited, before);
    untold_ = std::move(order.tell);
  }
  under_way_ = false;
  return untold_ || !none_waits() ? std::optional(busy_until_) : std::nullopt;
}

bool Conductor::await(const Answer& answer, Duration limit) {
  if (answer.over() || library_.waited != nullptr || busy() > limit) {
    return answer.over();
  }
  std::unique_lock lock(mutex_);
  return done_.wait_for(lock, limit, [&] { return answer.over(); });
}

bool Conductor::await(const Answer& answer, const std::function<bool()>& patient) {
  constexpr Duration step = std::chrono::milliseconds(5);
  std::unique_lock lock(mutex_);
  while (!answer.over() && patient()) {
    done_.wait_for(lock, step);
  }
  return answer.over();
}

bool Conductor::drain(Duration limit) {
  if (library_.waited != nullptr) {
    for (auto due = pump(now_); due; due = pump(*due)) {
    }
    return true;
  }
  std::unique_lock lock(mutex_);
  NHA_DASSERT(thread_.get_id() != std::this_thread::get_id(), "a command keeps no device");
  while (!none_waits() || under_way_) {
    const uint64_t before = finished_;
    if (!done_.wait_for(lock, limit, [&] { return finished_ != before; })) {
      return false;
    }
  }
  return true;
}

/// What is allowed may be the next command's already: that one is not busy for as long.
bool Conductor::hangs(Duration limit) const {
  const Duration now = under_way_for();
  const Duration most = std::max(limit, allowed_.load(std::memory_order_acquire));
  return now >= most && busy() >= most && under_way_for() >= now;
}

Duration Conductor::busy() const {
  const Duration gone = under_way_for();
  return library_.waited != nullptr || gone < looked_after ? gone : watch_.kept_since_begin(gone);
}

Duration Conductor::under_way_for() const {
  if (library_.waited != nullptr) {
    return now_ < busy_until_ ? now_ - busy_since_ : Duration(0);
  }
  const int64_t begun = begun_ns_.load(std::memory_order_acquire);
  return Duration(begun == 0 ? 0 : std::max<int64_t>(steady_ns() - begun, 0));
}

void Conductor::run() {
  prepare_thread("nha-conductor");
  watch_.open();
  std::unique_lock lock(mutex_);
  while (true) {
    added_.wait(lock, [&] { return ending_ || !none_waits(); });
    if (none_waits()) {
      return;
    }
    Order order = take();
    under_way_ = true;
    allowed_.store(order.allowed, std::memory_order_release);
    watch_.begin();
    begun_ns_.store(steady_ns(), std::memory_order_release);
    lock.unlock();
    call(order.command);
    call(order.tell);
    order = {};  // what it keeps ends here, and not with who waits for the last one
    begun_ns_.store(0, std::memory_order_relaxed);
    lock.lock();
    under_way_ = false;
    ++finished_;
    done_.notify_all();
  }
}

}  // namespace nccl_ha::fabric::verbs
