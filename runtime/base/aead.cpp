#include "runtime/base/aead.h"

#include <sodium.h>

#include <array>
#include <cstring>

namespace nccl_ha {
namespace {

static_assert(sizeof(HashKey) == crypto_aead_chacha20poly1305_ietf_KEYBYTES &&
              tag_bytes == crypto_aead_chacha20poly1305_ietf_ABYTES);

using Nonce = std::array<unsigned char, crypto_aead_chacha20poly1305_ietf_NPUBBYTES>;

Nonce nonce_of(uint64_t number) {
  Nonce nonce{};
  std::memcpy(nonce.data() + nonce.size() - sizeof number, &number, sizeof number);
  return nonce;
}

// The library takes no null pointers, of nothing either.
unsigned char* octets(std::byte* bytes) {
  static unsigned char nothing;
  return bytes != nullptr ? reinterpret_cast<unsigned char*>(bytes) : &nothing;
}
const unsigned char* octets(const std::byte* bytes) {
  static constexpr unsigned char nothing = 0;
  return bytes != nullptr ? reinterpret_cast<const unsigned char*>(bytes) : &nothing;
}

}  // namespace

Aead::Aead(const HashKey& key) : key_(key) { choose_sodium(); }

/// RFC 8439, 2.8, with all of it as additional data and no text, so that open() takes it.
Tag Aead::tag(uint64_t number, std::span<const iovec> clear) const {
  const Nonce nonce = nonce_of(number);
  std::array<unsigned char, crypto_onetimeauth_KEYBYTES> once;
  crypto_stream_chacha20_ietf(once.data(), once.size(), nonce.data(), octets(key_.data()));
  crypto_onetimeauth_state state;
  crypto_onetimeauth_init(&state, once.data());
  uint64_t length = 0;
  for (const iovec& part : clear) {
    crypto_onetimeauth_update(&state, static_cast<const unsigned char*>(part.iov_base),
                              part.iov_len);
    length += part.iov_len;
  }
  // To a multiple of 16, then both lengths.
  std::array<unsigned char, 32> end{};
  const size_t padding = (16 - length % 16) % 16;
  std::memcpy(end.data() + padding, &length, sizeof length);
  crypto_onetimeauth_update(&state, end.data(), padding + 2 * sizeof length);
  Tag tag;
  crypto_onetimeauth_final(&state, octets(tag.data()));
  return tag;
}

Tag Aead::seal(uint64_t number, std::span<const std::byte> clear,
               std::span<std::byte> secret) const {
  const Nonce nonce = nonce_of(number);
  Tag tag;
  crypto_aead_chacha20poly1305_ietf_encrypt_detached(
      octets(secret.data()), octets(tag.data()), nullptr, octets(secret.data()), secret.size(),
      octets(clear.data()), clear.size(), nullptr, nonce.data(), octets(key_.data()));
  return tag;
}

bool Aead::open(uint64_t number, std::span<const std::byte> clear,
                std::span<const std::byte> secret, std::span<const std::byte, tag_bytes> tag,
                std::byte* plain) const {
  const Nonce nonce = nonce_of(number);
  return crypto_aead_chacha20poly1305_ietf_decrypt_detached(
             octets(plain), nullptr, octets(secret.data()), secret.size(), octets(tag.data()),
             octets(clear.data()), clear.size(), nonce.data(), octets(key_.data())) == 0;
}

}  // namespace nccl_ha
