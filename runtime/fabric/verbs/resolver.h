// Finds out whether a peer's address can be resolved, away from the progress threads.
//
// Moving a queue pair to RTR, or making an address handle, waits in the kernel for the neighbour's
// answer: seconds when it does not come.  Asked here first, the kernel knows the answer when the
// progress thread does the same.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/fabric/verbs/library.h"

namespace nccl_ha::fabric::verbs {

/// One route, asked for by one or several paths at once.
struct Resolution {
  static constexpr int open = -1;
  ibv_ah_attr route{};
  std::atomic<int> result{open};  ///< 0: reachable; else an errno value
};

/// Belongs to a device; its threads start with the first question and end with it.
class Resolver {
 public:
  Resolver(const Library& library, ibv_pd* pd) : library_(library), pd_(pd) {}
  /// Waits for questions that are being asked.
  ~Resolver();
  Resolver(const Resolver&) = delete;
  Resolver& operator=(const Resolver&) = delete;

  /// Any thread.  Equal questions share one answer.
  std::shared_ptr<const Resolution> ask(const ibv_ah_attr& route);

 private:
  static constexpr size_t threads_max = 8;  ///< peers that do not answer hold one each
  void run();
  int resolve(ibv_ah_attr route) const;

  const Library& library_;
  ibv_pd* const pd_;
  std::mutex mutex_;
  std::condition_variable asked_;
  bool ending_ = false;
  size_t idle_ = 0;
  std::deque<std::shared_ptr<Resolution>> waiting_;
  std::vector<std::shared_ptr<Resolution>> under_way_;
  std::vector<std::thread> threads_;
};

}  // namespace nccl_ha::fabric::verbs
