// The fake CUDA runtime: streams, events, launches, and what it refuses.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <future>
#include <vector>

#include "tests/nccl/emulated/cuda/kernel.h"

namespace nccl_ha::emulated {
namespace {

constexpr auto soon = std::chrono::seconds(20);

/// Keeps a stream busy until it is opened.
class Gate {
 public:
  explicit Gate(cudaStream_t stream) {
    EXPECT_EQ(cudaLaunchHostFunc(stream, pass, this), cudaSuccess);
  }
  ~Gate() { open(); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  void open() {
    if (!opened_) {
      opened_ = true;
      promise_.set_value();
      passed_.get_future().wait();
    }
  }

 private:
  static void pass(void* self) {
    auto* gate = static_cast<Gate*>(self);
    gate->promise_.get_future().wait();
    gate->passed_.set_value();
  }

  std::promise<void> promise_;
  std::promise<void> passed_;
  bool opened_ = false;
};

class StreamTest : public testing::Test {
 protected:
  cudaStream_t make(unsigned flags = cudaStreamNonBlocking) {
    cudaStream_t stream = nullptr;
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, flags), cudaSuccess);
    made_.push_back(stream);
    return stream;
  }
  void TearDown() override {
    for (cudaStream_t stream : made_) {
      EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    }
  }

 private:
  std::vector<cudaStream_t> made_;
};

struct Entry {
  std::vector<int>* order = nullptr;
  int number = 0;
};

TEST_F(StreamTest, WhatIsSubmittedIsDoneInOrder) {
  cudaStream_t stream = make();
  std::vector<int> order;
  std::vector<Entry> entries(500);
  Gate gate(stream);
  for (int i = 0; i < 500; ++i) {
    entries[static_cast<size_t>(i)] = {&order, i};
    cudaLaunchHostFunc(
        stream,
        [](void* at) {
          auto* entry = static_cast<Entry*>(at);
          entry->order->push_back(entry->number);
        },
        &entries[static_cast<size_t>(i)]);
  }
  EXPECT_TRUE(order.empty());
  gate.open();
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  ASSERT_EQ(order.size(), 500U);
  for (int i = 0; i < 500; ++i) {
    ASSERT_EQ(order[static_cast<size_t>(i)], i);
  }
}

TEST_F(StreamTest, AShortCopyWaitsForWhatIsAheadOfIt) {
  cudaStream_t stream = make();
  int from = 7;
  int to = 0;
  Gate gate(stream);
  ASSERT_EQ(cudaMemcpyAsync(&to, &from, sizeof from, cudaMemcpyDefault, stream), cudaSuccess);
  EXPECT_EQ(to, 0);
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  gate.open();
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(to, 7);
  EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess);
}

TEST_F(StreamTest, StreamsDoNotWaitForEachOther) {
  cudaStream_t busy = make();
  cudaStream_t free = make();
  Gate gate(busy);
  char byte = 0;
  ASSERT_EQ(cudaMemsetAsync(&byte, 1, 1, free), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(free), cudaSuccess);
  EXPECT_EQ(byte, 1);
  EXPECT_EQ(cudaStreamQuery(busy), cudaErrorNotReady);
}

TEST_F(StreamTest, TheLegacyStreamWaitsForBlockingOnes) {
  cudaStream_t blocking = make(cudaStreamDefault);
  cudaStream_t other = make();
  Gate other_gate(other);
  Gate gate(blocking);
  char byte = 0;
  ASSERT_EQ(cudaMemsetAsync(&byte, 1, 1, nullptr), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(nullptr), cudaErrorNotReady);
  EXPECT_EQ(byte, 0);
  gate.open();
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  EXPECT_EQ(byte, 1);
  EXPECT_EQ(cudaStreamQuery(other), cudaErrorNotReady);
}

TEST_F(StreamTest, BlockingStreamsWaitForTheLegacyOne) {
  cudaStream_t blocking = make(cudaStreamDefault);
  Gate gate(nullptr);
  char byte = 0;
  ASSERT_EQ(cudaMemsetAsync(&byte, 1, 1, blocking), cudaSuccess);
  EXPECT_EQ(byte, 0);
  gate.open();
  ASSERT_EQ(cudaStreamSynchronize(blocking), cudaSuccess);
  EXPECT_EQ(byte, 1);
}

TEST_F(StreamTest, ADestroyedStreamEndsWhatItHas) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  std::promise<void> done;
  Gate gate(stream);
  cudaLaunchHostFunc(
      stream, [](void* at) { static_cast<std::promise<void>*>(at)->set_value(); }, &done);
  ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorInvalidResourceHandle);
  gate.open();
  EXPECT_EQ(done.get_future().wait_for(soon), std::future_status::ready);
}

TEST_F(StreamTest, AnEventIsDoneWhenWhatIsBeforeItIs) {
  cudaStream_t stream = make();
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess) << "an event that was never recorded is done";
  Gate gate(stream);
  ASSERT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  gate.open();
  ASSERT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

TEST_F(StreamTest, AStreamWaitsForAnEventOfAnotherOne) {
  cudaStream_t first = make();
  cudaStream_t second = make();
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreate(&event), cudaSuccess);
  Gate gate(first);
  int value = 1;
  int seen = 0;
  const int changed = 2;
  cudaMemcpyAsync(&value, &changed, sizeof value, cudaMemcpyDefault, first);
  ASSERT_EQ(cudaEventRecord(event, first), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(second, event, 0), cudaSuccess);
  cudaMemcpyAsync(&seen, &value, sizeof value, cudaMemcpyDefault, second);
  EXPECT_EQ(cudaStreamQuery(second), cudaErrorNotReady);
  gate.open();
  ASSERT_EQ(cudaStreamSynchronize(second), cudaSuccess);
  EXPECT_EQ(seen, 2);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

TEST_F(StreamTest, TheDeviceIsDoneWhenAllItsStreamsAre) {
  cudaStream_t first = make();
  cudaStream_t second = make();
  std::atomic<int> done = 0;
  Gate gate(first);
  const auto count = [](void* at) { static_cast<std::atomic<int>*>(at)->fetch_add(1); };
  cudaLaunchHostFunc(first, count, &done);
  cudaLaunchHostFunc(second, count, &done);
  auto waited = std::async(std::launch::async, [] { return cudaDeviceSynchronize(); });
  gate.open();
  EXPECT_EQ(waited.get(), cudaSuccess);
  EXPECT_EQ(done, 2);
}

// --- launches, as NCCL does them: through the driver's entry points

using LaunchKernel = int (*)(const void*, unsigned, unsigned, unsigned, unsigned, unsigned,
                             unsigned, unsigned, cudaStream_t, void**, void**);

LaunchKernel launch_kernel() {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
  const auto status = cudaGetDriverEntryPointByVersion("cuLaunchKernel", &entry, 12000, 0, &found);
#else
  const auto status = cudaGetDriverEntryPoint("cuLaunchKernel", &entry, 0, &found);
#endif
  EXPECT_EQ(status, cudaSuccess);
  return reinterpret_cast<LaunchKernel>(entry);
}

struct Parameters {
  int* result = nullptr;
  int value = 0;
};

int launch(const void* symbol, Parameters& parameters, cudaStream_t stream) {
  size_t bytes = sizeof parameters;
  // CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END
  std::array<void*, 5> extra{reinterpret_cast<void*>(1), &parameters, reinterpret_cast<void*>(2),
                             &bytes, nullptr};
  return launch_kernel()(symbol, 1, 1, 1, 32, 1, 1, 0, stream, nullptr, extra.data());
}

TEST_F(StreamTest, AKernelSeesItsParametersAsTheyWereAtItsLaunch) {
  static const char symbol = 0;
  nha_emulate_kernel(&symbol, [](const void* block, size_t bytes, unsigned blocks, unsigned) {
    const auto* parameters = static_cast<const Parameters*>(block);
    *parameters->result = bytes == sizeof *parameters && blocks == 1 ? parameters->value : -1;
  });
  cudaStream_t stream = make();
  int result = 0;
  Parameters parameters{&result, 41};
  Gate gate(stream);
  ASSERT_EQ(launch(&symbol, parameters, stream), 0);
  parameters.value = 42;
  EXPECT_EQ(result, 0);
  gate.open();
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(result, 41);
}

TEST_F(StreamTest, AKernelThatIsNotEmulatedIsAnError) {
  static const char symbol = 0;
  Parameters parameters;
  EXPECT_NE(launch(&symbol, parameters, make()), 0);
}

TEST_F(StreamTest, GraphsAndSharedMemoryAreRefused) {
  cudaStream_t stream = make();
  EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaErrorNotSupported);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotSupported);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "an error is told once";
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
  EXPECT_EQ(cudaStreamIsCapturing(stream, &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusNone);
  cudaIpcMemHandle_t handle{};
  EXPECT_EQ(cudaIpcGetMemHandle(&handle, nullptr), cudaErrorNotSupported);
  cudaGetLastError();
}

}  // namespace
}  // namespace nccl_ha::emulated
