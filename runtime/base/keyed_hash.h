// Hashes that only who has a key can make: BLAKE2b with a key (RFC 7693), of libsodium.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

#include "runtime/base/key_ring.h"

namespace nccl_ha {

inline constexpr size_t tag_bytes = 16;
using HashKey = KeyRing::Key;
using Tag = std::array<std::byte, tag_bytes>;

/// The fastest implementation for this processor, once for the process; results are the same
/// without.
void choose_sodium();

/// `purpose`, a constant of a length of its own for each use, keeps one use's tags from another's.
Tag make_tag(const HashKey& key, std::string_view purpose, std::span<const std::byte> first,
             std::span<const std::byte> second = {});
/// In the same time whatever `tag` is.
bool same_tag(const Tag& expected, std::span<const std::byte> tag);
/// A key for one use out of another key.
HashKey derive_key(const HashKey& key, std::string_view purpose, std::span<const std::byte> first,
                   std::span<const std::byte> second = {});

}  // namespace nccl_ha
