#include "tests/nccl/emulated/operation.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "tests/nccl/emulated/waiting.h"

namespace nccl_ha::emulated {
namespace {

template <class T>
T from_number(double number) {
  if constexpr (std::is_same_v<T, __half>) {
    return __float2half(static_cast<float>(number));
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16(static_cast<float>(number));
  } else {
    return static_cast<T>(number);
  }
}

template <class T>
double to_number(T value) {
  if constexpr (std::is_same_v<T, __half>) {
    return static_cast<double>(__half2float(value));
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return static_cast<double>(__bfloat162float(value));
  } else {
    return static_cast<double>(value);
  }
}

/// Small integers, so that sums are exact in every type; negative ones where the type has them.
template <class T>
class Values {
 public:
  explicit Values(int round) : round_(round) {}
  int at(int rank, size_t i) const {
    const size_t mixed = i * 7 + i / 4096 + static_cast<size_t>(rank) * 3 + round_;
    return static_cast<int>(mixed % 13) - (std::is_unsigned_v<T> ? 0 : 6);
  }

 private:
  const size_t round_;
};

/// What of an operation depends neither on the type nor on the communicator.
class Shape {
 public:
  explicit Shape(const Operation& operation)
      : name_(operation.name),
        count_(operation.count),
        ranks_(static_cast<size_t>(place().ranks)),
        root_(operation.round % place().ranks) {}

  size_t in_count() const {
    return is("reduce_scatter") || is("alltoall") ? count_ * ranks_ : count_;
  }
  size_t out_count() const {
    return is("all_gather") || is("alltoall") || is("gatherv") ? count_ * ranks_ : count_;
  }
  /// Whether this rank gets anything.
  bool has_result() const { return !is("reduce") || place().rank == root_; }

  void call(const char* in, char* out, ncclDataType_t type, size_t size, const Comm& comm) const;

  /// The element that this rank is to find at `i`.
  template <class T>
  double expected(const Values<T>& values, size_t i) const {
    const auto me = static_cast<size_t>(place().rank);
    if (is("all_gather") || is("gatherv")) {
      return values.at(static_cast<int>(i / count_), i % count_);
    }
    if (is("alltoall")) {
      return values.at(static_cast<int>(i / count_), me * count_ + i % count_);
    }
    if (is("broadcast")) {
      return values.at(root_, i);
    }
    if (is("sendrecv")) {
      return values.at(previous(), i);
    }
    return reduced(values, is("reduce_scatter") ? me * count_ + i : i);
  }

 private:
  bool is(const char* name) const { return name_ == name; }
  int next() const { return (place().rank + 1) % place().ranks; }
  int previous() const { return (place().rank + place().ranks - 1) % place().ranks; }

  template <class T>
  double reduced(const Values<T>& values, size_t i) const {
    int sum = 0;
    int most = values.at(0, i);
    for (int rank = 0; rank < place().ranks; ++rank) {
      sum += values.at(rank, i);
      most = std::max(most, values.at(rank, i));
    }
    if (is("all_reduce_max")) {
      return most;
    }
    if (is("all_reduce_avg")) {
      return std::is_integral_v<T> ? sum / place().ranks : static_cast<double>(sum) / place().ranks;
    }
    return sum;
  }

  const std::string& name_;
  const size_t count_;
  const size_t ranks_;
  const int root_;
};

void Shape::call(const char* in, char* out, ncclDataType_t type, size_t size,
                 const Comm& to) const {
  ncclComm_t comm = to.comm;
  cudaStream_t stream = to.stream;
  const size_t part = count_ * size;
  if (is("all_reduce")) {
    NHA_NEED(ncclAllReduce(in, out, count_, type, ncclSum, comm, stream));
  } else if (is("all_reduce_max")) {
    NHA_NEED(ncclAllReduce(in, out, count_, type, ncclMax, comm, stream));
  } else if (is("all_reduce_avg")) {
    NHA_NEED(ncclAllReduce(in, out, count_, type, ncclAvg, comm, stream));
  } else if (is("all_gather")) {
    NHA_NEED(ncclAllGather(in, out, count_, type, comm, stream));
  } else if (is("reduce_scatter")) {
    NHA_NEED(ncclReduceScatter(in, out, count_, type, ncclSum, comm, stream));
  } else if (is("broadcast")) {
    NHA_NEED(ncclBroadcast(in, out, count_, type, root_, comm, stream));
  } else if (is("reduce")) {
    NHA_NEED(ncclReduce(in, out, count_, type, ncclSum, root_, comm, stream));
  } else if (is("sendrecv")) {
    NHA_NEED(ncclGroupStart());
    NHA_NEED(ncclSend(in, count_, type, next(), comm, stream));
    NHA_NEED(ncclRecv(out, count_, type, previous(), comm, stream));
    NHA_NEED(ncclGroupEnd());
  } else if (is("alltoall")) {
    NHA_NEED(ncclGroupStart());
    for (size_t r = 0; r < ranks_; ++r) {
      NHA_NEED(ncclSend(in + r * part, count_, type, static_cast<int>(r), comm, stream));
      NHA_NEED(ncclRecv(out + r * part, count_, type, static_cast<int>(r), comm, stream));
    }
    NHA_NEED(ncclGroupEnd());
  } else if (is("gatherv")) {
    NHA_NEED(ncclGroupStart());
    for (size_t r = 0; r < ranks_; ++r) {
      NHA_NEED(ncclBroadcast(in, out + r * part, count_, type, static_cast<int>(r), comm, stream));
    }
    NHA_NEED(ncclGroupEnd());
  } else {
    die("no such operation: " + name_);
  }
}

void wait_for(const std::vector<Comm>& comms, const Operation& operation, const Conduct& conduct,
              Clock::time_point called) {
  for (const Comm& comm : comms) {
    for (unsigned looks = 0; cudaStreamQuery(comm.stream) != cudaSuccess; ++looks) {
      ncclResult_t error = ncclSuccess;
      NHA_NEED(ncclCommGetAsyncError(comm.comm, &error));
      if (error != ncclSuccess && error != ncclInProgress) {
        conduct.failed(comms, operation, error, since(called));
        die(operation.text() + ": " + ncclGetErrorString(error));
      }
      if (since(called).count() > conduct.limit) {
        die(operation.text() + ": hangs");
      }
      give_way(std::chrono::microseconds(looks < 200 ? 50 : 1000));
    }
  }
}

template <class T>
struct Buffers {
  T* in = nullptr;
  T* out = nullptr;
  void* in_registration = nullptr;
  void* out_registration = nullptr;
};

/// NCCL registers whole pages, and all of them must be the buffer's.
size_t room_for(size_t bytes, bool registers) {
  constexpr size_t page = 4096;
  return registers ? (bytes + page - 1) / page * page : bytes;
}

template <class T>
Seconds run_typed(const std::vector<Comm>& comms, const Operation& operation, ncclDataType_t type,
                  const Conduct& conduct) {
  const Shape shape(operation);
  const size_t in_count = shape.in_count();
  const size_t out_count = shape.out_count();
  std::vector<Buffers<T>> buffers(comms.size());
  std::vector<T> host(std::max(in_count, out_count));
  const auto values = [&](size_t c) {
    return Values<T>(operation.round + static_cast<int>(c) * 5);
  };
  for (size_t c = 0; c < comms.size(); ++c) {
    Buffers<T>& of = buffers[c];
    const size_t in_room = room_for(in_count * sizeof(T), conduct.registers);
    const size_t out_room = room_for(out_count * sizeof(T), conduct.registers);
    NHA_NEED(cudaMalloc(reinterpret_cast<void**>(&of.in), in_room));
    NHA_NEED(cudaMalloc(reinterpret_cast<void**>(&of.out), out_room));
    if (conduct.registers) {
      NHA_NEED(ncclCommRegister(comms[c].comm, of.in, in_room, &of.in_registration));
      NHA_NEED(ncclCommRegister(comms[c].comm, of.out, out_room, &of.out_registration));
    }
    for (size_t i = 0; i < in_count; ++i) {
      host[i] = from_number<T>(values(c).at(place().rank, i));
    }
    NHA_NEED(cudaMemcpy(of.in, host.data(), in_count * sizeof(T), cudaMemcpyHostToDevice));
    NHA_NEED(cudaMemset(of.out, 0xEE, out_count * sizeof(T)));
  }
  const auto called = Clock::now();
  for (size_t c = 0; c < comms.size(); ++c) {
    shape.call(reinterpret_cast<const char*>(buffers[c].in),
               reinterpret_cast<char*>(buffers[c].out), type, sizeof(T), comms[c]);
  }
  if (!conduct.blocking) {
    for (const Comm& comm : comms) {
      need(settled(comm.comm), operation.name.c_str());
    }
  }
  conduct.called();
  wait_for(comms, operation, conduct, called);
  const Seconds took = since(called);
  for (size_t c = 0; c < comms.size(); ++c) {
    const Buffers<T>& of = buffers[c];
    NHA_NEED(cudaMemcpy(host.data(), of.out, out_count * sizeof(T), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < out_count && shape.has_result(); ++i) {
      const T expected = from_number<T>(shape.expected(values(c), i));
      if (std::memcmp(&host[i], &expected, sizeof(T)) != 0) {
        die(operation.text() + ": element " + std::to_string(i) + " is wrong: " +
            std::to_string(to_number(host[i])) + " for " + std::to_string(to_number(expected)));
      }
    }
    if (conduct.registers) {
      NHA_NEED(ncclCommDeregister(comms[c].comm, of.in_registration));
      NHA_NEED(ncclCommDeregister(comms[c].comm, of.out_registration));
    }
    NHA_NEED(cudaFree(of.in));
    NHA_NEED(cudaFree(of.out));
  }
  return took;
}

}  // namespace

std::string Operation::text() const { return name + " of " + std::to_string(count) + " " + type; }

const std::vector<std::string>& all_operations() {
  static const std::vector<std::string> all{"all_reduce", "all_gather", "reduce_scatter",
                                            "broadcast",  "reduce",     "sendrecv",
                                            "alltoall",   "gatherv",    "all_reduce_max"};
  return all;
}

Seconds run(const std::vector<Comm>& comms, const Operation& operation, const Conduct& conduct) {
  const std::string& type = operation.type;
  if (type == "float") {
    return run_typed<float>(comms, operation, ncclFloat32, conduct);
  }
  if (type == "double") {
    return run_typed<double>(comms, operation, ncclFloat64, conduct);
  }
  if (type == "half") {
    return run_typed<__half>(comms, operation, ncclFloat16, conduct);
  }
  if (type == "bfloat16") {
    return run_typed<__nv_bfloat16>(comms, operation, ncclBfloat16, conduct);
  }
  if (type == "int32") {
    return run_typed<int32_t>(comms, operation, ncclInt32, conduct);
  }
  if (type == "int64") {
    return run_typed<int64_t>(comms, operation, ncclInt64, conduct);
  }
  if (type == "uint8") {
    return run_typed<uint8_t>(comms, operation, ncclUint8, conduct);
  }
  die("no such type: " + type);
}

ncclResult_t settled(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  for (Patience patience; state == ncclInProgress; patience.look_in_vain()) {
    NHA_NEED(ncclCommGetAsyncError(comm, &state));
  }
  return state;
}

}  // namespace nccl_ha::emulated
