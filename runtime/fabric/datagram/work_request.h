// A posted write ("fragment" in usnic's words), and how far it has been sent.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/fabric/datagram/wire.h"
#include "runtime/fabric/path.h"

namespace nccl_ha::fabric {

struct WorkRequest {
  WorkRequest() = default;
  explicit WorkRequest(const WritePost& post)
      : id(post.id),
        flags(static_cast<uint8_t>((post.has_immediate ? flag_immediate : 0) |
                                   (post.no_speculative_placement ? flag_no_speculation : 0))),
        gather_count(static_cast<uint8_t>(post.gather_count)),
        remote_address(post.remote_address),
        remote_key(post.remote_key),
        immediate(post.immediate),
        unsignaled(post.unsignaled) {
    std::copy_n(post.gathers, gathers_max, gathers);
  }

  uint64_t id = 0;
  uint8_t flags = 0;  ///< FrameFlag bits of its segments
  uint8_t gather_count = 0;
  Gather gathers[gathers_max];
  uint64_t remote_address = 0;
  uint32_t remote_key = 0;
  uint32_t immediate = 0;
  uint32_t length = 0;
  uint32_t sent = 0;           ///< bytes given to segments so far
  uint32_t segment_bytes = 0;  ///< payload of each but the last; fixed at the first segment
  uint32_t end_sequence = 0;   ///< one behind the last segment, valid when all are sent
  bool unsignaled = false;     ///< success is not reported
};

}  // namespace nccl_ha::fabric
