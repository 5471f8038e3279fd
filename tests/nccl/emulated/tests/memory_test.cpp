// The fake CUDA runtime's memory: whoever leaves it faults at once.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>

namespace nccl_ha::emulated {
namespace {

constexpr size_t page = 4096;

volatile char* allocated(size_t bytes) {
  void* place = nullptr;
  EXPECT_EQ(cudaMalloc(&place, bytes), cudaSuccess);
  return static_cast<volatile char*>(place);
}

void* plain(volatile char* place) { return const_cast<char*>(place); }

TEST(MemoryDeathTest, BehindTheEndNobodyWrites) {
  volatile char* place = allocated(1024);
  place[0] = 1;
  place[1023] = 1;
  EXPECT_EXIT(place[1024] = 1, testing::KilledBySignal(SIGSEGV), "");
  EXPECT_EQ(cudaFree(plain(place)), cudaSuccess);
}

TEST(MemoryDeathTest, BehindTheEndNobodyReads) {
  volatile char* place = allocated(3 * page);
  EXPECT_EXIT(place[0] = place[3 * page], testing::KilledBySignal(SIGSEGV), "");
  EXPECT_EQ(cudaFree(plain(place)), cudaSuccess);
}

TEST(MemoryDeathTest, BeforeTheBeginningNobodyWrites) {
  volatile char* place = allocated(page);
  EXPECT_EXIT(place[-1] = 1, testing::KilledBySignal(SIGSEGV), "");
  EXPECT_EQ(cudaFree(plain(place)), cudaSuccess);
}

TEST(MemoryDeathTest, WhatWasGivenBackIsNobodys) {
  volatile char* place = allocated(page);
  ASSERT_EQ(cudaFree(plain(place)), cudaSuccess);
  // Nor is it given to anybody soon.
  for (int i = 0; i < 20; ++i) {
    volatile char* another = allocated(page);
    EXPECT_NE(another, place);
    EXPECT_EQ(cudaFree(plain(another)), cudaSuccess);
  }
  EXPECT_EXIT(place[0] = 1, testing::KilledBySignal(SIGSEGV), "");
}

TEST(MemoryDeathTest, PinnedMemoryEndsAtAPageThatNobodyTouches) {
  void* place = nullptr;
  ASSERT_EQ(cudaHostAlloc(&place, page, cudaHostAllocMapped), cudaSuccess);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(place) % page, 0U);
  auto* bytes = static_cast<volatile char*>(place);
  bytes[page - 1] = 1;
  EXPECT_EXIT(bytes[page] = 1, testing::KilledBySignal(SIGSEGV), "");
  EXPECT_EQ(cudaFreeHost(place), cudaSuccess);
}

TEST(Memory, IsAlignedAsCudaPromises) {
  for (const size_t bytes : {1U, 255U, 256U, 257U, 4096U, 100000U}) {
    volatile char* place = allocated(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(place) % 256, 0U) << bytes;
    EXPECT_EQ(cudaFree(plain(place)), cudaSuccess);
  }
}

TEST(Memory, IsGivenBackOnce) {
  volatile char* place = allocated(1);
  EXPECT_EQ(cudaFree(plain(place)), cudaSuccess);
  EXPECT_EQ(cudaFree(plain(place)), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  cudaGetLastError();
}

TEST(Memory, APointerTellsWhatItIs) {
  volatile char* place = allocated(1000);
  cudaPointerAttributes attributes{};
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, plain(place)), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, plain(place + 999)), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, plain(place + 1000)), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
  EXPECT_EQ(cudaFree(plain(place)), cudaSuccess);
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, plain(place)), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
}

}  // namespace
}  // namespace nccl_ha::emulated
