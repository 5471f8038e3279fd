#include "runtime/fabric/datagram/options.h"

#include <algorithm>

#include "runtime/base/config.h"

namespace nccl_ha::fabric {

DatagramOptions DatagramOptions::from(const Config& config) {
  using std::chrono::microseconds;
  using std::chrono::milliseconds;
  DatagramOptions options;
  options.mtu = static_cast<uint32_t>(config.dgram_mtu);
  options.tiny_bytes = static_cast<uint32_t>(config.dgram_tiny);
  options.window = static_cast<uint32_t>(config.dgram_window);
  options.burst = static_cast<uint32_t>(config.dgram_credits);
  options.resend_batch = static_cast<uint32_t>(config.dgram_resend_batch);
  options.ack_delay = microseconds(config.dgram_ack_delay_us);
  options.rtt = {milliseconds(config.dgram_rto_init_ms), microseconds(config.dgram_rto_min_us),
                 milliseconds(config.dgram_rto_max_ms)};
  options.dead_after = milliseconds(config.dgram_dead_ms);
  options.connect_timeout = milliseconds(config.connect_timeout_ms);
  options.target_delay = microseconds(config.dgram_target_delay_us);
  options.offload = config.dgram_gso;
  return options;
}

}  // namespace nccl_ha::fabric
