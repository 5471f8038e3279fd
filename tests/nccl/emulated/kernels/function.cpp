#include "tests/nccl/emulated/kernels/function.h"

#include <vector>

#include "tests/nccl/emulated/kernels/block.h"
#include "tests/nccl/emulated/kernels/work.h"

extern int const ncclDevFuncIdCount;

namespace nccl_ha::emulated {
namespace {

std::vector<Function> make_functions() {
  std::vector<Function> all(static_cast<size_t>(ncclDevFuncIdCount));
  const auto add_for = [&](int algorithm, int collective, int reduction, int type, int protocol) {
    const int index = ncclDevFuncId(collective, reduction, type, algorithm, protocol);
    if (index >= 0 && !all[static_cast<size_t>(index)].known) {
      all[static_cast<size_t>(index)] = {true, collective, reduction, type, algorithm, protocol};
    }
  };
  const auto add = [&](int collective, int reduction, int type, int protocol) {
    add_for(NCCL_ALGO_RING, collective, reduction, type, protocol);
    if (collective == ncclFuncAllReduce) {  // the only one that NCCL has trees for
      add_for(NCCL_ALGO_TREE, collective, reduction, type, protocol);
    }
  };
  add(ncclFuncSendRecv, ncclDevSum, ncclInt8, NCCL_PROTO_SIMPLE);
  for (const int protocol : {NCCL_PROTO_LL, NCCL_PROTO_LL128, NCCL_PROTO_SIMPLE}) {
    for (const int collective : {ncclFuncAllGather, ncclFuncBroadcast}) {
      add(collective, ncclDevSum, ncclInt8, protocol);
    }
#if NHA_BATCHED_BROADCASTS
    add(ncclFuncAllGatherV, ncclDevSum, ncclInt8, protocol);
#endif
    for (const int collective : {ncclFuncAllReduce, ncclFuncReduce, ncclFuncReduceScatter}) {
      for (int reduction = 0; reduction < ncclNumDevRedOps; ++reduction) {
        // Of types that share a function the unsigned one is taken: a minimum or maximum of signed
        // integers comes as one of unsigned integers with a mask.
        for (const int type : {ncclUint8, ncclUint32, ncclUint64, ncclFloat16, ncclFloat32,
                               ncclFloat64, ncclBfloat16}) {
          add(collective, reduction, type, protocol);
        }
      }
    }
  }
  return all;
}

}  // namespace

const Function& function_of(unsigned index) {
  static const std::vector<Function> all = make_functions();
  if (index >= all.size() || !all[index].known) {
    give_up("this algorithm or type is not emulated: NCCL_ALGO=Ring or Tree");
  }
  return all[index];
}

}  // namespace nccl_ha::emulated
