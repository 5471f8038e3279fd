// Finds out whether a peer's address can be resolved, away from the progress threads.
//
// Moving a queue pair to RTR, or making an address handle, waits in the kernel for the neighbour's
// answer: seconds when it does not come.  Asked here first, the kernel knows the answer when the
// device's conductor connects a queue pair; and handles that are kept are made here.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
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

/// An address handle that is made.  Who has the last of it ends it, by a control verb, unless it
/// was taken.
class HandleOrder {
 public:
  explicit HandleOrder(const Library& library) : library_(library) {}
  ~HandleOrder() {
    if (made_ != nullptr) {
      static_cast<void>(library_.address_handle.destroy(made_));
    }
  }
  HandleOrder(const HandleOrder&) = delete;
  HandleOrder& operator=(const HandleOrder&) = delete;

  /// As Resolution::result.
  int result() const { return result_.load(std::memory_order_acquire); }
  /// Once the result is 0: the caller's.
  ibv_ah* take() { return std::exchange(made_, nullptr); }

 private:
  friend class Resolver;
  const Library& library_;
  ibv_ah* made_ = nullptr;
  std::atomic<int> result_{Resolution::open};
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
  /// Any thread.  A handle of its own for whoever asks.
  std::shared_ptr<HandleOrder> make_handle(const ibv_ah_attr& route);
  /// As Errands::drain().
  bool drain(Duration limit) { return errands_.drain(limit); }

 private:
  bool ending();
  /// 0 or an errno value.
  int make(ibv_ah_attr route, ibv_ah** made);

  const Library& library_;
  ibv_pd* const pd_;
  std::mutex mutex_;
  bool ending_ = false;
  std::vector<std::shared_ptr<Resolution>> open_;
  Errands errands_;  ///< last: it uses the others until it is gone
};

}  // namespace nccl_ha::fabric::verbs
