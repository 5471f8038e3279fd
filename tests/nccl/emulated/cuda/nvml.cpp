// libnvidia-ml.so.1 without a driver: the devices of the fake CUDA runtime, without NVLink.
#include <cuda_runtime_api.h>
#include <nvmlwrap.h>

#include <cstdint>
#include <cstdio>
#include <cstring>

namespace {

constexpr uintptr_t first_handle = 0x100;

nvmlDevice_t handle_of(int device) {
  return reinterpret_cast<nvmlDevice_t>(first_handle + static_cast<uintptr_t>(device));
}

int device_of(nvmlDevice_t handle) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(handle) - first_handle);
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

nvmlReturn_t nvmlInit() { return NVML_SUCCESS; }
nvmlReturn_t nvmlInit_v2() { return NVML_SUCCESS; }
nvmlReturn_t nvmlShutdown() { return NVML_SUCCESS; }

const char* nvmlErrorString(nvmlReturn_t status) {
  return status == NVML_SUCCESS ? "success" : "not supported by the fake NVML";
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned* count) {
  int devices = 0;
  cudaGetDeviceCount(&devices);
  *count = static_cast<unsigned>(devices);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned* count) { return nvmlDeviceGetCount_v2(count); }

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t* device) {
  *device = handle_of(static_cast<int>(index));
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char* bus, nvmlDevice_t* device) {
  int index = 0;
  if (cudaDeviceGetByPCIBusId(&index, bus) != cudaSuccess) {
    cudaGetLastError();
    return NVML_ERROR_NOT_FOUND;
  }
  *device = handle_of(index);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned* index) {
  *index = static_cast<unsigned>(device_of(device));
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t, int* major, int* minor) {
  *major = 8;
  *minor = 0;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t, nvmlDevice_t, nvmlGpuP2PCapsIndex_t,
                                    nvmlGpuP2PStatus_t* status) {
  *status = NVML_P2P_STATUS_NOT_SUPPORTED;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t, unsigned, nvmlEnableState_t*) {
  return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t, unsigned, nvmlPciInfo_t*) {
  return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t, unsigned, nvmlNvLinkCapability_t,
                                           unsigned*) {
  return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t, int, nvmlFieldValue_t*) {
  return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t* info) {
  std::memset(info, 0, sizeof *info);
  cudaDeviceGetPCIBusId(info->busId, sizeof info->busId, device_of(device));
  std::sscanf(info->busId, "%x:%x:%x", &info->domain, &info->bus, &info->device);
  info->pciDeviceId = 0x20b010de;  // an A100, as the compute capability says
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPcieLinkMaxSpeed(nvmlDevice_t, int* speed) {
  *speed = 16000;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t, unsigned* generation) {
  *generation = 4;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t, unsigned* width) {
  *width = 16;
  return NVML_SUCCESS;
}

}  // extern "C"
#pragma GCC visibility pop
