// Takes messages out of a stream of bytes, as control streams and those of the transport agent
// frame them:
//
//   0 u32 magic   4 u16 type, from 1   6 u16 length of what follows the header   8 u64 of the
//   message
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace nccl_ha {

/// One thread.
class FrameReader {
 public:
  static constexpr size_t header_bytes = 16;
  struct Rules {
    uint32_t magic;
    uint16_t last_type;
    size_t payload_max;
  };
  struct Frame {
    uint16_t type;
    uint64_t number;
    std::span<const std::byte> payload;
    std::span<const std::byte> bytes;  ///< all of it, header included
  };

  explicit FrameReader(const Rules& rules) : rules_(rules) {}
  /// Appends; false when the stream is not ours (wrong magic, type or length).
  bool feed(std::span<const std::byte> bytes);
  /// The next whole one; its payload is valid until the next call of feed() or next().
  std::optional<Frame> next();
  bool broken() const { return broken_; }
  /// What next() has not given out; valid as a payload is.
  std::span<const std::byte> rest() const { return std::span(buffer_).subspan(consumed_); }

 private:
  Rules rules_;
  std::vector<std::byte> buffer_;
  size_t consumed_ = 0;
  bool broken_ = false;
};

}  // namespace nccl_ha
