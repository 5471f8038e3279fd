// The loop that drives a plugin the way NCCL's proxy thread does.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "tools/common/net_library.h"
#include "tools/perf/faults.h"
#include "tools/perf/links.h"
#include "tools/perf/plan.h"

namespace nccl_ha::tools {

/// Most requests NCCL keeps on a connection, and its widest grouped receive.
inline constexpr uint32_t depth_max = 32;
inline constexpr uint32_t group_max = 8;

struct TransferOptions {
  uint32_t rank = 0;
  uint32_t depth = 8;  ///< requests in flight per connection
  uint32_t group = 1;  ///< messages per receive request
  bool spin = false;   ///< do not yield the processor after an idle pass
  DataType type = DataType::float32;
  ReduceOp reduce_op = ReduceOp::sum;
};

/// Called now and then while nothing moves; an error ends the transfer.
using IdleCheck = std::function<Result<void>()>;

/// A plan bound to memory and connections; run() carries it out once.  Receives are posted ahead,
/// up to `depth`, before anything is tested; sends are offered until the plugin takes them;
/// requests of a connection are tested in the order of posting.
class Transfer {
 public:
  static Result<std::unique_ptr<Transfer>> make(const NetApi& api, const TransferOptions& options,
                                                const Plan& plan, const BufferSet& memory,
                                                const LinkSet& links);

  Result<void> run(const IdleCheck& check);
  /// After run(): compares the messages whose memory no later one has taken.  It takes about as
  /// long as the transfer, so that it is not part of what is timed.
  void compare_rest();

  /// Bytes that differed since make(), where messages are compared as they arrive.
  uint64_t wrong_bytes() const { return wrong_bytes_; }
  /// Whether to compare them at all; on by default.
  void set_comparing(bool comparing) { comparing_ = comparing; }

  /// Notes when nothing completed for a millisecond or longer, at the cost of a clock reading per
  /// pass.
  void note_gaps() { noting_gaps_ = true; }
  const std::vector<Gap>& gaps() const { return gaps_; }

  /// How far every unfinished connection is, for error messages.
  std::string progress() const;

 private:
  struct Item {
    void* data = nullptr;
    size_t bytes = 0;
    void* mhandle = nullptr;
    uint32_t after = 0;
    int tag = 0;
    bool reduces = false;
    const void* compared = nullptr;  ///< what must arrive; nullptr: not looked at here
    const void* operand = nullptr;
    void* result = nullptr;
  };
  struct Flow {
    uint32_t peer = 0;
    uint32_t channel = 0;
    void* comm = nullptr;
    const uint32_t* gate = nullptr;
    uint32_t total = 0;   ///< requests: messages, or groups of them for receives
    uint32_t window = 0;  ///< requests in flight at most
    uint32_t posted = 0;
    uint32_t done = 0;
    std::vector<Item> items;
    std::vector<void*> requests;
  };
  struct Copy {
    void* to;
    const void* from;
    size_t bytes;
  };

  Transfer(const NetApi& api, const TransferOptions& options) : api_(api), options_(options) {}
  Result<void> bind(const PlannedFlow& planned, bool sends, const BufferSet& memory,
                    const LinkSet& links);
  bool progress_send(Flow& flow);
  bool progress_receive(Flow& flow);
  bool post_receive(Flow& flow);
  void finish_receive(Flow& flow, const int* sizes);
  void compare(const Item& item);
  /// Its memory will be another message's in the same run.
  bool is_overwritten(const Flow& flow, size_t message) const {
    return message + size_t{options_.depth} * options_.group < flow.items.size();
  }
  void fail_flow(const char* call, abi::NcclResult result, const Flow& flow, bool sends);
  std::string link_text(const Flow& flow, bool sends) const;

  const NetApi& api_;
  TransferOptions options_;
  std::vector<Copy> copies_;
  std::vector<Flow> recvs_;
  std::vector<Flow> sends_;
  uint32_t unfinished_ = 0;
  uint64_t wrong_bytes_ = 0;
  bool comparing_ = true;
  bool noting_gaps_ = false;
  std::vector<Gap> gaps_;
  bool failed_ = false;
  Error error_;
};

}  // namespace nccl_ha::tools
