// One rank as a process: which one it is, how it fails, how ranks tell each other NCCL's ids.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

namespace nccl_ha::emulated {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

inline Seconds since(Clock::time_point from) { return Clock::now() - from; }

struct Place {
  int rank = 0;
  int ranks = 1;
};

/// Of this process: RANK and WORLD_SIZE, as torchrun and `nccl-ha lab run` set them.
Place& place();

/// One line with the time and the rank.
void say(const char* format, ...) __attribute__((format(printf, 1, 2)));
/// Says it, and ends the process at once, whatever its threads do.
[[noreturn]] void die(const std::string& what);

void need(cudaError_t status, const char* call);
void need(ncclResult_t status, const char* call);
#define NHA_NEED(call) ::nccl_ha::emulated::need((call), #call)

/// Hands what rank 0 has to all others, over TCP (MASTER_ADDR, MASTER_PORT).
class Rendezvous {
 public:
  Rendezvous();
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  enum class Others { all_there, some_dead };
  template <class T>
  void share(T& value, Others others = Others::all_there) {
    share(reinterpret_cast<char*>(&value), sizeof value, others);
  }

 private:
  void listen_for_others(int port);
  void dial(const std::string& host, int port);
  void share(char* bytes, size_t count, Others others);

  std::vector<int> peers_;
};

}  // namespace nccl_ha::emulated
