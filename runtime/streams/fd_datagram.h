// A UDP socket whose datagrams a watch tells of.
#pragma once

#include "runtime/streams/stream.h"

namespace nccl_ha {

/// StreamFactory::bind_datagram(), over its watch_fd().
Result<std::unique_ptr<DatagramEndpoint>> bind_datagram_on(StreamFactory& factory,
                                                           const sockaddr* address,
                                                           DatagramOwner* owner);

}  // namespace nccl_ha
