// Counters of a path and of a port, with the self-check of the usnic design: numbers that must
// agree are compared, so that a bookkeeping error shows up before it becomes a hang.
#pragma once

#include <cstdint>
#include <string>

namespace nccl_ha::fabric {

struct PathStatistics {
  uint64_t segments_sent = 0;     ///< first transmissions
  uint64_t segments_resent = 0;   ///< all later transmissions
  uint64_t segments_acked = 0;    ///< first acknowledgements of a segment
  uint64_t fast_retransmits = 0;  ///< found by duplicate or selective acknowledgement
  uint64_t timeouts = 0;          ///< evicted from the hotel
  uint64_t tail_probes = 0;
  uint64_t tiny_sends = 0;         ///< on the command channel
  uint64_t fast_sends = 0;         ///< posted without waiting for the send progression
  uint64_t bytes_sent = 0;         ///< payload of first transmissions
  uint64_t segments_received = 0;  ///< new ones
  uint64_t duplicates = 0;
  uint64_t out_of_order = 0;
  uint64_t beyond_window = 0;
  uint64_t stash_full = 0;
  uint64_t bytes_received = 0;  ///< payload of new segments
  uint64_t bytes_direct = 0;    ///< of these, read by the kernel straight into their place
  uint64_t bytes_copied = 0;    ///< of these, copied from a packet buffer
  uint64_t acks_sent = 0;       ///< explicit ones
  uint64_t acks_piggybacked = 0;
  uint64_t acks_received = 0;
  uint64_t duplicate_acks = 0;
  uint64_t refused_writes = 0;
  uint64_t fast_receives = 0;

  std::string text() const;
};

struct PortStatistics {
  uint64_t malformed = 0;     ///< not a frame
  uint64_t unknown_path = 0;  ///< closed or never made
  uint64_t bad_token = 0;
  uint64_t short_sends = 0;  ///< datagrams the kernel did not take
  uint64_t datagrams_sent = 0;
  uint64_t datagrams_received = 0;
  uint64_t frames_bundled = 0;  ///< frames that shared a datagram with an earlier one
};

}  // namespace nccl_ha::fabric
