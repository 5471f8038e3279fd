// One rank that all_reduces on a fake GPU until rank 0 is told to stop, by SIGTERM: the load under
// which faults are tried.  Every element is compared.
//
//   loop [--count N] [--limit S]      (65536 floats; an operation of more than 60 s hangs)
//
// Says what happens, one line each, for programs that watch it:
//   ncclCommInitRank begins
//   ncclCommInitRank took 1.234 s
//   operation 17 took 0.123 s
//   17 operations, every element right
// or the last words are an error and the exit status is 1.
#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/nccl/emulated/process.h"
#include "tests/nccl/emulated/waiting.h"

namespace nccl_ha::emulated {
namespace {

std::atomic<bool> told_to_stop{false};
static_assert(std::atomic<bool>::is_always_lock_free);

struct Options {
  size_t count = 65536;
  double limit = 60;
};

class Loop {
 public:
  explicit Loop(Options options)
      : options_(options), host_(options.count), bytes_(options.count * sizeof(float)) {
    NHA_NEED(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    NHA_NEED(cudaMalloc(reinterpret_cast<void**>(&in_), bytes_));
    NHA_NEED(cudaMalloc(reinterpret_cast<void**>(&out_), bytes_));
    for (size_t i = 0; i < options_.count; ++i) {
      phases_.push_back(phase(i));
    }
  }

  void run() {
    make_comm();
    size_t operations = 0;
    for (bool more = true; more;) {
      more = all_reduce(operations++);
    }
    say("the last operation is done");
    NHA_NEED(ncclCommFinalize(comm_));
    NHA_NEED(ncclCommDestroy(comm_));
    say("%zu operations, every element right", operations);
  }

 private:
  void make_comm() {
    Rendezvous rendezvous;
    ncclUniqueId id{};
    if (place().rank == 0) {
      NHA_NEED(ncclGetUniqueId(&id));
    }
    rendezvous.share(id);
    say("ncclCommInitRank begins");
    const auto start = Clock::now();
    NHA_NEED(ncclCommInitRank(&comm_, place().ranks, id, place().rank));
    say("ncclCommInitRank took %.3f s", since(start).count());
  }

  /// Small integers, so that sums are exact, and cheap: in an emulated machine the network would
  /// wait for the arithmetic.  Of each element and rank, 0 to 12.
  static uint8_t phase(size_t i) { return static_cast<uint8_t>((i * 7 + i / 4096) % 13); }
  static int value(unsigned phase, int rank, size_t operation) {
    return static_cast<int>((phase + static_cast<size_t>(rank) * 3 + operation) % 13) - 6;
  }

  /// False when it was the last one.  Rank 0 says so by the last element: only the network that is
  /// tested has to work for ranks to agree.
  bool all_reduce(size_t operation) {
    std::array<float, 13> mine{};
    for (unsigned phase = 0; phase < mine.size(); ++phase) {
      mine[phase] = static_cast<float>(value(phase, place().rank, operation));
    }
    for (size_t i = 0; i + 1 < host_.size(); ++i) {
      host_[i] = mine[phases_[i]];
    }
    host_.back() = place().rank == 0 && told_to_stop ? 1.0F : 0.0F;
    NHA_NEED(cudaMemcpy(in_, host_.data(), bytes_, cudaMemcpyHostToDevice));
    NHA_NEED(cudaMemset(out_, 0xEE, bytes_));
    const auto called = Clock::now();
    NHA_NEED(ncclAllReduce(in_, out_, host_.size(), ncclFloat32, ncclSum, comm_, stream_));
    wait(operation, called);
    const Seconds took = since(called);
    NHA_NEED(cudaMemcpy(host_.data(), out_, bytes_, cudaMemcpyDeviceToHost));
    compare(operation);
    say("operation %zu took %.3f s", operation, took.count());
    return host_.back() == 0.0F;
  }

  void wait(size_t operation, Clock::time_point called) {
    for (unsigned looks = 0; cudaStreamQuery(stream_) != cudaSuccess; ++looks) {
      ncclResult_t error = ncclSuccess;
      NHA_NEED(ncclCommGetAsyncError(comm_, &error));
      if (error != ncclSuccess && error != ncclInProgress) {
        die("operation " + std::to_string(operation) + ": " + ncclGetErrorString(error));
      }
      if (since(called).count() > options_.limit) {
        die("operation " + std::to_string(operation) + ": hangs");
      }
      give_way(std::chrono::microseconds(looks < 20 ? 50 : 1000));
    }
  }

  void compare(size_t operation) const {
    std::array<float, 13> sums{};
    for (unsigned phase = 0; phase < sums.size(); ++phase) {
      for (int rank = 0; rank < place().ranks; ++rank) {
        sums[phase] += static_cast<float>(value(phase, rank, operation));
      }
    }
    for (size_t i = 0; i + 1 < host_.size(); ++i) {
      if (host_[i] != sums[phases_[i]]) {
        die("operation " + std::to_string(operation) + ": element " + std::to_string(i) +
            " is wrong: " + std::to_string(host_[i]) + " for " + std::to_string(sums[phases_[i]]));
      }
    }
    if (host_.back() != 0.0F && host_.back() != 1.0F) {
      die("operation " + std::to_string(operation) + ": the last element is wrong");
    }
  }

  const Options options_;
  std::vector<float> host_;
  std::vector<uint8_t> phases_;
  const size_t bytes_;
  cudaStream_t stream_ = nullptr;
  float* in_ = nullptr;
  float* out_ = nullptr;
  ncclComm_t comm_ = nullptr;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 < argc && name == "--count") {
      options.count = std::stoull(argv[i + 1]);
    } else if (i + 1 < argc && name == "--limit") {
      options.limit = std::stod(argv[i + 1]);
    } else {
      die("no such option, or no value: " + name);
    }
  }
  if (options.count < 2) {
    die("--count: at least 2, the last element has a meaning of its own");
  }
  return options;
}

}  // namespace
}  // namespace nccl_ha::emulated

int main(int argc, char** argv) {
  using namespace nccl_ha::emulated;
  setvbuf(stdout, nullptr, _IOLBF, 0);
  struct sigaction action {};
  action.sa_handler = [](int) { told_to_stop = true; };
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  const Options options = parse(argc, argv);
  NHA_NEED(cudaSetDevice(0));
  Loop(options).run();
  return 0;
}
