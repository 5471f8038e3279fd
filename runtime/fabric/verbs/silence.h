// How long a device has made no progress with what it was given.
#pragma once

#include <cstdint>
#include <utility>

#include "runtime/base/clock.h"

namespace nccl_ha::fabric::verbs {

class Silence {
 public:
  /// For how long `progress` has been what it is.  Time in which this process did not run does not
  /// count.
  Duration last(uint64_t progress, const Moment& now) {
    if (progress != seen_) {
      seen_ = progress;
      since_ = now;
    }
    return now.ran_since(since_);
  }
  /// It has lasted too long: we, not the device, found the path dead.
  void end() { ended_ = true; }
  /// True once after end().
  bool take_end() { return std::exchange(ended_, false); }

 private:
  uint64_t seen_ = 0;
  Moment since_{};
  bool ended_ = false;
};

}  // namespace nccl_ha::fabric::verbs
