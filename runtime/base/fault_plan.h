// What HA_NCCL_DGRAM_FAULTS asks to go wrong.
#pragma once

#include <cstdint>
#include <string_view>

#include "runtime/base/result.h"

namespace nccl_ha {

struct FaultPlan {
  double drop = 0;  ///< probability per datagram sent
  double duplicate = 0;
  double reorder = 0;   ///< held back until some later datagrams have gone
  double ack_loss = 0;  ///< probability per datagram that starts with an acknowledgement frame
  uint64_t seed = 1;
  bool active() const { return drop > 0 || duplicate > 0 || reorder > 0 || ack_loss > 0; }
};

/// "drop=0.01,dup=0.01,reorder=0.02,ack_loss=0.1,seed=7"; every part optional, "" is no faults.
Result<FaultPlan> parse_fault_plan(std::string_view text);

}  // namespace nccl_ha
