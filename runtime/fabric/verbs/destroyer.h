// Ends queue pairs away from the progress threads, and asks the firmware whether it lives: a device
// that failed may take seconds for either.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <memory>

#include "runtime/fabric/errands.h"
#include "runtime/fabric/verbs/library.h"

namespace nccl_ha::fabric::verbs {

struct Destruction {
  static constexpr int open = -1;
  /// 0: the device knows the queue pairs no more and touches no memory for them, and its firmware
  /// has answered a question since; else an errno value, and nothing is known.
  std::atomic<int> result{open};

  bool over() const { return error() != open; }
  bool confirmed() const { return error() == 0; }
  int error() const { return result.load(std::memory_order_acquire); }
};

/// Belongs to a device.  Any thread.
class Destroyer {
 public:
  Destroyer(const Library& library, ibv_context* context)
      : library_(library), context_(context), errands_(library.simulated) {}

  /// Takes the queue pairs over; nullptr stands for none.  `keep` lives until they are gone.
  std::shared_ptr<const Destruction> destroy(const std::array<ibv_qp*, 2>& pairs,
                                             std::shared_ptr<void> keep = nullptr);
  /// Destroys nothing and asks.
  std::shared_ptr<const Destruction> ask() { return destroy({}); }
  /// Waits until all are gone, at most so long; false: some are not.
  bool drain(Duration limit) { return errands_.drain(limit); }

 private:
  const Library& library_;
  ibv_context* const context_;
  Errands errands_;
};

}  // namespace nccl_ha::fabric::verbs
