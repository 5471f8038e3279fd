#include "runtime/base/keyed_hash.h"

#include <sodium.h>

#include "runtime/base/random.h"

namespace nccl_ha {
namespace {

static_assert(sizeof(HashKey) >= crypto_generichash_KEYBYTES_MIN &&
              sizeof(HashKey) <= crypto_generichash_KEYBYTES_MAX &&
              tag_bytes >= crypto_generichash_BYTES_MIN);

const unsigned char* octets(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

void keyed_hash(const HashKey& key, std::string_view purpose, std::span<const std::byte> first,
                std::span<const std::byte> second, std::span<std::byte> out) {
  choose_sodium();
  crypto_generichash_state state;
  crypto_generichash_init(&state, octets(key), key.size(), out.size());
  for (const auto part : {std::as_bytes(std::span(purpose)), first, second}) {
    crypto_generichash_update(&state, octets(part), part.size());
  }
  crypto_generichash_final(&state, reinterpret_cast<unsigned char*>(out.data()), out.size());
}

}  // namespace

void choose_sodium() {
  // Where sodium_init() finds no random bytes it ends the process.
  static const bool chosen = [] {
    char byte = 0;
    return os_random(&byte, 1).ok() && sodium_init() >= 0;
  }();
  static_cast<void>(chosen);
}

Tag make_tag(const HashKey& key, std::string_view purpose, std::span<const std::byte> first,
             std::span<const std::byte> second) {
  Tag tag;
  keyed_hash(key, purpose, first, second, tag);
  return tag;
}

bool same_tag(const Tag& expected, std::span<const std::byte> tag) {
  return tag.size() == expected.size() &&
         sodium_memcmp(expected.data(), tag.data(), expected.size()) == 0;
}

HashKey derive_key(const HashKey& key, std::string_view purpose, std::span<const std::byte> first,
                   std::span<const std::byte> second) {
  HashKey derived;
  keyed_hash(key, purpose, first, second, derived);
  return derived;
}

}  // namespace nccl_ha
