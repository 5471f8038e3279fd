// Protocol LL128: lines of 16 words, 15 of data and a flag that names the step.  A warp writes 16
// lines at a time, a pack, and its threads' order is the order of the data in it.
#pragma once

#include <bitops.h>
#include <device.h>

#include <array>
#include <cstdint>
#include <span>

#include "tests/nccl/emulated/kernels/block.h"

namespace nccl_ha::emulated {

constexpr size_t ll128_line_words = NCCL_LL128_LINEELEMS;
constexpr size_t ll128_flag_word = ll128_line_words - 1;
constexpr size_t ll128_pack_words = WARP_SIZE * NCCL_LL128_SHMEM_ELEMS_PER_THREAD;
constexpr size_t ll128_pack_lines = ll128_pack_words / ll128_line_words;
constexpr size_t ll128_pack_data = ll128_pack_lines * NCCL_LL128_DATAELEMS;

/// Where in a pack each of its words of data is.  A warp writes 4 lines at a time, each thread two
/// neighbouring words; a thread whose second word is a flag has its second word of data at the
/// same place 4 lines further, where it has no data of its own.
inline const std::array<uint16_t, ll128_pack_data>& ll128_places() {
  static const auto places = [] {
    std::array<uint16_t, ll128_pack_data> all{};
    constexpr size_t round = 2 * WARP_SIZE;
    size_t at = 0;
    for (size_t base = 0; base < ll128_pack_words; base += round) {
      const bool even = base / round % 2 == 0;
      for (size_t word = base; word < base + round; word += 2) {
        const bool flagged = (word + 1) % ll128_line_words == ll128_flag_word;
        if (flagged && !even) {
          continue;
        }
        all[at++] = static_cast<uint16_t>(word);
        all[at++] = static_cast<uint16_t>(flagged ? word + round : word + 1);
      }
    }
    return all;
  }();
  return places;
}

/// A step's first word.
inline uint64_t* ll128_slot(const Block& block, const ncclConnInfo* conn, uint64_t step) {
  const auto bytes = static_cast<size_t>(block.comm->buffSizes[NCCL_PROTO_LL128]);
  auto* base = reinterpret_cast<uint64_t*>(conn->buffs[NCCL_PROTO_LL128]);
  return base + (step % NCCL_STEPS) * (bytes / NCCL_STEPS / sizeof(uint64_t));
}

inline void write_flags128(uint64_t* pack, uint64_t flag) {
  for (size_t line = 0; line < ll128_pack_lines; ++line) {
    store(pack + line * ll128_line_words + ll128_flag_word, flag);
  }
}

inline void write_pack128(uint64_t* pack, std::span<const uint64_t, ll128_pack_data> data,
                          uint64_t flag) {
  for (size_t i = 0; i < ll128_pack_data; ++i) {
    __atomic_store_n(pack + ll128_places()[i], data[i], __ATOMIC_RELAXED);
  }
  write_flags128(pack, flag);
}

/// False as long as one of the lines is not the step's.
inline bool read_pack128(const uint64_t* pack, uint64_t flag,
                         std::span<uint64_t, ll128_pack_data> data) {
  for (size_t line = 0; line < ll128_pack_lines; ++line) {
    if (load(pack + line * ll128_line_words + ll128_flag_word) != flag) {
      return false;
    }
  }
  for (size_t i = 0; i < ll128_pack_data; ++i) {
    data[i] = __atomic_load_n(pack + ll128_places()[i], __ATOMIC_RELAXED);
  }
  return true;
}

}  // namespace nccl_ha::emulated
