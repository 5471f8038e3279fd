// Real NCCL collectives through the plugin, for a machine with a GPU.  One process is one rank;
// tests/nccl/run.sh starts two of them on one GPU, each with a host id of its own, so that NCCL
// takes them for two hosts and uses the network between them.
//
//   collectives RANK RANKS ID_PIPE
//
// Data are small integers, so that sums are exact in every type; every element is checked on the
// host.  Exit status 0 only if all were right.
#include <cuda_runtime.h>
#include <nccl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

int rank_number = 0;

[[noreturn]] void die(const char* what, const char* why) {
  std::fprintf(stderr, "rank %d: %s: %s\n", rank_number, what, why);
  std::exit(1);
}

#define CUDA(call)                            \
  do {                                        \
    const cudaError_t status = (call);        \
    if (status != cudaSuccess) {              \
      die(#call, cudaGetErrorString(status)); \
    }                                         \
  } while (false)

#define NCCL(call)                           \
  do {                                       \
    const ncclResult_t status = (call);      \
    if (status != ncclSuccess) {             \
      die(#call, ncclGetLastError(nullptr)); \
    }                                        \
  } while (false)

/// Rank 0 writes the id into a pipe for each of the others; opening it waits for the other end.
ncclUniqueId exchange_id(const std::string& pipe, int ranks) {
  ncclUniqueId id;
  if (rank_number == 0) {
    NCCL(ncclGetUniqueId(&id));
  }
  for (int other = 1; other < ranks; ++other) {
    if (rank_number != 0 && rank_number != other) {
      continue;
    }
    const std::string path = pipe + std::to_string(other);
    FILE* file = std::fopen(path.c_str(), rank_number == 0 ? "wb" : "rb");
    const bool whole =
        file != nullptr && (rank_number == 0 ? std::fwrite(&id, sizeof id, 1, file) == 1
                                             : std::fread(&id, sizeof id, 1, file) == 1);
    if (!whole || std::fclose(file) != 0) {
      die("exchanging the id", path.c_str());
    }
  }
  return id;
}

/// Depends on rank, position and round; below 128 ranks' sum still exact in every type used.
template <class T>
T value(int rank, size_t i, int round) {
  return static_cast<T>(
      (i * 7 + i / 4096 + static_cast<size_t>(rank) * 3 + static_cast<size_t>(round)) % 13);
}

template <class T>
class Check {
 public:
  Check(ncclComm_t comm, cudaStream_t stream, int ranks, ncclDataType_t type, const char* name)
      : comm_(comm), stream_(stream), ranks_(ranks), type_(type), name_(name) {}

  void run(size_t count) {
    const auto all = static_cast<size_t>(ranks_);
    ++round_;
    const int next = (rank_number + 1) % ranks_;
    const int previous = (rank_number + ranks_ - 1) % ranks_;
    operation(
        "all_reduce", count, count, count,
        [&](T* in, T* out) { NCCL(ncclAllReduce(in, out, count, type_, ncclSum, comm_, stream_)); },
        [&](size_t i) { return sum(i); });
    operation(
        "all_gather", count, count, count * all,
        [&](T* in, T* out) { NCCL(ncclAllGather(in, out, count, type_, comm_, stream_)); },
        [&](size_t i) { return value<T>(static_cast<int>(i / count), i % count, round_); });
    operation(
        "reduce_scatter", count, count * all, count,
        [&](T* in, T* out) {
          NCCL(ncclReduceScatter(in, out, count, type_, ncclSum, comm_, stream_));
        },
        [&](size_t i) { return sum(static_cast<size_t>(rank_number) * count + i); });
    operation(
        "broadcast", count, count, count,
        [&](T* in, T* out) {
          NCCL(ncclBroadcast(in, out, count, type_, ranks_ - 1, comm_, stream_));
        },
        [&](size_t i) { return value<T>(ranks_ - 1, i, round_); });
    operation(
        "send/recv", count, count, count,
        [&](T* in, T* out) {
          NCCL(ncclGroupStart());
          NCCL(ncclSend(in, count, type_, next, comm_, stream_));
          NCCL(ncclRecv(out, count, type_, previous, comm_, stream_));
          NCCL(ncclGroupEnd());
        },
        [&](size_t i) { return value<T>(previous, i, round_); });
  }

  size_t operations() const { return operations_; }

 private:
  T sum(size_t i) const {
    T total{};
    for (int r = 0; r < ranks_; ++r) {
      total = static_cast<T>(total + value<T>(r, i, round_));
    }
    return total;
  }

  template <class Launch, class Expected>
  void operation(const char* what, size_t count, size_t in_count, size_t out_count, Launch launch,
                 Expected expected) {
    T* in = nullptr;
    T* out = nullptr;
    CUDA(cudaMalloc(reinterpret_cast<void**>(&in), in_count * sizeof(T)));
    CUDA(cudaMalloc(reinterpret_cast<void**>(&out), out_count * sizeof(T)));
    std::vector<T> host(in_count);
    for (size_t i = 0; i < in_count; ++i) {
      host[i] = value<T>(rank_number, i, round_);
    }
    CUDA(cudaMemcpy(in, host.data(), in_count * sizeof(T), cudaMemcpyHostToDevice));
    CUDA(cudaMemset(out, 0xEE, out_count * sizeof(T)));
    launch(in, out);
    CUDA(cudaStreamSynchronize(stream_));
    std::vector<T> result(out_count);
    CUDA(cudaMemcpy(result.data(), out, out_count * sizeof(T), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < out_count; ++i) {
      if (std::memcmp(&result[i], std::vector<T>{expected(i)}.data(), sizeof(T)) != 0) {
        std::fprintf(stderr, "rank %d: %s of %zu %s: element %zu is wrong\n", rank_number, what,
                     count, name_, i);
        std::exit(1);
      }
    }
    CUDA(cudaFree(in));
    CUDA(cudaFree(out));
    ++operations_;
  }

  ncclComm_t comm_;
  cudaStream_t stream_;
  int ranks_;
  ncclDataType_t type_;
  const char* name_;
  int round_ = 0;
  size_t operations_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: collectives RANK RANKS ID_PIPE\n");
    return 2;
  }
  rank_number = std::atoi(argv[1]);
  const int ranks = std::atoi(argv[2]);
  int devices = 0;
  const cudaError_t found = cudaGetDeviceCount(&devices);
  if (found != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "no GPU here: %s\n", cudaGetErrorString(found));
    return 77;
  }
  CUDA(cudaSetDevice(rank_number % devices));
  cudaStream_t stream;
  CUDA(cudaStreamCreate(&stream));
  const ncclUniqueId id = exchange_id(argv[3], ranks);
  ncclComm_t comm;
  NCCL(ncclCommInitRank(&comm, ranks, id, rank_number));
  size_t operations = 0;
  Check<float> floats(comm, stream, ranks, ncclFloat32, "float");
  Check<int32_t> ints(comm, stream, ranks, ncclInt32, "int32");
  Check<uint8_t> bytes(comm, stream, ranks, ncclUint8, "uint8");
  for (const size_t count :
       {size_t{1}, size_t{1000}, size_t{65536}, size_t{1000003}, size_t{16} << 20}) {
    floats.run(count);
    ints.run(count);
    bytes.run(count);
  }
  operations = floats.operations() + ints.operations() + bytes.operations();
  NCCL(ncclCommDestroy(comm));
  CUDA(cudaStreamDestroy(stream));
  std::printf("rank %d: %zu operations, every element right\n", rank_number, operations);
  return 0;
}
