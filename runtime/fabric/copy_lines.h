// Copying a payload to its place while somebody looks at the place.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace nccl_ha::fabric {

/// A line of NCCL's protocol LL128: its last 8 bytes say that the others are there.  Segments end
/// on lines.
inline constexpr uint32_t line_bytes = 128;
inline constexpr uint32_t line_flag_bytes = 8;

/// What was stored before is seen by whoever sees what is stored after it.
inline void order_stores() {
#if defined(__SANITIZE_THREAD__)
  std::atomic_signal_fence(std::memory_order_release);  // it knows no other, and is for x86 here
#else
  std::atomic_thread_fence(std::memory_order_release);
#endif
}

/// As memcpy(), and whoever sees the end of a line sees all of it: lines are counted from `to`.
/// memcpy() itself goes in any order, also from the end to the beginning.
inline void copy_lines(std::byte* to, const std::byte* from, size_t bytes) {
  constexpr size_t data = line_bytes - line_flag_bytes;
  for (; bytes >= line_bytes; to += line_bytes, from += line_bytes, bytes -= line_bytes) {
    std::memcpy(to, from, data);
    order_stores();
    std::memcpy(to + data, from + data, line_flag_bytes);
  }
  std::memcpy(to, from, bytes);
}

}  // namespace nccl_ha::fabric
