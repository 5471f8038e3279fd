// Waiting for many descriptors and points in time on one thread.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "runtime/base/clock.h"

namespace nccl_ha::tools {

/// A poll(2) loop.  Not for the data path of anything: a lab has a dozen descriptors.
class Loop {
 public:
  /// Calls `ready` whenever `fd` can be read or has reached its end, until forget().
  void watch(int fd, std::function<void()> ready);
  void forget(int fd);
  void at(Instant when, std::function<void()> task);
  /// Serves until stop().
  void run();
  void stop() { stopped_ = true; }
  bool stopped() const { return stopped_; }
  Instant now() { return clock_.now(); }

 private:
  int timeout_ms();

  SteadyClock clock_;
  std::map<int, std::shared_ptr<std::function<void()>>> watched_;
  std::multimap<Instant, std::function<void()>> tasks_;
  bool stopped_ = false;
};

}  // namespace nccl_ha::tools
