// Accepts connections on a listening socket under a watch.
#pragma once

#include <memory>

#include "runtime/streams/stream.h"

namespace nccl_ha {

/// As StreamFactory::adopt_listener(), for a factory that can watch descriptors; it must outlive
/// the result.
Result<std::unique_ptr<Acceptor>> accept_on(StreamFactory& factory, int fd, AcceptorOwner* owner);

}  // namespace nccl_ha
