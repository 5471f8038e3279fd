// How fast this host moves bytes without a network.
#pragma once

namespace nccl_ha::tools {

/// Gigabytes per second through a pair of sockets of this process, over a few megabytes; 0: it
/// could not be measured.  Takes some milliseconds on a host with nothing else to do.
double own_rate();

}  // namespace nccl_ha::tools
