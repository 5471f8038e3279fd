#include "tests/nccl/emulated/cuda/device.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

namespace nccl_ha::emulated {
namespace {

thread_local int device_of_thread = 0;
thread_local cudaError_t last_error = cudaSuccess;
thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

int setting(const char* name, int otherwise, int base) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') {
    return otherwise;
  }
  return static_cast<int>(std::strtol(text, nullptr, base));
}

}  // namespace

int device_count() {
  static const int count = setting("NHA_FAKE_DEVICES", 1, 10);
  return count;
}

int bus_of(int device) {
  static const int first = setting("NHA_FAKE_BUS", 0x10, 16);
  return first + device;
}

bool gpu_direct() {
  static const bool announced = setting("NHA_FAKE_GPUDIRECT", 0, 10) != 0;
  return announced;
}

int current_device() { return device_of_thread; }
void use_device(int device) { device_of_thread = device; }

cudaError_t fail(cudaError_t error) {
  last_error = error;
  return error;
}

}  // namespace nccl_ha::emulated

using namespace nccl_ha::emulated;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = device_count();
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device();
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= device_count()) {
    return fail(cudaErrorInvalidDevice);
  }
  use_device(device);
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = 8;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = 64;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = 163 << 10;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = 48 << 10;
      break;
    case cudaDevAttrGPUDirectRDMASupported:
      *value = gpu_direct() ? 1 : 0;
      break;
    case cudaDevAttrUnifiedAddressing:
      *value = 1;
      break;
    case cudaDevAttrWarpSize:
      *value = 32;
      break;
    default:
      *value = 0;
      break;
  }
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = cudaDeviceProp{};
  std::snprintf(properties->name, sizeof properties->name, "Fake GPU %d", device);
  properties->totalGlobalMem = size_t{16} << 30;
  properties->major = 8;
  properties->minor = 0;
  properties->multiProcessorCount = 64;
  properties->warpSize = 32;
  properties->pciBusID = bus_of(device);
  properties->maxThreadsPerBlock = 1024;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  std::snprintf(text, static_cast<size_t>(length), "0000:%02x:00.0", bus_of(device));
  return cudaSuccess;
}

cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* text) {
  unsigned domain = 0;
  unsigned bus = 0;
  if (std::sscanf(text, "%x:%x", &domain, &bus) != 2) {
    return fail(cudaErrorInvalidValue);
  }
  *device = static_cast<int>(bus) - bus_of(0);
  return *device >= 0 && *device < device_count() ? cudaSuccess : fail(cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceSetLimit(cudaLimit, size_t) { return cudaSuccess; }

cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorNotReady:
      return "not ready";
    case cudaErrorNotSupported:
      return "not supported by the fake CUDA runtime";
    case cudaErrorInvalidResourceHandle:
      return "invalid handle (fake CUDA runtime)";
    default:
      return "error of the fake CUDA runtime";
  }
}

const char* cudaGetErrorName(cudaError_t error) { return cudaGetErrorString(error); }

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, capture_mode);
  return cudaSuccess;
}

}  // extern "C"
