#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <memory>

#include "actors/connection/shadow_keys.h"

namespace nccl_ha {
namespace {

using Words = std::array<uint64_t, 8>;

CtsEntry entry_of(uint64_t group, uint8_t position, uint32_t key, uint32_t epoch,
                  size_t shadow = 0) {
  CtsEntry entry{};
  entry.group = group;
  entry.address = 0x7F0000001000;
  entry.size = 4096;
  entry.key = 17;
  entry.count = 2;
  entry.position = position;
  entry.shadow_keys[shadow] = key;
  entry.shadow_epochs[shadow] = static_cast<uint16_t>(epoch);
  entry.seal();
  return entry;
}

TEST(ShadowKeys, AKeyIsForOnePathOnly) {
  ShadowKeyTable book;
  EXPECT_EQ(book.key(5, 0, 0, 1), 0U);
  book.note(5, std::array{entry_of(5, 0, 40, 1), entry_of(5, 1, 41, 1)});
  EXPECT_EQ(book.key(5, 0, 0, 1), 40U);
  EXPECT_EQ(book.key(5, 1, 0, 1), 41U);
  EXPECT_EQ(book.key(5, 0, 0, 2), 0U);
  EXPECT_EQ(book.key(5 + cts_slots, 0, 0, 1), 0U);
  book.note(5 + cts_slots, std::array{entry_of(5 + cts_slots, 0, 42, 2)});
  EXPECT_EQ(book.key(5 + cts_slots, 0, 0, 2), 42U);
  EXPECT_EQ(book.key(5 + cts_slots, 1, 0, 1), 0U) << "of the group that had the slot before";
  EXPECT_EQ(book.key(5, 0, 0, 1), 0U);
}

TEST(ShadowKeys, EachShadowHasAKeyOfItsOwn) {
  ShadowKeyTable book;
  CtsEntry entry = entry_of(1, 0, 40, 3);
  entry.shadow_keys[2] = 42;
  entry.shadow_epochs[2] = 9;
  entry.seal();
  book.note(1, std::array{entry});
  EXPECT_EQ(book.key(1, 0, 0, 3), 40U);
  EXPECT_EQ(book.key(1, 0, 1, 0), 0U);
  EXPECT_EQ(book.key(1, 0, 2, 9), 42U);
  EXPECT_EQ(book.key(1, 0, 2, 3), 0U);
}

TEST(ShadowKeys, AnEpochIsComparedWhole) {
  ShadowKeyTable book;
  book.note(1, std::array{entry_of(1, 0, 40, 3)});
  EXPECT_EQ(book.key(1, 0, 0, 3 + 256), 0U);
}

/// A NIC may have written any words of the later announcement when the earlier one is looked at.
TEST(ShadowKeys, AMixtureOfTwoAnnouncementsTellsNothing) {
  const CtsEntry earlier = entry_of(7, 0, 40, 1);
  const CtsEntry later = entry_of(7, 0, 41, 2);
  unsigned mixtures = 0;
  for (unsigned arrived = 0; arrived < 32; ++arrived) {
    // Words of 4 bytes: key and epoch share one of 8.
    std::array<uint32_t, 16> words{};
    const auto before = std::bit_cast<std::array<uint32_t, 16>>(earlier);
    const auto after = std::bit_cast<std::array<uint32_t, 16>>(later);
    for (size_t i = 0; i < words.size(); ++i) {
      // Of the words that differ, each by itself.
      const size_t bit = i == 8 ? 0 : i == 9 ? 1 : i == 14 ? 2 : i == 15 ? 3 : 4;
      words[i] = (arrived >> bit & 1U) != 0 ? after[i] : before[i];
    }
    const auto live = std::bit_cast<CtsEntry>(words);
    mixtures += words != before && words != after ? 1 : 0;
    ShadowKeyTable book;
    book.note(7, std::span(&live, 1));
    const uint32_t for_earlier = book.key(7, 0, 0, 1);
    const uint32_t for_later = book.key(7, 0, 0, 2);
    EXPECT_EQ(for_earlier, words == before ? 40U : 0U) << arrived;
    EXPECT_EQ(for_later, words == after ? 41U : 0U) << arrived;
    // The announcement that was under way comes whole.
    book.note(7, std::span(&later, 1));
    EXPECT_EQ(book.key(7, 0, 0, 2), 41U);
  }
  EXPECT_GT(mixtures, 10U);
}

TEST(ShadowKeys, AGroupOfWhichAPartIsNewIsTakenByPosition) {
  ShadowKeyTable book;
  book.note(9, std::array{entry_of(9, 0, 51, 2), entry_of(9, 1, 40, 1)});
  EXPECT_EQ(book.key(9, 0, 0, 2), 51U);
  EXPECT_EQ(book.key(9, 1, 0, 2), 0U) << "a key of the path before";
}

}  // namespace
}  // namespace nccl_ha
