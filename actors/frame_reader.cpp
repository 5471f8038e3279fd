#include "actors/frame_reader.h"

#include <algorithm>
#include <cstring>

#include "actors/fields.h"

namespace nccl_ha {

bool FrameReader::feed(std::span<const std::byte> bytes) {
  if (broken_) {
    return false;
  }
  buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<ptrdiff_t>(consumed_));
  consumed_ = 0;
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  // Reject as early as the first wrong byte: a peer nobody knows must not make us wait for "the
  // rest".
  uint32_t magic = 0;
  const size_t have = std::min(buffer_.size(), sizeof magic);
  std::memcpy(&magic, buffer_.data(), have);
  const uint32_t mask = have == sizeof magic ? UINT32_MAX : (1U << (8 * have)) - 1;
  broken_ = (magic & mask) != (rules_.magic & mask) || buffer_.size() > 16 * rules_.payload_max;
  return !broken_;
}

std::optional<FrameReader::Frame> FrameReader::next() {
  const auto bytes = rest();
  if (broken_ || bytes.size() < header_bytes) {
    return std::nullopt;
  }
  FieldReader in(bytes.first(header_bytes));
  const auto magic = in.number<uint32_t>();
  const auto type = in.number<uint16_t>();
  const size_t length = in.number<uint16_t>();
  const auto number = in.number<uint64_t>();
  if (magic != rules_.magic || type == 0 || type > rules_.last_type ||
      length > rules_.payload_max) {
    broken_ = true;
    return std::nullopt;
  }
  if (bytes.size() < header_bytes + length) {
    return std::nullopt;
  }
  consumed_ += header_bytes + length;
  return Frame{type, number, bytes.subspan(header_bytes, length),
               bytes.first(header_bytes + length)};
}

}  // namespace nccl_ha
