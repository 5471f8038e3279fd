// What simulated RDMA NICs are made of; for rdma.cpp and rdma_functions.cpp only.
#pragma once

#include <deque>

#include "tests/rig/sim/rdma.h"
#include "tests/rig/sim/rdma_requester.h"
#include "tests/rig/sim/rdma_responder.h"

namespace nccl_ha::sim {

struct RdmaPacket {
  enum Kind : uint8_t { request, acknowledgement, out_of_sequence, not_ready, refused, datagram };
  Kind kind = request;
  unsigned copies = 0;  ///< under way
  Ip from = 0;
  Ip to = 0;
  uint32_t from_pair = 0;
  uint32_t to_pair = 0;
  uint64_t number = 0;
  // of requests
  ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE;
  bool first = true;
  bool last = true;
  uint64_t remote = 0;  ///< of this packet's bytes
  uint32_t key = 0;
  uint32_t immediate = 0;
  uint32_t length = 0;  ///< of the message
  uint32_t offset = 0;  ///< of this packet's bytes in it
  std::vector<std::byte> bytes;
};

struct RdmaQueuePair : ibv_qp {
  RdmaNic* nic = nullptr;
  size_t port = 0;  ///< from 0
  uint32_t to_pair = 0;
  Ip to = 0;
  uint32_t gid_place = 0;
  uint32_t mtu = 1024;
  ibv_qp_attr asked{};  ///< what modify_qp was told last of each thing
  Duration not_ready_wait{};
  uint32_t inline_max = 0;
  size_t sends_max = 0;
  RdmaRequester requester;
  RdmaResponder responder;
  // in error
  bool lags = false;         ///< modify_qp returned, and the responder does not know yet
  bool keeps = false;        ///< it does not give back everything
  bool ended = false;        ///< the device knew it before it failed for good
  bool half_posted = false;  ///< RdmaNic::Conditions::half_posted counts it
  // Completions of one queue of a queue pair come in its order, all others in any order.
  Instant last_send_done{};
  Instant last_receive_done{};
};

/// How to reach a port: an address handle.
struct RdmaRoute : ibv_ah {
  Ip to = 0;
  uint32_t gid_place = 0;   ///< 0: no GID is used
  uint64_t neighbours = 0;  ///< the NIC's, when it was made
};

struct RdmaNic::Region : ibv_mr {
  bool gpu = false;
  bool relaxed = false;
};

struct RdmaNic::CompletionQueue : ibv_cq {
  struct Entry {
    Instant due;
    ibv_wc completion;
  };
  RdmaNic* nic = nullptr;
  std::deque<Entry> entries;  ///< by time
  bool broken = false;        ///< cannot be read any more
};

struct RdmaNic::Context : ibv_context {
  RdmaNic* nic = nullptr;
};

struct RdmaNic::Device : ibv_device {
  RdmaNic* nic = nullptr;
};

}  // namespace nccl_ha::sim
