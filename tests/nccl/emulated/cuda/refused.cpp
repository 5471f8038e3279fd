// What the fake CUDA runtime does not do: graphs, memory shared between processes, peers, batches,
// arrays.  Callers get cudaErrorNotSupported, which NCCL reports; a stream is never being captured.
#include <cuda_runtime_api.h>

#include "tests/nccl/emulated/cuda/device.h"

using nccl_ha::emulated::fail;

extern "C" {

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

// CUDA 13 gives the newer functions the old names.
#if CUDART_VERSION >= 13000
#define NHA_CAPTURE_INFO cudaStreamGetCaptureInfo
#define NHA_UPDATE_DEPENDENCIES cudaStreamUpdateCaptureDependencies
#define NHA_ADD_DEPENDENCIES cudaGraphAddDependencies
#else
#define NHA_CAPTURE_INFO cudaStreamGetCaptureInfo_v3
#define NHA_UPDATE_DEPENDENCIES cudaStreamUpdateCaptureDependencies_v2
#define NHA_ADD_DEPENDENCIES cudaGraphAddDependencies_v2

cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t, cudaStreamCaptureStatus* status,
                                        unsigned long long*, cudaGraph_t*, const cudaGraphNode_t**,
                                        size_t*) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t, cudaGraphNode_t*, size_t, unsigned) {
  return fail(cudaErrorNotSupported);
}

cudaError_t cudaGraphAddDependencies(cudaGraph_t, const cudaGraphNode_t*, const cudaGraphNode_t*,
                                     size_t) {
  return fail(cudaErrorNotSupported);
}
#endif

#if CUDART_VERSION >= 12030
cudaError_t NHA_CAPTURE_INFO(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long* id,
                             cudaGraph_t* graph, const cudaGraphNode_t**, const cudaGraphEdgeData**,
                             size_t* count) {
  *status = cudaStreamCaptureStatusNone;
  if (id != nullptr) {
    *id = 0;
  }
  if (graph != nullptr) {
    *graph = nullptr;
  }
  if (count != nullptr) {
    *count = 0;
  }
  return cudaSuccess;
}

cudaError_t NHA_UPDATE_DEPENDENCIES(cudaStream_t, cudaGraphNode_t*, const cudaGraphEdgeData*,
                                    size_t, unsigned) {
  return fail(cudaErrorNotSupported);
}

cudaError_t NHA_ADD_DEPENDENCIES(cudaGraph_t, const cudaGraphNode_t*, const cudaGraphNode_t*,
                                 const cudaGraphEdgeData*, size_t) {
  return fail(cudaErrorNotSupported);
}
#endif

cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  return fail(cudaErrorNotSupported);
}

cudaError_t cudaUserObjectCreate(cudaUserObject_t*, void*, cudaHostFn_t, unsigned, unsigned) {
  return fail(cudaErrorNotSupported);
}

cudaError_t cudaGraphRetainUserObject(cudaGraph_t, cudaUserObject_t, unsigned, unsigned) {
  return fail(cudaErrorNotSupported);
}

cudaError_t cudaGraphAddEventRecordNode(cudaGraphNode_t*, cudaGraph_t, const cudaGraphNode_t*,
                                        size_t, cudaEvent_t) {
  return fail(cudaErrorNotSupported);
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t*, void*) { return fail(cudaErrorNotSupported); }

cudaError_t cudaIpcOpenMemHandle(void**, cudaIpcMemHandle_t, unsigned) {
  return fail(cudaErrorNotSupported);
}

cudaError_t cudaIpcCloseMemHandle(void*) { return fail(cudaErrorNotSupported); }

cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
  return fail(cudaErrorPeerAccessUnsupported);
}

#if CUDART_VERSION >= 13000
cudaError_t cudaMemcpyBatchAsync(void* const*, const void* const*, const size_t*, size_t,
                                 cudaMemcpyAttributes*, size_t*, size_t, cudaStream_t) {
  return fail(cudaErrorNotSupported);
}
#elif CUDART_VERSION >= 12080
cudaError_t cudaMemcpyBatchAsync(void**, void**, size_t*, size_t, cudaMemcpyAttributes*, size_t*,
                                 size_t, size_t*, cudaStream_t) {
  return fail(cudaErrorNotSupported);
}
#endif

cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) {
  return fail(cudaErrorNotSupported);
}

cudaError_t cudaArrayGetInfo(cudaChannelFormatDesc*, cudaExtent*, unsigned*, cudaArray_t) {
  return fail(cudaErrorNotSupported);
}

}  // extern "C"
