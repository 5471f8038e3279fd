// A file of counters in the reader's own memory.
//
// It is read and never mapped: it may belong to another user, who cuts it short meanwhile, and a
// mapping of what is gone ends the process that touches it (SIGBUS).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/telemetry/counter_layout.h"
#include "runtime/telemetry/counter_reader.h"

namespace nccl_ha {

class CounterBytes {
 public:
  /// Of this user: with as many blocks as a setting allows, and flight recorders.
  static constexpr uint64_t own_bytes_max = uint64_t{512} << 20;
  /// Of others: the counters of 160,000 connections and paths.
  static constexpr uint64_t foreign_bytes_max = uint64_t{64} << 20;

  /// What the file says, as of now.  Its process may write to it: what changes meanwhile is marked
  /// as being written, which readers leave out.  Without events, flight recorders are left out.
  static Result<CounterBytes> read(int fd, EventsWanted events);
  /// Aligned as a mapping is; a file of that layout.
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(lines_)).first(size_); }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  CounterBytes(int fd, size_t size);
  void settle_blocks(int fd, const CounterBytes& later, const counter_layout::Section& blocks);
  void settle_rings(const CounterBytes& later, const counter_layout::Section& rings);
  bool changed(const CounterBytes& later, uint64_t offset) const;
  bool holds(uint64_t offset, uint64_t size) const {
    return offset % sizeof(uint64_t) == 0 && offset <= size_ && size <= size_ - offset;
  }
  std::byte* at(uint64_t offset) { return reinterpret_cast<std::byte*>(lines_.data()) + offset; }

  std::vector<Line> lines_;
  size_t size_ = 0;
};

}  // namespace nccl_ha
