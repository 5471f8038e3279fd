// Messages and their chunks, put together from what the flight recorders of both sides say of them.
#pragma once

#include <cstdint>
#include <vector>

#include "tools/trace/timeline.h"

namespace nccl_ha::tools {

/// Moments on the common clock; `unseen` for what no recorder has.
inline constexpr int64_t unseen = INT64_MIN;

/// A chunk on its way; one that went again has several.
struct TraceChunk {
  uint32_t number = 0;
  uint32_t bytes = 0;
  uint32_t path = 0;
  int64_t posted_ns = unseen;   ///< by the sender
  int64_t acked_ns = unseen;    ///< at the sender
  int64_t arrived_ns = unseen;  ///< at the receiver
};

/// One buffer of a group of receives, and the send that fills it.
struct TraceMessage {
  uint64_t key = 0;     ///< of the connection; of one that is not named: 0
  int32_t sender = -1;  ///< in Timeline::connections; -1: not here
  int32_t receiver = -1;
  uint64_t group = 0;
  uint32_t position = 0;
  uint64_t bytes = 0;
  int64_t asked_ns = unseen;            ///< NCCL asked for the send
  int64_t announced_ns = unseen;        ///< the receiver said where it goes
  int64_t heard_ns = unseen;            ///< and the sender had heard it
  int64_t begun_ns = unseen;            ///< the sender took the send
  int64_t sent_ns = unseen;             ///< all of it was acknowledged
  int64_t noticed_ns = unseen;          ///< and NCCL was told so
  int64_t received_ns = unseen;         ///< the whole group is there
  int64_t receive_asked_ns = unseen;    ///< NCCL asked for the group of receives
  int64_t receive_noticed_ns = unseen;  ///< and was told that it is there
  std::vector<TraceChunk> chunks;       ///< in the order in which they were seen first
};

/// In the order in which they were seen first.
std::vector<TraceMessage> messages_of(const Timeline& timeline);

}  // namespace nccl_ha::tools
