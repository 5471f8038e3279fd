// The fake CUDA runtime's devices: how many there are, which one a thread uses, its last error.
//
//   NHA_FAKE_DEVICES    number of devices (1)
//   NHA_FAKE_BUS        PCI bus number of device 0, hexadecimal (10)
//   NHA_FAKE_GPUDIRECT  1: announce GPUDirect RDMA, so that "device" memory is registered with NICs
#pragma once

#include <cuda_runtime_api.h>

namespace nccl_ha::emulated {

int device_count();
int bus_of(int device);
bool gpu_direct();

/// Of the calling thread, as CUDA has it.
int current_device();
void use_device(int device);

/// Remembers the error as the calling thread's last one.
cudaError_t fail(cudaError_t error);

}  // namespace nccl_ha::emulated
