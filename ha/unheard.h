// For how long a peer's host has shown no sign that it hears a stream.
//
// The host's kernel confirms what is sent to it, also while the peer's process stands still.  Pure;
// one thread.
#pragma once

#include "runtime/base/instant.h"

namespace nccl_ha::ha {

class Unheard {
 public:
  /// The stream begins: its dial waits to be confirmed.
  void begin(const Moment& now) { heard_ = now; }
  /// Something has come from the peer.
  void on_heard(const Moment& now) { heard_ = now; }
  /// Something is about to be written.  `confirmed`: all that was written before is.
  void on_write(bool confirmed, const Moment& now) {
    if (confirmed) {
      heard_ = now;
    }
  }
  /// Time of this process since the last sign; none while all is `confirmed`.
  Duration lasts(bool confirmed, const Moment& now) {
    on_write(confirmed, now);
    return now.ran_since(heard_);
  }

 private:
  Moment heard_{};
};

}  // namespace nccl_ha::ha
