// What the kernel says of this host's network interfaces (rtnetlink(7)).
#pragma once

#include <memory>

#include "runtime/streams/stream.h"

namespace nccl_ha {

/// Over a netlink socket of its own, under a watch of `factory`, which must outlive the result.
Result<std::unique_ptr<LinkWatch>> watch_kernel_links(StreamFactory& factory,
                                                      LinkWatchOwner* owner);

}  // namespace nccl_ha
