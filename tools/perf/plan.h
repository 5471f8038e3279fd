// Which messages each operation consists of.
//
// A plan is computed before the clock starts: for every connection of one rank the list of its
// messages in order, and for every send how many receives must have arrived before it may leave.
// It knows no plugin and no memory, only offsets, so it can be tested without either.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tools/perf/options.h"

namespace nccl_ha::tools {

/// The buffers of a rank.
enum class Buffer : uint8_t {
  in,     ///< what the rank contributes; never written during an operation
  out,    ///< the result
  work,   ///< partial reductions on their way; with reuse, what must arrive in `out`
  slots,  ///< where contributions to a reduction arrive, one step per message in flight
};
inline constexpr int buffers = 4;

/// Sizes that follow from the operation and the requested size.
struct Geometry {
  uint64_t count = 0;  ///< elements, as nccl-tests' count column: per rank for the operations that
                       ///< gather or scatter
  uint64_t bytes = 0;  ///< as nccl-tests' size column: the larger of what goes in and comes out
  size_t in_bytes = 0;
  size_t out_bytes = 0;
  size_t work_bytes = 0;
};
Geometry geometry(OpKind op, DataType type, uint32_t ranks, uint64_t requested_bytes);

/// nccl-tests' factor from algorithm bandwidth to bus bandwidth (doc/PERFORMANCE.md there):
/// the share of the data that must cross each rank's wire.
double bus_factor(OpKind op, uint32_t ranks, bool bidirectional);

/// Ordered pairs (from, to) of ranks that need connections.
std::vector<std::pair<uint32_t, uint32_t>> links(OpKind op, uint32_t ranks, bool bidirectional);

/// One message of a flow.
struct PlannedMessage {
  Buffer buffer = Buffer::in;
  size_t offset = 0;
  size_t bytes = 0;
  uint32_t after = 0;  ///< sends: receives of the gate flow that must be complete

  /// Receives in a ring of reused steps: compare with the same place of `work` once arrived.
  bool compares = false;

  /// Receives into slots: once arrived, reduce with `in` at operand_offset into result.
  bool reduces = false;
  size_t operand_offset = 0;
  Buffer result = Buffer::out;
  size_t result_offset = 0;
};

/// The messages of one connection in one direction.
struct PlannedFlow {
  uint32_t peer = 0;
  uint32_t channel = 0;
  int gate = -1;  ///< sends: index of the receive flow that `after` counts, -1: none
  std::vector<PlannedMessage> messages;
};

/// Bytes of the result that never leave the rank.
struct LocalCopy {
  size_t in_offset = 0;
  size_t out_offset = 0;
  size_t bytes = 0;
};

struct Plan {
  std::vector<PlannedFlow> sends;
  std::vector<PlannedFlow> recvs;
  std::vector<LocalCopy> copies;
};

struct PlanOptions {
  OpKind op = OpKind::all_reduce;
  DataType type = DataType::float32;
  uint32_t rank = 0;
  uint32_t ranks = 2;
  uint32_t root = 0;
  uint32_t channels = 1;
  uint32_t depth = 8;
  size_t message_bytes = 512 << 10;
  bool bidirectional = false;
  uint32_t group = 1;
  bool reuse = false;  ///< sendrecv and pt2pt: every buffer is a ring of steps, used over and over
};

/// Bytes of each buffer that an operation of that size needs.
std::array<size_t, buffers> buffer_sizes(const PlanOptions& options, const Geometry& size);

/// The rank whose data this rank receives when buffers are reused, -1: none.
int reuse_source(const PlanOptions& options);

/// The plan of one rank.  Every block travels as at least one message, empty if need be.
Plan make_plan(const PlanOptions& options, const Geometry& size);

/// What the rank's output buffer must hold, from the definition of the operation alone.  Empty with
/// reuse, where every message is compared as it arrives.
std::vector<Expected> expected_output(const PlanOptions& options, const Geometry& size);

}  // namespace nccl_ha::tools
