// Settings of the verbs fabric, taken from the configuration table once.
#pragma once

#include <cstdint>

#include "runtime/base/clock.h"
#include "runtime/fabric/path_traits.h"

namespace nccl_ha {
struct Config;
}

namespace nccl_ha::fabric::verbs {

/// Of routed packets (RoCE v2, global routing headers).
inline constexpr uint8_t hop_limit = 255;

struct Options {
  uint8_t timeout = 14;     ///< local ACK timeout: 4.096 us * 2^n (IBTA 11.6.2)
  uint8_t retry_count = 7;  ///< per packet, until the path is dead
  uint16_t pkey_index = 0;
  int adaptive_routing = -1;  ///< negative: on InfiniBand only
  /// Where packets may overtake each other, the end of a longer write is announced apart.
  uint32_t adaptive_routing_threshold = UINT32_MAX;
  bool ece = true;
  Duration connect_timeout = std::chrono::seconds(30);
  /// No progress for so long: dead, even if the device keeps trying (Soft-RoCE takes a retry count
  /// of 7 for endless).
  Duration dead_after = std::chrono::seconds(5);
  /// How long a broken queue pair may give nothing back before it is destroyed.
  Duration flush_wait = std::chrono::milliseconds(5);
  /// A fence that is open for so long is told of; a driver whose device does not answer takes
  /// seconds, and a starved host too.
  Duration stuck_after = std::chrono::seconds(5);

  /// Its owner hears earlier that it is open.  Much longer than commands take that end things, also
  /// those of many queue pairs.
  Duration late_after = std::chrono::milliseconds(250);
  /// Firmware that answers nothing for so long does nothing any more; 0: only the kernel says so.
  Duration hung_after{};

  static Options from(const Config& config);
  /// Of paths over a port; `speed_mbps` as in PortInfo.
  PathTraits traits(bool infiniband, bool gpu_memory, int64_t speed_mbps) const;
};

}  // namespace nccl_ha::fabric::verbs
