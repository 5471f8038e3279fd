// Who hears of the ends of requests.
#pragma once

#include "actors/request.h"

namespace nccl_ha {

/// Hears of the ends of requests, in the caller's thread.
class RequestWatcher {
 public:
  virtual ~RequestWatcher() = default;
  /// `done`: as it should; otherwise the connection failed, and this may be said again.
  virtual void ended(const Request& request, bool done) = 0;
};

}  // namespace nccl_ha
