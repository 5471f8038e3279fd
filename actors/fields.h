// Fields of messages one after the other: written, and read with their bounds checked.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "ha/flow.h"

namespace nccl_ha {

class FieldWriter {
 public:
  template <class T>
  void number(T value) {
    static_assert(std::is_integral_v<T>);
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    out_.insert(out_.end(), bytes, bytes + sizeof value);
  }
  /// Cut at `max`.
  void text(std::string_view value, size_t max) {
    const size_t length = std::min(value.size(), max);
    number(static_cast<uint16_t>(length));
    raw(value.substr(0, length));
  }
  void raw(std::string_view value) {
    const auto* bytes = reinterpret_cast<const std::byte*>(value.data());
    out_.insert(out_.end(), bytes, bytes + value.size());
  }
  void address(const ha::HostAddress& address) {
    number(address.family);
    for (const uint8_t byte : address.bytes) {
      number(byte);
    }
  }
  /// Over what was written there before.
  template <class T>
  void put(size_t offset, T value) {
    std::memcpy(out_.data() + offset, &value, sizeof value);
  }
  size_t size() const { return out_.size(); }
  std::vector<std::byte> take() { return std::move(out_); }

 private:
  std::vector<std::byte> out_;
};

/// After the first field that is not there everything is 0.
class FieldReader {
 public:
  explicit FieldReader(std::span<const std::byte> in) : in_(in) {}
  template <class T>
  T number() {
    static_assert(std::is_integral_v<T>);
    T value{};
    if (in_.size() < sizeof value) {
      refuse();
      return value;
    }
    std::memcpy(&value, in_.data(), sizeof value);
    in_ = in_.subspan(sizeof value);
    return value;
  }
  /// A number that is less.
  template <class T>
  T below(T end) {
    const T value = number<T>();
    if (value >= end) {
      refuse();
      return T{};
    }
    return value;
  }
  /// At most so many bytes; what a terminal would act on becomes a question mark.
  std::string text(size_t max) {
    const size_t length = number<uint16_t>();
    if (length > max || length > in_.size()) {
      refuse();
      return {};
    }
    std::string result(reinterpret_cast<const char*>(in_.data()), length);
    in_ = in_.subspan(length);
    std::replace_if(
        result.begin(), result.end(),
        [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }, '?');
    return result;
  }
  /// An IPv4 or IPv6 address, or, with `any`, none.
  ha::HostAddress address(bool any = false) {
    ha::HostAddress address;
    address.family = number<uint8_t>();
    for (uint8_t& byte : address.bytes) {
      byte = number<uint8_t>();
    }
    const bool known = address.family == 4 || address.family == 6 || (any && address.family == 0);
    const size_t used = address.family == 6 ? 16 : address.family == 4 ? 4 : 0;
    const bool padded = std::all_of(address.bytes.begin() + static_cast<ptrdiff_t>(used),
                                    address.bytes.end(), [](uint8_t byte) { return byte == 0; });
    if (!known || !padded) {
      refuse();
      return {};
    }
    return address;
  }
  bool good() const { return good_; }
  /// Everything was there, and nothing is left.
  bool done() const { return good_ && in_.empty(); }
  size_t left() const { return in_.size(); }

 private:
  void refuse() {
    good_ = false;
    in_ = {};
  }

  std::span<const std::byte> in_;
  bool good_ = true;
};

}  // namespace nccl_ha
