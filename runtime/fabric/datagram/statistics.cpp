#include "runtime/fabric/datagram/statistics.h"

#include <fmt/format.h>

namespace nccl_ha::fabric {

std::string PathStatistics::text() const {
  return fmt::format(
      "sent {} resent {} acked {} fast-retransmit {} timeout {} tail-probe {} tiny {} "
      "received {} duplicate {} out-of-order {} direct-bytes {} copied-bytes {} acks {}+{}",
      segments_sent, segments_resent, segments_acked, fast_retransmits, timeouts, tail_probes,
      tiny_sends, segments_received, duplicates, out_of_order, bytes_direct, bytes_copied,
      acks_sent, acks_piggybacked);
}

}  // namespace nccl_ha::fabric
