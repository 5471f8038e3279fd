// Streams: queues with a host thread each.  An event is the marker of a stream's last operation.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>

namespace nccl_ha::emulated {

/// Says when an operation has ended.
class Marker {
 public:
  using Time = std::chrono::steady_clock::time_point;

  void set();
  void wait();
  bool done();
  Time time();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  Time time_;
};

using MarkerPtr = std::shared_ptr<Marker>;

/// A short operation may run on the caller's thread when nothing is ahead of it.
enum class Length { short_one, any };

/// Appends an operation to a stream.  The legacy stream waits for all blocking streams of its
/// device, and they wait for it.
cudaError_t submit(cudaStream_t stream, std::function<void()> run, Length length,
                   MarkerPtr* marker = nullptr);
cudaError_t submit_and_wait(cudaStream_t stream, std::function<void()> run);

}  // namespace nccl_ha::emulated
