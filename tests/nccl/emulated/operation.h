// One operation of NCCL on fake GPUs: data, the call, and every element compared on the host.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/nccl/emulated/process.h"

namespace nccl_ha::emulated {

struct Comm {
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
};

struct Operation {
  std::string name;  ///< as in all_operations()
  std::string type;  ///< float, double, half, bfloat16, int32, int64, uint8
  size_t count = 0;
  int round = 0;  ///< draws the values, and the root

  std::string text() const;
};

/// Besides them there is all_reduce_avg, which is exact for 2, 4, 8, ... ranks only.
const std::vector<std::string>& all_operations();

struct Conduct {
  double limit = 60;       ///< seconds after which an operation hangs
  bool blocking = true;    ///< communicators are; otherwise calls return before they are enqueued
  bool registers = false;  ///< the buffers with the communicator, so that the NIC may use them
  std::function<void()> called;  ///< after the calls, before their end
  /// Does not return: a communicator failed, so many seconds after the call.
  std::function<void(const std::vector<Comm>&, const Operation&, ncclResult_t, Seconds)> failed;
};

/// The operation on all communicators at the same time; returns how long it took.
Seconds run(const std::vector<Comm>& comms, const Operation& operation, const Conduct& conduct);

/// Waits until the communicator is ready, or its last call enqueued.
ncclResult_t settled(ncclComm_t comm);

}  // namespace nccl_ha::emulated
