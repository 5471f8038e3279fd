// One rank that all_reduces for a while: the load under which faults are tried.  Every element is
// compared.
//
//   loop PIPE BYTES SECONDS
//
// Says, for programs that watch it: "looping", when NCCL has its connections; at the end the
// operations that took more than twice the median, when they began in seconds since the host
// started, and then
//   began 1234.567 took 0.123
//   N operations, every element right; the longest took 0.123 s (median 0.0012 s)
// Exit status 0; 3 where NCCL says that something failed, after the words "NCCL says"; 4 where an
// operation is not over after 60 s.
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/nccl/on_gpu/rank.h"

namespace nccl_ha::on_gpu {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int rounds = 4;  // different data, one after the other
constexpr auto limit = std::chrono::seconds(60);
constexpr size_t before_looping = 20;
constexpr float last_one =
    1000;  // what rank 0 adds to the last element when it is the last operation

/// As /proc/uptime counts, by which the faults are known.
double uptime() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

class Loop {
 public:
  Loop(const std::string& pipe, size_t count) : count_(count), host_(count) {
    take_gpu();
    NHA_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    NHA_CUDA(cudaMalloc(reinterpret_cast<void**>(&out_), bytes()));
    for (int round = 0; round < rounds; ++round) {
      std::vector<float> values(count);
      for (size_t i = 0; i < count; ++i) {
        values[i] = value<float>(rank(), i, round);
      }
      NHA_CUDA(cudaMalloc(reinterpret_cast<void**>(&in_[round]), bytes()));
      NHA_CUDA(cudaMemcpy(in_[round], values.data(), bytes(), cudaMemcpyHostToDevice));
      for (size_t i = 0; i < count; ++i) {
        values[i] = sum_of_ranks<float>(i, round);
      }
      expected_[round] = std::move(values);
    }
    comm_ = make_comm(pipe);
  }

  void run(double for_seconds) {
    const auto start = Clock::now();
    bool more = true;
    for (size_t i = 0; more; ++i) {
      const double began = uptime();
      const auto operation_start = Clock::now();
      more =
          all_reduce(static_cast<int>(i % rounds), seconds(operation_start - start) >= for_seconds);
      if (i >= before_looping) {  // what comes before makes connections
        operations_.push_back({began, seconds(Clock::now() - operation_start)});
      } else if (i + 1 == before_looping) {
        std::printf("looping\n");
        std::fflush(stdout);
      }
    }
    NHA_NCCL(ncclCommFinalize(comm_));
    NHA_NCCL(ncclCommDestroy(comm_));
    report();
  }

 private:
  struct Operation {
    double began;
    double took;
  };

  void report() const {
    std::vector<double> took{0};
    for (const Operation& one : operations_) {
      took.push_back(one.took);
    }
    std::sort(took.begin(), took.end());
    const double median = took[took.size() / 2];
    for (const Operation& one : operations_) {
      if (one.took > 2 * median) {
        std::printf("began %.3f took %.4f\n", one.began, one.took);
      }
    }
    std::printf("%zu operations, every element right; the longest took %.3f s (median %.4f s)\n",
                operations_.size(), took.back(), median);
  }

  size_t bytes() const { return count_ * sizeof(float); }

  /// False when it was the last one.  Only the network that is tested has to work for ranks to
  /// agree on that.
  bool all_reduce(int round, bool last) {
    if (last && rank() == 0) {
      const float end = value<float>(rank(), count_ - 1, round) + last_one;
      NHA_CUDA(cudaMemcpy(in_[round] + count_ - 1, &end, sizeof end, cudaMemcpyHostToDevice));
    }
    NHA_CUDA(cudaMemsetAsync(out_, 0xEE, bytes(), stream_));
    NHA_NCCL(ncclAllReduce(in_[round], out_, count_, ncclFloat32, ncclSum, comm_, stream_));
    wait();
    NHA_CUDA(cudaMemcpy(host_.data(), out_, bytes(), cudaMemcpyDeviceToHost));
    const bool ended = host_.back() == expected_[round].back() + last_one;
    if (ended) {
      host_.back() -= last_one;
    }
    if (std::memcmp(host_.data(), expected_[round].data(), bytes()) != 0) {
      die("all_reduce", "an element is wrong");
    }
    return !ended;
  }

  /// As training frameworks do: the stream and NCCL's own word are both looked at.
  void wait() {
    const auto start = Clock::now();
    for (cudaError_t state = cudaErrorNotReady; state == cudaErrorNotReady;) {
      state = cudaStreamQuery(stream_);
      ncclResult_t failed = ncclSuccess;
      NHA_NCCL(ncclCommGetAsyncError(comm_, &failed));
      if (failed != ncclSuccess) {
        std::printf("NCCL says: %s, %s\n", ncclGetErrorString(failed), ncclGetLastError(comm_));
        std::fflush(stdout);
        ncclCommAbort(comm_);
        std::exit(3);
      }
      if (state != cudaErrorNotReady) {
        NHA_CUDA(state);
      }
      if (Clock::now() - start > limit) {
        std::printf("an operation is not over after 60 s\n");
        std::fflush(stdout);
        std::_Exit(4);
      }
      std::this_thread::yield();
    }
  }

  size_t count_;
  std::vector<float> host_;
  std::vector<Operation> operations_;
  cudaStream_t stream_ = nullptr;
  float* out_ = nullptr;
  float* in_[rounds] = {};
  std::vector<float> expected_[rounds];
  ncclComm_t comm_ = nullptr;
};

}  // namespace
}  // namespace nccl_ha::on_gpu

int main(int argc, char** argv) {
  if (argc != 4 || std::atol(argv[2]) < 4) {
    std::fprintf(stderr, "usage: loop PIPE BYTES SECONDS\n");
    return 2;
  }
  nccl_ha::on_gpu::Loop loop(argv[1], static_cast<size_t>(std::atol(argv[2])) / sizeof(float));
  loop.run(std::atof(argv[3]));
  return 0;
}
