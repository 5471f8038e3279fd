// One CUDA block of one of NCCL's kernels: a thread that serves one channel, and what it does with
// that channel's connections, which is the handshake between device and proxy:
//
//   receive  wait until *tail passes the step, read the slot, set *head behind it
//   send     wait until *head is less than NCCL_STEPS behind, write the slot and its size into the
//            connFifo, then set *tail
//   LL       as above without tail: each 8 bytes of data have two flags that name the step
#pragma once

#include <bitops.h>
#include <collectives.h>
#include <device.h>

#include <cstdint>

#include "tests/nccl/emulated/waiting.h"

namespace nccl_ha::emulated {

/// Ends the process: NCCL asks for something that is not emulated.
[[noreturn]] void give_up(const char* why);

/// The communicator was aborted: the kernel ends where it stands.
struct Aborted {};

inline uint64_t load(const uint64_t* place) { return __atomic_load_n(place, __ATOMIC_ACQUIRE); }
inline void store(uint64_t* place, uint64_t value) {
  __atomic_store_n(place, value, __ATOMIC_RELEASE);
}

struct Block {
  ncclKernelComm* comm = nullptr;
  ncclDevChannel* channel = nullptr;
  int channel_id = 0;

  ncclConnInfo* from(int peer, int index) const { return &channel->peers[peer]->recv[index]; }
  ncclConnInfo* to(int peer, int index) const { return &channel->peers[peer]->send[index]; }

  /// After a look in vain; throws Aborted.
  void wait(Patience& patience) const {
    if (patience.looks() % 16 == 15 && comm->abortFlag != nullptr &&
        __atomic_load_n(comm->abortFlag, __ATOMIC_RELAXED) != 0) {
      throw Aborted();
    }
    patience.look_in_vain();
  }
  template <class Condition>
  void wait_until(Condition condition) const {
    for (Patience patience; !condition();) {
      wait(patience);
    }
  }
};

inline bool may_receive(const ncclConnInfo* conn, uint64_t step, int steps) {
  return load(conn->tail) >= step + static_cast<uint64_t>(steps);
}

inline bool may_send(const ncclConnInfo* conn, uint64_t step, int steps) {
  return load(conn->head) + NCCL_STEPS >= step + static_cast<uint64_t>(steps);
}

inline char* simple_slot(const ncclConnInfo* conn, uint64_t step) {
  char* base = conn->buffs[NCCL_PROTO_SIMPLE];
  if (conn->connFifo != nullptr) {
    auto* entry = conn->connFifo + step % NCCL_STEPS;
    if (__atomic_load_n(&entry->mode, __ATOMIC_RELAXED) == NCCL_MODE_OFFSET) {
      return base + __atomic_load_n(&entry->offset, __ATOMIC_ACQUIRE);
    }
  }
  return base + (step % NCCL_STEPS) * static_cast<uint64_t>(conn->stepSize);
}

inline void set_size(ncclConnInfo* conn, uint64_t step, size_t size) {
  if (conn->connFifo != nullptr) {
    __atomic_store_n(&conn->connFifo[step % NCCL_STEPS].size, static_cast<ssize_t>(size),
                     __ATOMIC_RELEASE);
  }
}

/// -1: the proxy is done with the step.
inline ssize_t size_of(const ncclConnInfo* conn, uint64_t step) {
  return __atomic_load_n(&conn->connFifo[step % NCCL_STEPS].size, __ATOMIC_ACQUIRE);
}

inline void write_line(ncclLLFifoLine* line, uint64_t data, uint32_t flag) {
  const uint64_t flags = static_cast<uint64_t>(flag) << 32;
  __atomic_store_n(&line->v[0], (data & 0xffffffffU) | flags, __ATOMIC_RELEASE);
  __atomic_store_n(&line->v[1], (data >> 32) | flags, __ATOMIC_RELEASE);
}

/// False as long as the line is not the step's.
inline bool read_line(const ncclLLFifoLine* line, uint32_t flag, uint64_t* data) {
  const uint64_t low = __atomic_load_n(&line->v[0], __ATOMIC_ACQUIRE);
  const uint64_t high = __atomic_load_n(&line->v[1], __ATOMIC_ACQUIRE);
  if (low >> 32 != flag || high >> 32 != flag) {
    return false;
  }
  *data = (low & 0xffffffffU) | (high << 32);
  return true;
}

/// A step's lines of protocol LL.
struct Lines {
  ncclLLFifoLine* first = nullptr;
  size_t count = 0;
};

inline Lines ll_slot(const Block& block, const ncclConnInfo* conn, uint64_t step) {
  const auto bytes = static_cast<size_t>(block.comm->buffSizes[NCCL_PROTO_LL]);
  const size_t count = bytes / NCCL_STEPS / sizeof(ncclLLFifoLine);
  auto* base = reinterpret_cast<ncclLLFifoLine*>(conn->buffs[NCCL_PROTO_LL]);
  return {base + (step % NCCL_STEPS) * count, count};
}

/// Now and then a step is sent as a whole, so that no old flag is taken for a new one.
inline bool ll_must_clean(uint64_t step) {
  return (step & NCCL_LL_CLEAN_MASK) == NCCL_LL_CLEAN_MASK;
}

}  // namespace nccl_ha::emulated
