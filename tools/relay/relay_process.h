// The process of a relay node: what is adopted on its worker, and what ends it.
#pragma once

#include "runtime/base/config.h"
#include "runtime/base/result.h"

namespace nccl_ha::tools {

/// Discovery and, where this host relays, the node, until SIGTERM or SIGINT.
Result<void> run_relay(const Config& config);

}  // namespace nccl_ha::tools
