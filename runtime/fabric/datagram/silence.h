// How long the peer has acknowledged nothing.
#pragma once

#include <utility>

#include "runtime/base/clock.h"

namespace nccl_ha::fabric {

class Silence {
 public:
  /// The peer acknowledged something, or there is something anew that it can acknowledge.
  void end(Instant now) { since_ = now; }
  Instant since() const { return since_; }
  /// Asked at timeouts.  The limit counts from the first of them that met this silence, and only
  /// time in which this process ran: the answer may have been there all along.
  bool lasts(const Moment& now, Duration limit) {
    if (std::exchange(met_, since_) != since_) {
      met_at_ = now;
    }
    return now.ran_since(met_at_) >= limit;
  }

 private:
  Instant since_{};
  Instant met_{};    ///< the silence that a timeout met last
  Moment met_at_{};  ///< when one first did
};

}  // namespace nccl_ha::fabric
