#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "actors/fields.h"
#include "actors/frame_reader.h"

namespace nccl_ha {
namespace {

constexpr FrameReader::Rules frame_rules{0x11223344, 3, 8};

std::vector<std::byte> frame_of(uint32_t magic, uint16_t type, uint16_t length, size_t payload) {
  FieldWriter out;
  out.number(magic);
  out.number(type);
  out.number(length);
  out.number(uint64_t{42});
  out.raw(std::string(payload, 'x'));
  return out.take();
}

TEST(FrameReader, TakesFramesThatComeByteByByte) {
  FrameReader reader(frame_rules);
  const auto bytes = frame_of(frame_rules.magic, 3, 8, 8);
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < bytes.size(); ++i) {
      EXPECT_FALSE(reader.next());
      ASSERT_TRUE(reader.feed(std::span(bytes).subspan(i, 1)));
    }
    const auto frame = reader.next();
    ASSERT_TRUE(frame);
    EXPECT_EQ(frame->type, 3);
    EXPECT_EQ(frame->number, 42U);
    EXPECT_EQ(frame->payload.size(), 8U);
  }
}

TEST(FrameReader, RefusesTheFirstWrongByteOfTheMagic) {
  FrameReader reader(frame_rules);
  EXPECT_TRUE(reader.feed(std::array{std::byte{0x44}}));
  EXPECT_FALSE(reader.feed(std::array{std::byte{0x34}}));
  EXPECT_TRUE(reader.broken());
  EXPECT_FALSE(reader.feed(frame_of(frame_rules.magic, 1, 0, 0))) << "broken for good";
}

TEST(FrameReader, RefusesTypesAndLengthsThatThereAreNot) {
  for (const auto& bytes :
       {frame_of(frame_rules.magic, 0, 0, 0), frame_of(frame_rules.magic, 4, 0, 0),
        frame_of(frame_rules.magic, 1, 9, 9)}) {
    FrameReader reader(frame_rules);
    ASSERT_TRUE(reader.feed(bytes));
    EXPECT_FALSE(reader.next());
    EXPECT_TRUE(reader.broken());
  }
}

TEST(FrameReader, KeepsNoMoreThanSomeFramesThatNobodyTakes) {
  FrameReader reader(frame_rules);
  size_t fed = 0;
  while (reader.feed(frame_of(frame_rules.magic, 1, 8, 8))) {
    fed += FrameReader::header_bytes + 8;
    ASSERT_LE(fed, 16 * frame_rules.payload_max);
  }
  EXPECT_GT(fed, 0U);
}

}  // namespace
}  // namespace nccl_ha
