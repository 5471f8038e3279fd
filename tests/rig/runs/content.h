// What simulated messages hold: bytes that follow from their place, and bytes that nobody may
// write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

namespace nccl_ha::rig {

inline constexpr std::byte untouched{0xA5};

/// Of one message: from the seed of its connection, its group and its position there.
class Content {
 public:
  Content(uint64_t seed, uint64_t group, uint64_t position)
      : start_((seed * 0x9E3779B97F4A7C15 + group * 1000003 + position * 8191) | 1) {}

  void fill(std::span<std::byte> bytes) const {
    for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
      const uint64_t value = word(at);
      std::memcpy(bytes.data() + at, &value, std::min(sizeof value, bytes.size() - at));
    }
  }
  /// Where the first wrong byte is.
  std::optional<size_t> first_wrong(std::span<const std::byte> bytes) const {
    for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
      const uint64_t value = word(at);
      const size_t length = std::min(sizeof value, bytes.size() - at);
      if (std::memcmp(bytes.data() + at, &value, length) != 0) {
        const auto* right = reinterpret_cast<const std::byte*>(&value);
        size_t wrong = 0;
        while (bytes[at + wrong] == right[wrong]) {
          ++wrong;
        }
        return at + wrong;
      }
    }
    return std::nullopt;
  }

 private:
  uint64_t word(size_t at) const {
    uint64_t value = start_ + at * 0xD1B54A32D192ED03;
    value ^= value >> 29;
    return value * 0xBF58476D1CE4E5B9;
  }
  uint64_t start_;
};

inline bool is_untouched(std::span<const std::byte> bytes) {
  return bytes.empty() || (bytes[0] == untouched &&
                           std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

}  // namespace nccl_ha::rig
