// What the caller's side asks of the actor that serves it, in the caller's own turn.
#pragma once

#include "runtime/fabric/path.h"

namespace nccl_ha {

/// The one way from a driver into a connection.  Paths call the same object for every message: a
/// base that comes first costs the least to call.
class Server : protected fabric::PathOwner {
 public:
  /// Requests were submitted.
  virtual void on_submitted() = 0;
  /// For a sender without a place for its message: makes one known that no completion has told of
  /// yet.  False: there is none.
  virtual bool poll_cts() { return false; }
};

}  // namespace nccl_ha
