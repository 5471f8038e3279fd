// How what is posted is cut into segments.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/fabric/copy_lines.h"
#include "runtime/fabric/datagram/wire.h"

namespace nccl_ha::fabric {

class SegmentSizes {
 public:
  /// Both ends send messages up to this size on the command channel.
  void set_tiny(uint32_t bytes_max) { tiny_max_ = bytes_max; }
  /// What the way to the peer takes: bytes of an IP packet, and of payload in it.
  void set_mtu(uint32_t mtu, uint32_t payload_max) {
    mtu_ = mtu;
    payload_max_ = payload_max / line_bytes * line_bytes;
  }

  uint32_t mtu() const { return mtu_; }
  bool tiny(uint32_t length) const { return length <= tiny_max_; }
  /// Payload of each segment of a message but the last one's.
  uint32_t plan(uint32_t length) const {
    const uint32_t max = tiny(length) ? tiny_max_ : payload_max_;
    const uint32_t count = std::max<uint32_t>(1, (length + max - 1) / max);
    // Equal parts rather than full ones and a rest: the same number of packets, none of them tiny.
    // With offload full ones are better, since the kernel cuts runs of equal segments.
    const bool offloaded = count > offloaded_count && payload_max_ < offloaded_bytes;
    const uint32_t bytes = offloaded ? max : std::min(max, lines((length + count - 1) / count));
    return std::max(bytes, line_bytes);
  }

 private:
  static constexpr uint32_t offloaded_count = 8;
  static constexpr uint32_t offloaded_bytes = 32768;
  static constexpr uint32_t lines(uint32_t bytes) {
    return (bytes + line_bytes - 1) / line_bytes * line_bytes;
  }

  uint32_t mtu_ = 0;
  uint32_t payload_max_ = 0;
  uint32_t tiny_max_ = 0;
};

}  // namespace nccl_ha::fabric
