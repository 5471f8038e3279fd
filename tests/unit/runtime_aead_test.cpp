#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/aead.h"

namespace nccl_ha {
namespace {

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

HashKey counting_key() {
  HashKey key;
  for (size_t i = 0; i < key.size(); ++i) {
    key[i] = static_cast<std::byte>(i);
  }
  return key;
}

TEST(AeadTest, WhatWasSealedOpensByNumberKeyAndBothParts) {
  const Aead aead(counting_key());
  const auto clear = bytes_of("header");
  const auto plain = bytes_of("payload of some length that is no multiple of sixteen");
  auto secret = plain;
  const Tag tag = aead.seal(7, clear, secret);
  EXPECT_NE(secret, plain);
  std::vector<std::byte> out(plain.size());
  ASSERT_TRUE(aead.open(7, clear, secret, tag, out.data()));
  EXPECT_EQ(out, plain);
  EXPECT_FALSE(aead.open(8, clear, secret, tag, out.data()));
  HashKey other = counting_key();
  other[31] ^= std::byte{1};
  EXPECT_FALSE(Aead(other).open(7, clear, secret, tag, out.data()));
  for (size_t i = 0; i < clear.size() + secret.size() + tag.size(); ++i) {
    auto wrong_clear = clear;
    auto wrong_secret = secret;
    Tag wrong_tag = tag;
    (i < clear.size()                   ? wrong_clear[i]
     : i < clear.size() + secret.size() ? wrong_secret[i - clear.size()]
                                        : wrong_tag[i - clear.size() - secret.size()]) ^=
        std::byte{0x10};
    EXPECT_FALSE(aead.open(7, wrong_clear, wrong_secret, wrong_tag, out.data())) << i;
  }
}

/// Of the library: tag() computes the same in pieces.
TEST(AeadTest, ATagOverPiecesIsThatOfOnePieceWithNothingSecret) {
  const Aead aead(counting_key());
  for (const size_t length : {0U, 1U, 15U, 16U, 17U, 64U, 1408U, 8999U}) {
    std::vector<std::byte> all(length);
    for (size_t i = 0; i < length; ++i) {
      all[i] = static_cast<std::byte>(i * 7);
    }
    for (const size_t cut : {size_t{0}, length / 3, length}) {
      const std::array<iovec, 2> parts{iovec{all.data(), cut},
                                       iovec{all.data() + cut, length - cut}};
      const Tag tag = aead.tag(length + 1, parts);
      EXPECT_EQ(tag, aead.seal(length + 1, all, {}));
      std::byte nothing{};
      EXPECT_TRUE(aead.open(length + 1, all, {}, tag, &nothing));
    }
  }
}

/// RFC 8439, 2.8.2, with the nonce's first four bytes zero as they are here: made with OpenSSL's
/// EVP_chacha20_poly1305 (key 00..1f, nonce 00000000 0700000000000000, "header", "payload").
TEST(AeadTest, AgreesWithAnotherImplementation) {
  const Aead aead(counting_key());
  auto secret = bytes_of("payload");
  const Tag tag = aead.seal(7, bytes_of("header"), secret);
  std::string hex;
  for (const std::byte one : secret) {
    char text[3];
    std::snprintf(text, sizeof text, "%02x", std::to_integer<unsigned>(one));
    hex += text;
  }
  hex += ' ';
  for (const std::byte one : tag) {
    char text[3];
    std::snprintf(text, sizeof text, "%02x", std::to_integer<unsigned>(one));
    hex += text;
  }
  EXPECT_EQ(hex, "816efd244d891e c304ce41ab91af4eaa4c52c16bdbf813");
}

}  // namespace
}  // namespace nccl_ha
