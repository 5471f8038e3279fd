// What the programs here have in common: a process is one rank of a job on a real GPU.  RANK and
// WORLD_SIZE (set by `nccl-ha lab run` too) say which; the job's NCCL id goes through pipes that
// run_on_gpu makes.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace nccl_ha::on_gpu {

constexpr int no_gpu = 77;  // the exit status that stands for "left out"

inline int number_of(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr) {
    std::fprintf(stderr, "%s is not set\n", name);
    std::exit(2);
  }
  return std::atoi(text);
}

inline int rank() {
  static const int number = number_of("RANK");
  return number;
}

inline int ranks() {
  static const int number = number_of("WORLD_SIZE");
  return number;
}

[[noreturn]] inline void die(const char* what, const char* why) {
  std::fprintf(stderr, "rank %d: %s: %s\n", rank(), what, why);
  std::exit(1);
}

#define NHA_CUDA(call)                                               \
  do {                                                               \
    const cudaError_t nha_status = (call);                           \
    if (nha_status != cudaSuccess) {                                 \
      ::nccl_ha::on_gpu::die(#call, cudaGetErrorString(nha_status)); \
    }                                                                \
  } while (false)

#define NHA_NCCL(call)                                          \
  do {                                                          \
    const ncclResult_t nha_status = (call);                     \
    if (nha_status != ncclSuccess) {                            \
      ::nccl_ha::on_gpu::die(#call, ncclGetLastError(nullptr)); \
    }                                                           \
  } while (false)

/// The GPU of this rank, which it may share with others; ends the process with `no_gpu` where there
/// is none.
inline void take_gpu() {
  int devices = 0;
  const cudaError_t found = cudaGetDeviceCount(&devices);
  if (found != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "no GPU here: %s\n", cudaGetErrorString(found));
    std::exit(no_gpu);
  }
  NHA_CUDA(cudaSetDevice(rank() % devices));
}

/// Rank 0 writes the id into a pipe for each of the others, PIPE1, PIPE2, ...; opening one waits
/// for its other end.
inline ncclUniqueId exchange_id(const std::string& pipe) {
  ncclUniqueId id{};
  if (rank() == 0) {
    NHA_NCCL(ncclGetUniqueId(&id));
  }
  for (int other = 1; other < ranks(); ++other) {
    if (rank() != 0 && rank() != other) {
      continue;
    }
    const std::string path = pipe + std::to_string(other);
    FILE* file = std::fopen(path.c_str(), rank() == 0 ? "wb" : "rb");
    const bool whole = file != nullptr && (rank() == 0 ? std::fwrite(&id, sizeof id, 1, file) == 1
                                                       : std::fread(&id, sizeof id, 1, file) == 1);
    if (!whole || std::fclose(file) != 0) {
      die("exchanging the id", path.c_str());
    }
  }
  return id;
}

inline ncclComm_t make_comm(const std::string& pipe) {
  ncclComm_t comm = nullptr;
  NHA_NCCL(ncclCommInitRank(&comm, ranks(), exchange_id(pipe), rank()));
  return comm;
}

/// Small integers, so that sums are exact in every type used, below 20 ranks.
template <class T>
T value(int of_rank, size_t i, int round) {
  return static_cast<T>(
      (i * 7 + i / 4096 + static_cast<size_t>(of_rank) * 3 + static_cast<size_t>(round)) % 13);
}

template <class T>
T sum_of_ranks(size_t i, int round) {
  T total{};
  for (int r = 0; r < ranks(); ++r) {
    total = static_cast<T>(total + value<T>(r, i, round));
  }
  return total;
}

}  // namespace nccl_ha::on_gpu
