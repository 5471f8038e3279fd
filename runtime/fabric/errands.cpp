#include "runtime/fabric/errands.h"

#include <utility>

#include "runtime/base/data_turn.h"
#include "runtime/base/log.h"
#include "runtime/base/own_thread.h"
#include "runtime/engine/thread.h"

namespace nccl_ha::fabric {

Errands::~Errands() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  added_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

void Errands::add(std::function<void()> errand) {
  const DataTurn exception(false);
  if (at_once_) {
    errand();
    return;
  }
  std::unique_lock lock(mutex_);
  waiting_.push_back(std::move(errand));
  if (idle_ < waiting_.size() && threads_.size() < threads_max) {
    auto thread = start_thread([this] { run(); });
    if (thread) {
      threads_.push_back(std::move(*thread));
    } else if (threads_.empty()) {
      NHA_LOG_WARN("a call that may block is made on a progress thread: {}",
                   thread.error().message());
      const std::function<void()> own = std::move(waiting_.back());
      waiting_.pop_back();
      lock.unlock();
      own();
      return;
    }
  }
  added_.notify_one();
}

bool Errands::drain(Duration limit) {
  std::unique_lock lock(mutex_);
  return done_.wait_for(lock, limit, [&] { return waiting_.empty() && under_way_ == 0; });
}

void Errands::run() {
  prepare_thread("nha-errand");
  std::unique_lock lock(mutex_);
  while (true) {
    ++idle_;
    added_.wait(lock, [&] { return ending_ || !waiting_.empty(); });
    --idle_;
    if (waiting_.empty()) {
      return;
    }
    const std::function<void()> errand = std::move(waiting_.front());
    waiting_.pop_front();
    ++under_way_;
    lock.unlock();
    run_to_its_end(errand, "an errand");
    lock.lock();
    --under_way_;
    done_.notify_all();
  }
}

}  // namespace nccl_ha::fabric
