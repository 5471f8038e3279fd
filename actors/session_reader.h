// Takes the messages of a shared stream apart: each with the connection that it is of
// (docs/sessions.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "actors/control.h"

namespace nccl_ha {

/// Bounded memory; the first malformed message ends it for good.  One thread.
class SessionReader {
 public:
  struct Part {
    uint32_t connection = 0;  ///< 0: the first one
    ControlReader::Message message;
  };
  SessionReader() = default;
  /// Goes on with what was read of the stream already.
  explicit SessionReader(ControlReader begun) : reader_(std::move(begun)) {}

  /// Appends; false when the stream is not ours.
  bool feed(std::span<const std::byte> bytes) { return reader_.feed(bytes); }
  /// The next whole one; what it refers to is valid until the next call of feed() or next().
  std::optional<Part> next();
  bool broken() const { return malformed_ || reader_.broken(); }
  std::span<const std::byte> rest() const { return reader_.rest(); }

 private:
  ControlReader reader_;
  uint32_t named_ = 0;  ///< by `of`, for the next message
  bool malformed_ = false;
};

}  // namespace nccl_ha
