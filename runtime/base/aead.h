// Tags, and where it is wanted encryption, by a key that two ends alone have: ChaCha20 and Poly1305
// (RFC 8439), of libsodium.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/base/keyed_hash.h"

namespace nccl_ha {

/// What both ends of a sealed stream know, and nobody else, for what they send beside it.
struct SharedKey {
  HashKey key{};
  bool encrypts = false;  ///< payload is encrypted as well
};

/// A key of one direction.  A number is used for one message only: with two of the same number
/// anybody can make tags for more.
class Aead {
 public:
  explicit Aead(const HashKey& key);

  /// Of what is sent in clear, in pieces.
  Tag tag(uint64_t number, std::span<const iovec> clear) const;
  /// Encrypts `secret` where it lies; `clear` goes with it as it is.
  Tag seal(uint64_t number, std::span<const std::byte> clear, std::span<std::byte> secret) const;
  /// Decrypts into `plain`, of the length of `secret`; false: somebody changed it, and `plain`
  /// holds nothing.  With nothing secret it checks what tag() made.
  bool open(uint64_t number, std::span<const std::byte> clear, std::span<const std::byte> secret,
            std::span<const std::byte, tag_bytes> tag, std::byte* plain) const;

 private:
  HashKey key_;
};

}  // namespace nccl_ha
