// How long the pieces are into which messages are cut.  Pure.
#pragma once

#include <cstdint>

#include "relay/frame.h"

namespace nccl_ha::relay {

/// Of at most so many bytes (HA_NCCL_MESH_CHUNK_BYTES): pieces that leave, with their headers, in
/// whole runs.
constexpr uint32_t piece_bytes(uint32_t most) {
  // Whatever a cable's packets hold, of 1,500 to 9,000 bytes, so much is one run of datagrams:
  // given to the kernel, and taken from it, with one call.  A little more would be two.
  constexpr uint32_t run_bytes = 59984;
  constexpr auto header_bytes = static_cast<uint32_t>(frame_header_bytes);
  static_assert((run_bytes - header_bytes) % 64 == 0, "pieces begin at cache lines");
  const uint32_t runs = (most + header_bytes) / run_bytes;
  return runs == 0 ? most : runs * run_bytes - header_bytes;
}

}  // namespace nccl_ha::relay
