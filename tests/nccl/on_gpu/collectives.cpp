// Collectives on a GPU, of which every element is compared on the host.
//
//   collectives PIPE [graph]        (graph: all_reduces recorded into a CUDA graph, which is
//   launched many times)
//
// Exit status 0 only if all were right.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/nccl/on_gpu/rank.h"

namespace nccl_ha::on_gpu {
namespace {

template <class T>
class Buffer {
 public:
  explicit Buffer(size_t count) : count_(count) {
    NHA_CUDA(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T)));
  }
  ~Buffer() { cudaFree(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  T* data() const { return data_; }

  template <class Value>
  void fill(Value value_at) {
    std::vector<T> host(count_);
    for (size_t i = 0; i < count_; ++i) {
      host[i] = value_at(i);
    }
    NHA_CUDA(cudaMemcpy(data_, host.data(), count_ * sizeof(T), cudaMemcpyHostToDevice));
  }

  /// So that what nobody writes is noticed.
  void spoil() { NHA_CUDA(cudaMemset(data_, 0xEE, count_ * sizeof(T))); }

  template <class Value>
  void compare(const char* what, const char* type, Value expected_at) const {
    std::vector<T> host(count_);
    NHA_CUDA(cudaMemcpy(host.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < count_; ++i) {
      const T expected = expected_at(i);
      if (std::memcmp(&host[i], &expected, sizeof(T)) != 0) {
        std::fprintf(stderr, "rank %d: %s of %zu %s: element %zu is wrong\n", rank(), what, count_,
                     type, i);
        std::exit(1);
      }
    }
  }

 private:
  size_t count_;
  T* data_ = nullptr;
};

template <class T>
class Check {
 public:
  Check(ncclComm_t comm, cudaStream_t stream, ncclDataType_t type, const char* name)
      : comm_(comm), stream_(stream), type_(type), name_(name) {}

  void run(size_t count) {
    const auto all = static_cast<size_t>(ranks());
    ++round_;
    const int next = (rank() + 1) % ranks();
    const int previous = (rank() + ranks() - 1) % ranks();
    const auto sum = [this](size_t i) { return sum_of_ranks<T>(i, round_); };
    operation(
        "all_reduce", count, count,
        [&](T* in, T* out) {
          NHA_NCCL(ncclAllReduce(in, out, count, type_, ncclSum, comm_, stream_));
        },
        sum);
    operation(
        "all_gather", count, count * all,
        [&](T* in, T* out) { NHA_NCCL(ncclAllGather(in, out, count, type_, comm_, stream_)); },
        [&](size_t i) { return value<T>(static_cast<int>(i / count), i % count, round_); });
    operation(
        "reduce_scatter", count * all, count,
        [&](T* in, T* out) {
          NHA_NCCL(ncclReduceScatter(in, out, count, type_, ncclSum, comm_, stream_));
        },
        [&](size_t i) { return sum(static_cast<size_t>(rank()) * count + i); });
    operation(
        "broadcast", count, count,
        [&](T* in, T* out) {
          NHA_NCCL(ncclBroadcast(in, out, count, type_, ranks() - 1, comm_, stream_));
        },
        [&](size_t i) { return value<T>(ranks() - 1, i, round_); });
    operation(
        "send/recv", count, count,
        [&](T* in, T* out) {
          NHA_NCCL(ncclGroupStart());
          NHA_NCCL(ncclSend(in, count, type_, next, comm_, stream_));
          NHA_NCCL(ncclRecv(out, count, type_, previous, comm_, stream_));
          NHA_NCCL(ncclGroupEnd());
        },
        [&](size_t i) { return value<T>(previous, i, round_); });
    operation(
        "alltoall", count * all, count * all,
        [&](T* in, T* out) {
          NHA_NCCL(ncclGroupStart());
          for (int peer = 0; peer < ranks(); ++peer) {
            const size_t at = static_cast<size_t>(peer) * count;
            NHA_NCCL(ncclSend(in + at, count, type_, peer, comm_, stream_));
            NHA_NCCL(ncclRecv(out + at, count, type_, peer, comm_, stream_));
          }
          NHA_NCCL(ncclGroupEnd());
        },
        [&](size_t i) {
          return value<T>(static_cast<int>(i / count),
                          static_cast<size_t>(rank()) * count + i % count, round_);
        });
  }

  size_t operations() const { return operations_; }

 private:
  template <class Launch, class Expected>
  void operation(const char* what, size_t in_count, size_t out_count, Launch launch,
                 Expected expected) {
    Buffer<T> in(in_count);
    Buffer<T> out(out_count);
    in.fill([this](size_t i) { return value<T>(rank(), i, round_); });
    out.spoil();
    launch(in.data(), out.data());
    NHA_CUDA(cudaStreamSynchronize(stream_));
    out.compare(what, name_, expected);
    ++operations_;
  }

  ncclComm_t comm_;
  cudaStream_t stream_;
  ncclDataType_t type_;
  const char* name_;
  int round_ = 0;
  size_t operations_ = 0;
};

size_t every_operation(ncclComm_t comm, cudaStream_t stream) {
  Check<float> floats(comm, stream, ncclFloat32, "float");
  Check<int32_t> ints(comm, stream, ncclInt32, "int32");
  Check<uint8_t> bytes(comm, stream, ncclUint8, "uint8");
  for (const size_t count :
       {size_t{1}, size_t{1000}, size_t{65536}, size_t{1000003}, size_t{16} << 20}) {
    floats.run(count);
    ints.run(count);
    bytes.run(count);
  }
  return floats.operations() + ints.operations() + bytes.operations();
}

/// Three all_reduces, each of the one before, launched as one graph with new data each time.
size_t graphs(ncclComm_t comm, cudaStream_t stream) {
  constexpr size_t count = 100003;
  constexpr int launches = 50;
  constexpr int recorded = 3;
  Buffer<float> in(count);
  Buffer<float> out(count);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  NHA_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  NHA_NCCL(ncclAllReduce(in.data(), out.data(), count, ncclFloat32, ncclSum, comm, stream));
  for (int i = 1; i < recorded; ++i) {
    NHA_NCCL(ncclAllReduce(out.data(), out.data(), count, ncclFloat32, ncclSum, comm, stream));
  }
  NHA_CUDA(cudaStreamEndCapture(stream, &graph));
  NHA_CUDA(cudaGraphInstantiate(&ready, graph, 0));
  const auto factor = static_cast<float>(ranks() * ranks());
  for (int round = 0; round < launches; ++round) {
    in.fill([&](size_t i) { return value<float>(rank(), i, round); });
    out.spoil();
    NHA_CUDA(cudaGraphLaunch(ready, stream));
    NHA_CUDA(cudaStreamSynchronize(stream));
    out.compare("all_reduce in a graph", "float",
                [&](size_t i) { return sum_of_ranks<float>(i, round) * factor; });
  }
  NHA_CUDA(cudaGraphExecDestroy(ready));
  NHA_CUDA(cudaGraphDestroy(graph));
  return size_t{launches} * recorded;
}

int run(const std::string& pipe, bool with_graphs) {
  take_gpu();
  cudaStream_t stream = nullptr;
  NHA_CUDA(cudaStreamCreate(&stream));
  ncclComm_t comm = make_comm(pipe);
  const size_t operations = with_graphs ? graphs(comm, stream) : every_operation(comm, stream);
  NHA_NCCL(ncclCommDestroy(comm));
  NHA_CUDA(cudaStreamDestroy(stream));
  std::printf("rank %d: %zu operations, every element right\n", rank(), operations);
  return 0;
}

}  // namespace
}  // namespace nccl_ha::on_gpu

int main(int argc, char** argv) {
  const bool graph = argc == 3 && std::string(argv[2]) == "graph";
  if (argc != 2 && !graph) {
    std::fprintf(stderr, "usage: collectives PIPE [graph]\n");
    return 2;
  }
  return nccl_ha::on_gpu::run(argv[1], graph);
}
