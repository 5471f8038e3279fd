// The driver's entry points, which NCCL asks for by name, and launches of kernels.
#include <cuda.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "tests/nccl/emulated/cuda/device.h"
#include "tests/nccl/emulated/cuda/kernel.h"
#include "tests/nccl/emulated/cuda/memory.h"
#include "tests/nccl/emulated/cuda/stream.h"

namespace nccl_ha::emulated {
namespace {

struct Kernels {
  std::mutex mutex;
  std::unordered_map<const void*, nha_emulated_kernel> by_symbol;
};

Kernels& kernels() {
  static auto* only = new Kernels;
  return *only;
}

nha_emulated_kernel kernel_of(const void* symbol) {
  const std::lock_guard lock(kernels().mutex);
  const auto found = kernels().by_symbol.find(symbol);
  return found == kernels().by_symbol.end() ? nullptr : found->second;
}

struct Parameters {
  const void* block = nullptr;
  size_t bytes = 0;
};

Parameters parameters_in(void** extra) {
  Parameters found;
  for (void** at = extra; at != nullptr && *at != CU_LAUNCH_PARAM_END; at += 2) {
    if (*at == CU_LAUNCH_PARAM_BUFFER_POINTER) {
      found.block = at[1];
    } else if (*at == CU_LAUNCH_PARAM_BUFFER_SIZE) {
      found.bytes = *static_cast<size_t*>(at[1]);
    }
  }
  return found;
}

CUresult launch(CUfunction function, unsigned blocks, unsigned threads, CUstream stream,
                void** extra) {
  const nha_emulated_kernel run = kernel_of(reinterpret_cast<const void*>(function));
  if (run == nullptr) {
    std::fprintf(stderr, "fake CUDA: launch of a kernel that is not emulated\n");
    return CUDA_ERROR_INVALID_HANDLE;
  }
  const Parameters given = parameters_in(extra);
  if (given.block == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // Parameters are the launch's own copy, aligned as the structures in them ask for.
  const std::shared_ptr<void> copy(std::aligned_alloc(64, (given.bytes + 63) / 64 * 64), std::free);
  std::memcpy(copy.get(), given.block, given.bytes);
  const cudaError_t status = submit(
      reinterpret_cast<cudaStream_t>(stream),
      [=, bytes = given.bytes] { run(copy.get(), bytes, blocks, threads); }, Length::any);
  return status == cudaSuccess ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult get_error_string(CUresult error, const char** text) {
  *text = error == CUDA_SUCCESS ? "no error" : "error of the fake CUDA driver";
  return CUDA_SUCCESS;
}

CUresult device_get(CUdevice* device, int ordinal) {
  *device = ordinal;
  return ordinal < device_count() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult device_get_attribute(int* value, CUdevice_attribute attribute, CUdevice) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = 8;
      break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *value = 64;
      break;
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID:
      *value = -1;
      break;
    case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:
      *value = gpu_direct() ? 1 : 0;
      break;
    default:
      *value = 0;
      break;
  }
  return CUDA_SUCCESS;
}

/// No two processes have the same devices.
CUresult device_get_uuid(CUuuid* uuid, CUdevice device) {
  static const auto started = std::chrono::steady_clock::now().time_since_epoch().count();
  const int process = getpid();
  std::memset(uuid, 0, sizeof *uuid);
  std::memcpy(uuid->bytes, &process, sizeof process);
  std::memcpy(uuid->bytes + sizeof process, &started, sizeof started);
  uuid->bytes[15] = static_cast<char>(bus_of(device));
  return CUDA_SUCCESS;
}

CUresult mem_get_address_range(CUdeviceptr* base, size_t* size, CUdeviceptr place) {
  const auto found = allocation_of(reinterpret_cast<const void*>(place));
  if (!found) {
    return CUDA_ERROR_NOT_FOUND;
  }
  if (base != nullptr) {
    *base = found->start;
  }
  if (size != nullptr) {
    *size = found->bytes;
  }
  return CUDA_SUCCESS;
}

/// Asked for even where the rest of the virtual memory management is missing.
CUresult mem_get_granularity(size_t* granularity, const CUmemAllocationProp*,
                             CUmemAllocationGranularity_flags) {
  *granularity = size_t{2} << 20;
  return CUDA_SUCCESS;
}

/// A descriptor of memory that the fake NIC can register: a file that holds the address.
CUresult mem_get_handle(void* handle, CUdeviceptr place, size_t, CUmemRangeHandleType type,
                        unsigned long long) {
  if (type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD ||
      !allocation_of(reinterpret_cast<const void*>(place))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int fd = memfd_create("fake DMA-BUF", MFD_CLOEXEC);
  if (fd < 0 || write(fd, &place, sizeof place) != sizeof place) {
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  *static_cast<int*>(handle) = fd;
  return CUDA_SUCCESS;
}

constexpr uintptr_t first_context = 0x1000;

CUresult ctx_get_current(CUcontext* context) {
  *context = reinterpret_cast<CUcontext>(first_context + static_cast<uintptr_t>(current_device()));
  return CUDA_SUCCESS;
}

CUresult ctx_set_current(CUcontext context) {
  use_device(static_cast<int>(reinterpret_cast<uintptr_t>(context) - first_context));
  return CUDA_SUCCESS;
}

CUresult ctx_get_device(CUdevice* device) {
  *device = current_device();
  return CUDA_SUCCESS;
}

CUresult pointer_get_attribute(void* data, CUpointer_attribute attribute, CUdeviceptr place) {
  const auto found = allocation_of(reinterpret_cast<const void*>(place));
  if (!found) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (attribute != CU_POINTER_ATTRIBUTE_MEMORY_TYPE) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  *static_cast<unsigned*>(data) = found->on_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  return CUDA_SUCCESS;
}

CUresult launch_kernel(CUfunction function, unsigned blocks, unsigned, unsigned, unsigned threads,
                       unsigned, unsigned, unsigned, CUstream stream, void**, void** extra) {
  return launch(function, blocks, threads, stream, extra);
}

CUresult launch_kernel_ex(const CUlaunchConfig* how, CUfunction function, void**, void** extra) {
  return launch(function, how->gridDimX, how->blockDimX, how->hStream, extra);
}

/// nullptr: NCCL goes without it.
void* entry(const std::string& name) {
  const auto any = [](auto* function) { return reinterpret_cast<void*>(function); };
  static const std::unordered_map<std::string, void*> entries = {
      {"cuGetErrorString", any(get_error_string)},
      {"cuGetErrorName", any(get_error_string)},
      {"cuDeviceGet", any(device_get)},
      {"cuDeviceGetAttribute", any(device_get_attribute)},
      {"cuDeviceGetUuid", any(device_get_uuid)},
      {"cuMemGetAddressRange", any(mem_get_address_range)},
      {"cuMemGetAllocationGranularity", any(mem_get_granularity)},
      {"cuMemGetHandleForAddressRange", any(mem_get_handle)},
      {"cuCtxGetCurrent", any(ctx_get_current)},
      {"cuCtxSetCurrent", any(ctx_set_current)},
      {"cuCtxGetDevice", any(ctx_get_device)},
      {"cuPointerGetAttribute", any(pointer_get_attribute)},
      {"cuLaunchKernel", any(launch_kernel)},
      {"cuLaunchKernelEx", any(launch_kernel_ex)},
  };
  const auto found = entries.find(name);
  return found == entries.end() ? nullptr : found->second;
}

cudaError_t find_entry(const char* name, void** function, cudaDriverEntryPointQueryResult* status) {
  *function = entry(name);
  const bool found = *function != nullptr;
  if (status != nullptr) {
    *status = found ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  }
  return found ? cudaSuccess : cudaErrorSymbolNotFound;
}

}  // namespace
}  // namespace nccl_ha::emulated

using namespace nccl_ha::emulated;

extern "C" {

void nha_emulate_kernel(const void* symbol, nha_emulated_kernel run) {
  const std::lock_guard lock(kernels().mutex);
  kernels().by_symbol[symbol] = run;
}

cudaError_t cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long,
                                    cudaDriverEntryPointQueryResult* status) {
  return find_entry(name, function, status);
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
  return find_entry(name, function, status);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = cudaFuncAttributes{};
  attributes->maxThreadsPerBlock = 1024;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }

cudaError_t cudaGetFuncBySymbol(cudaFunction_t* function, const void* symbol) {
  *function = reinterpret_cast<cudaFunction_t>(const_cast<void*>(symbol));
  return cudaSuccess;
}

}  // extern "C"
