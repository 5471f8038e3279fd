// Keys that telemetry is authenticated with.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "runtime/base/result.h"

namespace nccl_ha::tools {

/// HMAC-SHA-512-256, libsodium's crypto_auth.
class TelemetryKeys {
 public:
  static constexpr size_t key_bytes = 32;
  using Key = std::array<unsigned char, key_bytes>;

  /// A file of lines "NUMBER HEX", of 64 digits; # begins a comment.  Others than its owner must
  /// not be able to read it.
  static Result<TelemetryKeys> read(const std::string& path);
  /// Writes a new file with one new key, which only its owner may read.
  static Result<void> make(const std::string& path);

  bool empty() const { return keys_.empty(); }
  /// The one with the largest number, to sign with; 0: there is none.
  uint32_t newest() const { return keys_.empty() ? 0 : keys_.rbegin()->first; }
  /// In the same time whatever the tag.
  bool verify(uint32_t key, std::span<const std::byte> covered,
              std::span<const std::byte> tag) const;
  /// Puts the tag into the last bytes of a datagram.  The key is known.
  void sign(uint32_t key, std::span<std::byte> datagram) const;
  void add(uint32_t number, const Key& key) { keys_[number] = key; }

 private:
  std::map<uint32_t, Key> keys_;
};

}  // namespace nccl_ha::tools
