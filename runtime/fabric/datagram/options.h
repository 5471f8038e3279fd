// Settings of the datagram engine, taken from the configuration table once.
#pragma once

#include "runtime/base/clock.h"
#include "runtime/fabric/datagram/congestion.h"
#include "runtime/fabric/datagram/rtt.h"

namespace nccl_ha {
struct Config;
}

namespace nccl_ha::fabric {

struct DatagramOptions {
  uint32_t mtu = 0;  ///< IP packet bytes; 0: the interface's, then what the check finds
  uint32_t tiny_bytes = 768;
  uint32_t window = 1024;  ///< segments, power of two
  uint32_t burst = 64;     ///< segments one path may send per pass
  uint32_t resend_batch = 16;
  uint32_t ack_every = 8;  ///< segments
  Duration ack_delay = std::chrono::microseconds(50);
  RttEstimator::Limits rtt{std::chrono::milliseconds(100), std::chrono::milliseconds(5),
                           std::chrono::milliseconds(2000)};
  Duration dead_after = std::chrono::seconds(10);
  Duration connect_timeout = std::chrono::seconds(10);
  Duration target_delay = std::chrono::microseconds(10000);
  bool offload = true;

  static DatagramOptions from(const Config& config);
};

}  // namespace nccl_ha::fabric
