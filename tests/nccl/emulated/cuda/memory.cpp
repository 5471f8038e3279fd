#include "tests/nccl/emulated/cuda/memory.h"

#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>

#include "tests/nccl/emulated/cuda/device.h"
#include "tests/nccl/emulated/cuda/stream.h"

namespace nccl_ha::emulated {
namespace {

constexpr size_t page = 4096;
/// So many places that were given back stay closed.
constexpr size_t closed_max = 512;

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

struct Mapping {
  void* place = nullptr;
  size_t bytes = 0;
};

struct Held {
  Allocation allocation;
  Mapping mapping;
};

/// Never destroyed: libraries give memory back while the process ends.
struct Book {
  std::mutex mutex;
  std::map<uintptr_t, Held> held;
  std::deque<Mapping> closed;
};

Book& book() {
  static auto* only = new Book;
  return *only;
}

}  // namespace

void* allocate(size_t bytes, bool on_device) {
  // Pinned host memory begins at a page, as CUDA's does; so its guard is further behind.
  const size_t body = round_up(std::max<size_t>(bytes, 1), on_device ? device_alignment : page);
  const size_t mapped = page + round_up(body, page) + page;
  void* place = mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (place == MAP_FAILED) {
    return nullptr;
  }
  const auto first = reinterpret_cast<uintptr_t>(place);
  if (mprotect(reinterpret_cast<void*>(first + page), mapped - 2 * page, PROT_READ | PROT_WRITE) !=
      0) {
    munmap(place, mapped);
    return nullptr;
  }
  const uintptr_t start = first + mapped - page - body;
  Book& all = book();
  const std::lock_guard lock(all.mutex);
  all.held[start] = {{start, bytes, on_device, current_device()}, {place, mapped}};
  return reinterpret_cast<void*>(start);
}

bool release(const void* place) {
  Book& all = book();
  const std::lock_guard lock(all.mutex);
  const auto found = all.held.find(reinterpret_cast<uintptr_t>(place));
  if (found == all.held.end()) {
    return false;
  }
  const Mapping mapping = found->second.mapping;
  all.held.erase(found);
  // The pages go back to the host, the addresses do not: they are nobody's, and fault.
  mmap(mapping.place, mapping.bytes, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  all.closed.push_back(mapping);
  if (all.closed.size() > closed_max) {
    munmap(all.closed.front().place, all.closed.front().bytes);
    all.closed.pop_front();
  }
  return true;
}

std::optional<Allocation> allocation_of(const void* place) {
  const auto address = reinterpret_cast<uintptr_t>(place);
  Book& all = book();
  const std::lock_guard lock(all.mutex);
  auto next = all.held.upper_bound(address);
  if (next == all.held.begin()) {
    return std::nullopt;
  }
  const Allocation& found = std::prev(next)->second.allocation;
  if (address >= found.start + std::max<size_t>(found.bytes, 1)) {
    return std::nullopt;
  }
  return found;
}

}  // namespace nccl_ha::emulated

using namespace nccl_ha::emulated;

extern "C" {

cudaError_t cudaMalloc(void** place, size_t bytes) {
  *place = allocate(bytes, true);
  return *place != nullptr ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}

cudaError_t cudaFree(void* place) {
  if (place == nullptr) {
    return cudaSuccess;
  }
  cudaDeviceSynchronize();
  return release(place) ? cudaSuccess : fail(cudaErrorInvalidValue);
}

cudaError_t cudaHostAlloc(void** place, size_t bytes, unsigned) {
  *place = allocate(bytes, false);
  return *place != nullptr ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}

cudaError_t cudaMallocHost(void** place, size_t bytes) { return cudaHostAlloc(place, bytes, 0); }

cudaError_t cudaFreeHost(void* place) {
  return place == nullptr || release(place) ? cudaSuccess : fail(cudaErrorInvalidValue);
}

cudaError_t cudaHostRegister(void*, size_t, unsigned) { return cudaSuccess; }
cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }

cudaError_t cudaHostGetDevicePointer(void** on_device, void* on_host, unsigned) {
  *on_device = on_host;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* place) {
  *attributes = cudaPointerAttributes{};
  const auto found = allocation_of(place);
  if (!found) {
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = -2;
    return cudaSuccess;
  }
  attributes->type = found->on_device ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
  attributes->device = found->device;
  attributes->devicePointer = const_cast<void*>(place);
  attributes->hostPointer = found->on_device ? nullptr : const_cast<void*>(place);
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  return submit_and_wait(nullptr, [=] { std::memmove(to, from, bytes); });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  return submit(
      stream, [=] { std::memmove(to, from, bytes); }, Length::short_one);
}

cudaError_t cudaMemset(void* place, int value, size_t bytes) {
  return submit_and_wait(nullptr, [=] { std::memset(place, value, bytes); });
}

cudaError_t cudaMemsetAsync(void* place, int value, size_t bytes, cudaStream_t stream) {
  return submit(
      stream, [=] { std::memset(place, value, bytes); }, Length::short_one);
}

cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
  *available = size_t{8} << 30;
  *total = size_t{16} << 30;
  return cudaSuccess;
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps*) {
  *pool = reinterpret_cast<cudaMemPool_t>(0x10);
  return cudaSuccess;
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t) { return cudaSuccess; }
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }

cudaError_t cudaMallocAsync(void** place, size_t bytes, cudaStream_t) {
  return cudaMalloc(place, bytes);
}

cudaError_t cudaMallocFromPoolAsync(void** place, size_t bytes, cudaMemPool_t, cudaStream_t) {
  return cudaMalloc(place, bytes);
}

cudaError_t cudaFreeAsync(void* place, cudaStream_t stream) {
  return submit(
      stream, [=] { release(place); }, Length::short_one);
}

}  // extern "C"
