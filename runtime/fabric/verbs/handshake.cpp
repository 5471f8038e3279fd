#include "runtime/fabric/verbs/handshake.h"

#include <cerrno>

namespace nccl_ha::fabric::verbs {
namespace {

/// Between looks at whether the peer's address was found.
constexpr Duration resolution_interval = std::chrono::milliseconds(1);

}  // namespace

int Handshake::check_resolution() {
  NHA_ASSERT(resolution_ != nullptr, "no address is being resolved");
  const int result = resolution_->result.load(std::memory_order_acquire);
  const Moment now = services_.moment();
  if (result == Resolution::open && limit_.left(now) > Duration(0)) {
    services_.timers->arm(timer_, now.now + resolution_interval);
    return result;
  }
  resolution_.reset();
  return result == Resolution::open ? ETIMEDOUT : result;
}

}  // namespace nccl_ha::fabric::verbs
