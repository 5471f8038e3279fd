// Calls into the kernel that may take long, made away from the progress threads.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/base/clock.h"

namespace nccl_ha::fabric {

/// A few threads, which start when there is something to do and end with it.  Any thread.
class Errands {
 public:
  /// `at_once`: nothing blocks (a simulation), so the caller does each errand itself.
  explicit Errands(bool at_once) : at_once_(at_once) {}
  /// Does what waits, and waits for what the kernel is doing.
  ~Errands();
  Errands(const Errands&) = delete;
  Errands& operator=(const Errands&) = delete;

  /// Where the host gives no thread at all, the caller does the errand, late rather than never.
  void add(std::function<void()> errand);
  /// Waits until all are done, at most so long; false: some are not.
  bool drain(Duration limit);

 private:
  static constexpr size_t threads_max = 8;  ///< each holds one that does not come back
  void run();

  const bool at_once_;
  std::mutex mutex_;
  std::condition_variable added_;
  std::condition_variable done_;
  bool ending_ = false;
  size_t idle_ = 0;
  size_t under_way_ = 0;
  std::deque<std::function<void()>> waiting_;
  std::vector<std::thread> threads_;
};

}  // namespace nccl_ha::fabric
