// What the user asked `nccl-ha perf` for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/result.h"
#include "tools/perf/pattern.h"

namespace nccl_ha::tools {

enum class OpKind : uint8_t {
  all_reduce,
  all_gather,
  reduce_scatter,
  broadcast,
  alltoall,
  sendrecv,
  pt2pt,
  latency,
};
inline constexpr int op_kinds = 8;

const char* to_text(OpKind op);
/// One line for the help text.
const char* describe(OpKind op);
/// Whether the operation combines elements.
bool reduces(OpKind op);

/// A plugin under test and what belongs to it alone.
struct PluginChoice {
  std::string name;  ///< FILE[:SYMBOL], or a bare name by NCCL's rules
  int abi = 0;       ///< 0: the newest found
  std::vector<std::pair<std::string, std::string>> environment;
};

struct PerfOptions {
  OpKind op = OpKind::all_reduce;
  PluginChoice plugin;
  PluginChoice against;  ///< name empty: nothing to compare with
  uint32_t ranks = 2;    ///< local ranks; ignored under a launcher
  std::string rendezvous;
  uint64_t min_bytes = 8;
  uint64_t max_bytes = 16 << 20;
  uint64_t step_factor = 2;
  uint64_t step_bytes = 0;       ///< not 0: arithmetic steps instead of factors
  uint64_t iterations = 0;       ///< 0: the operation's default
  double seconds = 0;            ///< not 0: how long each size runs, instead of iterations
  uint64_t warmup = UINT64_MAX;  ///< UINT64_MAX: the operation's default
  uint32_t rounds = 0;           ///< 0: 1, or 5 with --against or --baseline
  bool check = true;
  DataType type = DataType::float32;
  ReduceOp reduce_op = ReduceOp::sum;
  uint32_t root = 0;
  std::string device = "0";  ///< its number or name
  uint32_t conns = 1;
  uint64_t message_bytes = 512 << 10;
  uint32_t depth = 8;
  uint32_t group = 1;
  bool bidirectional = false;
  bool reuse = false;
  bool spin = false;
  uint32_t pause_us = 0;
  bool send_first = false;  ///< latency: the send is waited for before the receive
  uint32_t neighbours = 0;  ///< busy processes beside the ranks
  bool verbose = false;
  bool percentiles = false;  ///< of iterations, in the table
  uint32_t timeout_s = 300;
  uint64_t seed = 1;
  std::string json;           ///< empty: none; "-": standard output
  std::string plot;           ///< SVG to draw; empty: none
  std::string csv;            ///< file of rows; empty: none
  std::string baseline;       ///< JSON of an earlier run; empty: none
  std::string faults;         ///< steps for the lab; empty: none
  uint32_t fault_rounds = 1;  ///< how often they are carried out
};

/// Fills in what depends on other options and refuses what cannot work, naming the option.
Result<void> settle(PerfOptions& options, uint32_t world_size);

/// Bytes with an optional suffix K, M, G, T (powers of 1024; a trailing B or iB is allowed).
Result<uint64_t> parse_bytes(std::string_view text);

/// KEY=VALUE.
Result<std::pair<std::string, std::string>> parse_assignment(std::string_view text);

/// The sizes to run: from min to max, each `step_factor` times the one before or `step_bytes` more.
std::vector<uint64_t> size_sweep(const PerfOptions& options);

}  // namespace nccl_ha::tools
