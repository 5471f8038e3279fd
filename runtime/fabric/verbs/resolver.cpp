#include "runtime/fabric/verbs/resolver.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace nccl_ha::fabric::verbs {
namespace {

bool same_route(const ibv_ah_attr& one, const ibv_ah_attr& other) {
  return one.port_num == other.port_num && one.is_global == other.is_global &&
         one.dlid == other.dlid && one.grh.sgid_index == other.grh.sgid_index &&
         std::memcmp(one.grh.dgid.raw, other.grh.dgid.raw, sizeof one.grh.dgid.raw) == 0;
}

}  // namespace

Resolver::~Resolver() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
    waiting_.clear();
  }
  asked_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

std::shared_ptr<const Resolution> Resolver::ask(const ibv_ah_attr& route) {
  std::lock_guard lock(mutex_);
  const auto known = [&](const auto& list) {
    const auto found = std::find_if(list.begin(), list.end(),
                                    [&](const auto& one) { return same_route(one->route, route); });
    return found == list.end() ? nullptr : *found;
  };
  if (auto same = known(waiting_)) {
    return same;
  }
  if (auto same = known(under_way_)) {
    return same;
  }
  auto question = std::make_shared<Resolution>();
  question->route = route;
  if (library_.simulated) {
    question->result.store(resolve(route), std::memory_order_release);
    return question;
  }
  waiting_.push_back(question);
  if (idle_ < waiting_.size() && threads_.size() < threads_max) {
    // The job's signals are not for this thread.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    threads_.emplace_back([this] { run(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  asked_.notify_one();
  return question;
}

int Resolver::resolve(ibv_ah_attr route) const {
  ibv_ah* handle = library_.create_ah(pd_, &route);
  const int error = handle != nullptr ? 0 : errno != 0 ? errno : EHOSTUNREACH;
  if (handle != nullptr) {
    static_cast<void>(library_.destroy_ah(handle));
  }
  return error;
}

void Resolver::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    ++idle_;
    asked_.wait(lock, [&] { return ending_ || !waiting_.empty(); });
    --idle_;
    if (ending_) {
      return;
    }
    const std::shared_ptr<Resolution> question = std::move(waiting_.front());
    waiting_.pop_front();
    under_way_.push_back(question);
    lock.unlock();
    const int error = resolve(question->route);
    lock.lock();
    std::erase(under_way_, question);
    question->result.store(error, std::memory_order_release);
  }
}

}  // namespace nccl_ha::fabric::verbs
