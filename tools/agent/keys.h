// Keys that telemetry is authenticated with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "runtime/base/key_ring.h"
#include "runtime/base/result.h"

namespace nccl_ha::tools {

/// HMAC-SHA-512-256, libsodium's crypto_auth.
class TelemetryKeys {
 public:
  TelemetryKeys() = default;
  explicit TelemetryKeys(KeyRing keys) : keys_(std::move(keys)) {}
  /// See KeyRing.
  static Result<TelemetryKeys> read(const std::string& path);
  /// Writes a new file with one new key, which only its owner may read.
  static Result<void> make(const std::string& path);

  bool empty() const { return keys_.size() == 0; }
  /// The one with the largest number, to sign with; 0: there is none.
  uint32_t newest() const { return keys_.newest(); }
  /// In the same time whatever the tag.
  bool verify(uint32_t key, std::span<const std::byte> covered,
              std::span<const std::byte> tag) const;
  /// Puts the tag into the last bytes of a datagram.  The key is known.
  void sign(uint32_t key, std::span<std::byte> datagram) const;

 private:
  KeyRing keys_;
};

}  // namespace nccl_ha::tools
