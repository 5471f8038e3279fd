// A range of TCP ports, as in HA_NCCL_LISTEN_PORTS.
#pragma once

#include <cstdint>
#include <string_view>

#include "runtime/base/result.h"

namespace nccl_ha {

struct PortRange {
  uint16_t low = 0;  ///< 0: any port, and `high` is 0 too
  uint16_t high = 0;
};

/// "5000-5100", "5000" or "0".
Result<PortRange> parse_port_range(std::string_view text);

}  // namespace nccl_ha
