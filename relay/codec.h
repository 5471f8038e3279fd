// Reading and writing of packets: little-endian numbers, never behind the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/ip_address.h"
#include "runtime/fabric/byte_order.h"

namespace nccl_ha::relay {

/// Takes from the front.  Behind the end everything is 0 and good() is false for ever.
class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <class T>
  T take() {
    const std::span<const std::byte> from = take_bytes(sizeof(T));
    return from.empty() ? T{} : fabric::get<T>(from.data(), 0);
  }
  /// Empty where there are not so many.
  std::span<const std::byte> take_bytes(size_t bytes) {
    if (!good_ || rest_.size() < bytes) {
      good_ = false;
      return {};
    }
    const auto taken = rest_.first(bytes);
    rest_ = rest_.subspan(bytes);
    return taken;
  }
  /// As put_address() writes it.
  IpAddress take_address() {
    IpAddress address;
    address.family = take<uint8_t>();
    address.prefix_len = take<uint8_t>();
    const bool is_v6 = address.family == 6;
    const auto from = take_bytes(is_v6 ? 16 : 4);
    for (size_t i = 0; i < from.size(); ++i) {
      address.bytes[i] = static_cast<uint8_t>(from[i]);
    }
    if ((!is_v6 && address.family != 4) || address.prefix_len > (is_v6 ? 128 : 32)) {
      good_ = false;
    }
    return address;
  }
  std::string take_text(size_t length_max) {
    const size_t length = take<uint8_t>();
    if (length > length_max) {
      good_ = false;
    }
    const auto from = take_bytes(length);
    return {reinterpret_cast<const char*>(from.data()), from.size()};
  }
  bool good() const { return good_; }
  bool at_end() const { return rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
  bool good_ = true;
};

class WireWriter {
 public:
  template <class T>
  void put(T value) {
    const size_t at = bytes_.size();
    bytes_.resize(at + sizeof value);
    fabric::put(bytes_.data(), at, value);
  }
  void put_bytes(std::span<const std::byte> from) {
    bytes_.insert(bytes_.end(), from.begin(), from.end());
  }
  /// Family, prefix length, 4 or 16 bytes; the scope means nothing elsewhere.
  void put_address(const IpAddress& address) {
    put(address.family);
    put(address.prefix_len);
    put_bytes(std::as_bytes(std::span(address.bytes)).first(address.family == 6 ? 16 : 4));
  }
  /// At most 255 bytes of it.
  void put_text(std::string_view text) {
    const std::string_view part = text.substr(0, 255);
    put(static_cast<uint8_t>(part.size()));
    put_bytes(std::as_bytes(std::span(part)));
  }
  /// Writes over what is there.
  template <class T>
  void put_at(size_t offset, T value) {
    fabric::put(bytes_.data(), offset, value);
  }
  size_t size() const { return bytes_.size(); }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace nccl_ha::relay
