#include "tests/nccl/emulated/kernels/ran.h"

#include <collectives.h>

#include <array>
#include <atomic>
#include <cstdio>

#include "tests/nccl/emulated/kernels/work.h"

namespace nccl_ha::emulated {
namespace {

constexpr std::array<const char*, NCCL_NUM_PROTOCOLS> protocols{"LL", "LL128", "Simple"};

const char* name_of(int collective) {
  switch (collective) {
    case ncclFuncAllReduce:
      return "all_reduce";
    case ncclFuncAllGather:
      return "all_gather";
    case ncclFuncReduceScatter:
      return "reduce_scatter";
    case ncclFuncBroadcast:
      return "broadcast";
    case ncclFuncReduce:
      return "reduce";
#if NHA_BATCHED_BROADCASTS
    case ncclFuncAllGatherV:
      return "gatherv";
#endif
    default:
      return "sendrecv";
  }
}

class Counts {
 public:
  ~Counts() {
    for (size_t i = 0; i < counts_.size(); ++i) {
      if (counts_[i] != 0) {
        const size_t algorithm = i / NCCL_NUM_PROTOCOLS % NCCL_NUM_ALGORITHMS;
        std::fprintf(stderr, "emulated kernels: %s %s %s: %u\n",
                     name_of(static_cast<int>(i / NCCL_NUM_PROTOCOLS / NCCL_NUM_ALGORITHMS)),
                     algorithm == NCCL_ALGO_TREE ? "Tree" : "Ring",
                     protocols[i % NCCL_NUM_PROTOCOLS], counts_[i].load());
      }
    }
  }
  void add(int collective, int algorithm, int protocol) {
    const int at = (collective * NCCL_NUM_ALGORITHMS + algorithm) * NCCL_NUM_PROTOCOLS + protocol;
    ++counts_.at(static_cast<size_t>(at));
  }

 private:
  std::array<std::atomic<unsigned>,
             static_cast<size_t>(ncclNumFuncs) * NCCL_NUM_ALGORITHMS * NCCL_NUM_PROTOCOLS>
      counts_{};
};

Counts counts;

}  // namespace

void count_run(int collective, int algorithm, int protocol) {
  counts.add(collective, algorithm, protocol);
}

}  // namespace nccl_ha::emulated
