// The two floating-point types of 16 bits, for compilers and processors that lack them.
#pragma once

#include <bit>
#include <cstdint>

namespace nccl_ha::tools {

/// IEEE 754 binary16: 5 bits of exponent, 10 of fraction.
class Half {
 public:
  Half() = default;
  /// Rounds to the nearest, ties to even; too large becomes infinity.
  explicit Half(float value) : bits_(encode(value)) {}
  operator float() const { return decode(bits_); }  // NOLINT(google-explicit-constructor)

 private:
  static uint16_t encode(float value) {
    const auto from = std::bit_cast<uint32_t>(value);
    const uint32_t sign = (from >> 16) & 0x8000;
    const uint32_t size = from & 0x7fffffff;
    if (size >= 0x7f800000) {
      return static_cast<uint16_t>(sign | 0x7c00 | (size > 0x7f800000 ? 0x200 : 0));
    }
    if (size < 0x38800000) {
      // Below 2^-14 a half counts in steps of 2^-24: the sum below rounds to them, since a float
      // of 0.5 has the same steps.
      const float rounded = std::bit_cast<float>(size) + 0.5F;
      return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(rounded) - 0x3f000000));
    }
    const uint32_t rounded = size + 0xfff + ((size >> 13) & 1);
    const uint32_t half = (rounded - (112U << 23)) >> 13;
    return static_cast<uint16_t>(sign | (half < 0x7c00 ? half : 0x7c00));
  }
  static float decode(uint16_t bits) {
    const uint32_t sign = uint32_t{bits & 0x8000U} << 16;
    const uint32_t size = bits & 0x7fff;
    uint32_t out = (size << 13) + (112U << 23);
    if (size >= 0x7c00) {
      out = (size << 13) | 0x7f800000;
    } else if (size < 0x400) {
      out = std::bit_cast<uint32_t>(static_cast<float>(size) * 0x1p-24F);
    }
    return std::bit_cast<float>(sign | out);
  }

  uint16_t bits_ = 0;
};

/// The upper half of a float: 8 bits of exponent, 7 of fraction.
class Bfloat16 {
 public:
  Bfloat16() = default;
  /// Rounds to the nearest, ties to even.
  explicit Bfloat16(float value) {
    const auto from = std::bit_cast<uint32_t>(value);
    const bool nan = (from & 0x7fffffff) > 0x7f800000;
    bits_ = static_cast<uint16_t>(nan ? (from >> 16) | 0x40
                                      : (from + 0x7fff + ((from >> 16) & 1)) >> 16);
  }
  operator float() const {  // NOLINT(google-explicit-constructor)
    return std::bit_cast<float>(uint32_t{bits_} << 16);
  }

 private:
  uint16_t bits_ = 0;
};

}  // namespace nccl_ha::tools
