#include <gtest/gtest.h>

#include <algorithm>

#include "actors/control.h"
#include "actors/immediate.h"
#include "runtime/random.h"

namespace nccl_ha {
namespace {

Hello sample_hello() {
  Hello hello;
  hello.nonce = 0x0123456789ABCDEF;
  hello.cts_address = 0x7F00;
  hello.cts_key = 3;
  hello.process = 4;
  hello.host = "node\n17";
  const std::array<std::byte, 72> bytes{std::byte{1}, std::byte{2}};
  hello.kind = fabric::FabricKind::verbs;
  hello.paths = {*PathAddress::from(bytes), *PathAddress::from(std::span(bytes).first(48))};
  return hello;
}

TEST(Control, MessagesRoundTripWhateverTheCuts) {
  Random random(8);
  std::vector<std::byte> stream = encode(sample_hello());
  Welcome welcome;
  welcome.host = "b";
  welcome.paths.emplace_back();
  for (const auto& more : {encode(welcome), encode(ControlType::failure, {Errc::remote, "why"}),
                           encode(CloseNotice{42})}) {
    stream.insert(stream.end(), more.begin(), more.end());
  }
  for (int round = 0; round < 200; ++round) {
    ControlReader reader;
    std::vector<ControlType> types;
    size_t offset = 0;
    while (offset < stream.size()) {
      const size_t take = std::min<size_t>(1 + random.below(50), stream.size() - offset);
      ASSERT_TRUE(reader.feed(std::span(stream).subspan(offset, take)));
      offset += take;
      while (const auto message = reader.next()) {
        types.push_back(message->type);
        if (message->type == ControlType::hello) {
          const auto hello = decode_hello(message->payload);
          ASSERT_TRUE(hello);
          EXPECT_EQ(hello->nonce, sample_hello().nonce);
          EXPECT_EQ(hello->host, "node?17") << "control characters do not reach a log";
          ASSERT_EQ(hello->paths.size(), 2U);
          EXPECT_EQ(hello->paths[0].length, 72);
          EXPECT_EQ(hello->paths[1].length, 48);
          EXPECT_EQ(hello->kind, fabric::FabricKind::verbs);
        } else if (message->type == ControlType::close) {
          EXPECT_EQ(decode_close(message->payload)->groups_completed, 42U);
        }
      }
    }
    EXPECT_EQ(types, (std::vector{ControlType::hello, ControlType::welcome, ControlType::failure,
                                  ControlType::close}));
    EXPECT_FALSE(reader.broken());
  }
}

TEST(Control, StrangersAreRecognisedAtTheFirstWrongByte) {
  ControlReader reader;
  const std::array<std::byte, 1> g{std::byte{'G'}};  // of "GET / HTTP/1.1"
  EXPECT_FALSE(reader.feed(g));
  EXPECT_TRUE(reader.broken());
  EXPECT_FALSE(reader.next());
}

TEST(Control, ImpossibleLengthsAndTypesBreakTheStream) {
  for (const size_t at : {4UL, 6UL}) {
    std::vector<std::byte> bytes = encode(CloseNotice{1});
    bytes[at] = std::byte{0xFF};
    bytes[at + 1] = std::byte{0xFF};
    ControlReader reader;
    static_cast<void>(reader.feed(bytes));
    EXPECT_FALSE(reader.next());
    EXPECT_TRUE(reader.broken()) << at;
  }
}

TEST(Control, AnotherVersionIsToldFromGarbage) {
  Hello hello = sample_hello();
  hello.version = control_version + 1;
  std::vector<std::byte> bytes = encode(hello);
  bytes.resize(bytes.size() + 20);  // its hello may look different behind the nonce
  const auto decoded = decode_hello(std::span(bytes).subspan(control_header_bytes));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->version, control_version + 1);
  EXPECT_EQ(decoded->nonce, hello.nonce);
}

TEST(Control, TruncatedAndPaddedPayloadsAreRefused) {
  const std::vector<std::byte> whole = encode(sample_hello());
  const auto payload = std::span(whole).subspan(control_header_bytes);
  ASSERT_TRUE(decode_hello(payload));
  for (size_t length = 0; length < payload.size(); ++length) {
    EXPECT_FALSE(decode_hello(payload.first(length))) << length;
  }
  std::vector<std::byte> longer(payload.begin(), payload.end());
  longer.push_back(std::byte{0});
  EXPECT_FALSE(decode_hello(longer));
}

TEST(Immediate, PacksWholeNumbersAndComparesThem) {
  for (const uint64_t group : {0ULL, 1ULL, 8191ULL, 8192ULL, 123456789ULL}) {
    const Immediate immediate{ImmediateKind::clear_to_send, static_cast<uint32_t>(group), 5};
    const Immediate back = Immediate::unpack(immediate.pack());
    EXPECT_EQ(back.kind, ImmediateKind::clear_to_send);
    EXPECT_EQ(back.position, 5U);
    EXPECT_TRUE(Immediate::same_group(back.group, group));
    EXPECT_FALSE(Immediate::same_group(back.group, group + 1));
    EXPECT_TRUE(Immediate::plain(immediate.pack()));
  }
  const Immediate chunk = Immediate::unpack(Immediate{ImmediateKind::data, 1, 2, 15, 15}.pack());
  EXPECT_EQ(chunk.chunk, 15U);
  EXPECT_EQ(chunk.last_chunk, 15U);
  EXPECT_FALSE(Immediate::plain(1U << 24)) << "an epoch";
}

}  // namespace
}  // namespace nccl_ha
