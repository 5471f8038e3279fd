// How long an all_reduce takes: operations one after the other in one stream, as NCCL's own tests
// count them.
//
//   timing PIPE SECONDS BYTES...      (SECONDS: for each size, about)
//
// Rank 0 prints "bytes N us T" for each size: the median of five measurements.
#include <algorithm>
#include <chrono>
#include <vector>

#include "tests/nccl/on_gpu/rank.h"

namespace nccl_ha::on_gpu {
namespace {

constexpr int measurements = 5;
constexpr int warm_up = 5;

double one(ncclComm_t comm, cudaStream_t stream, float* in, float* out, size_t count,
           int operations) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < operations; ++i) {
    NHA_NCCL(ncclAllReduce(in, out, count, ncclFloat32, ncclSum, comm, stream));
  }
  NHA_CUDA(cudaStreamSynchronize(stream));
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
             .count() /
         operations;
}

/// The slowest rank's number, so that all ranks take the same.
int agree(ncclComm_t comm, cudaStream_t stream, int* shared, int mine) {
  NHA_CUDA(cudaMemcpy(shared, &mine, sizeof mine, cudaMemcpyHostToDevice));
  NHA_NCCL(ncclAllReduce(shared, shared, 1, ncclInt32, ncclMin, comm, stream));
  NHA_CUDA(cudaStreamSynchronize(stream));
  NHA_CUDA(cudaMemcpy(&mine, shared, sizeof mine, cudaMemcpyDeviceToHost));
  return mine;
}

void run(const std::string& pipe, double seconds, const std::vector<size_t>& sizes) {
  take_gpu();
  cudaStream_t stream = nullptr;
  NHA_CUDA(cudaStreamCreate(&stream));
  const size_t most = *std::max_element(sizes.begin(), sizes.end());
  float* in = nullptr;
  float* out = nullptr;
  int* shared = nullptr;
  NHA_CUDA(cudaMalloc(reinterpret_cast<void**>(&in), most));
  NHA_CUDA(cudaMalloc(reinterpret_cast<void**>(&out), most));
  NHA_CUDA(cudaMalloc(reinterpret_cast<void**>(&shared), sizeof(int)));
  NHA_CUDA(cudaMemset(in, 1, most));
  ncclComm_t comm = make_comm(pipe);
  for (const size_t bytes : sizes) {
    const size_t count = bytes / sizeof(float);
    const double about = one(comm, stream, in, out, count, warm_up);
    const int operations = agree(
        comm, stream, shared, std::max(1, static_cast<int>(seconds * 1e6 / measurements / about)));
    std::vector<double> times;
    for (int i = 0; i < measurements; ++i) {
      times.push_back(one(comm, stream, in, out, count, operations));
    }
    std::sort(times.begin(), times.end());
    if (rank() == 0) {
      std::printf("bytes %zu us %.2f\n", bytes, times[measurements / 2]);
      std::fflush(stdout);
    }
  }
  NHA_NCCL(ncclCommDestroy(comm));
}

}  // namespace
}  // namespace nccl_ha::on_gpu

int main(int argc, char** argv) {
  std::vector<size_t> sizes;
  for (int i = 3; i < argc; ++i) {
    sizes.push_back(std::max<size_t>(sizeof(float), static_cast<size_t>(std::atol(argv[i]))));
  }
  if (sizes.empty()) {
    std::fprintf(stderr, "usage: timing PIPE SECONDS BYTES...\n");
    return 2;
  }
  nccl_ha::on_gpu::run(argv[1], std::atof(argv[2]), sizes);
  return 0;
}
