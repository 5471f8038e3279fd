// Finds out whether a peer's address can be resolved, away from the progress threads.
//
// Moving a queue pair to RTR, or making an address handle, waits in the kernel for the neighbour's
// answer: seconds when it does not come.  Asked here first, the kernel knows the answer when the
// progress thread does the same.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/fabric/errands.h"
#include "runtime/fabric/verbs/library.h"

namespace nccl_ha::fabric::verbs {

/// One route, asked for by one or several paths at once.
struct Resolution {
  static constexpr int open = -1;
  ibv_ah_attr route{};
  std::atomic<int> result{open};  ///< 0: reachable; else an errno value
};

/// Belongs to a device.
class Resolver {
 public:
  Resolver(const Library& library, ibv_pd* pd)
      : library_(library), pd_(pd), errands_(library.waited != nullptr) {}
  /// Waits for questions that are being asked.
  ~Resolver();
  Resolver(const Resolver&) = delete;
  Resolver& operator=(const Resolver&) = delete;

  /// Any thread.  Equal questions share one answer.
  std::shared_ptr<const Resolution> ask(const ibv_ah_attr& route);
  /// As Errands::drain().
  bool drain(Duration limit) { return errands_.drain(limit); }

 private:
  int resolve(ibv_ah_attr route) const;

  const Library& library_;
  ibv_pd* const pd_;
  std::mutex mutex_;
  bool ending_ = false;
  std::vector<std::shared_ptr<Resolution>> open_;
  Errands errands_;  ///< last: it uses the others until it is gone
};

}  // namespace nccl_ha::fabric::verbs
