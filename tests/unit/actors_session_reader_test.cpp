// The messages of a stream that connections share.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "actors/session_reader.h"

namespace nccl_ha {
namespace {

using FrameBytes = std::vector<std::byte>;

FrameBytes session_stream_of(std::initializer_list<FrameBytes> frames) {
  FrameBytes all;
  for (const FrameBytes& frame : frames) {
    all.insert(all.end(), frame.begin(), frame.end());
  }
  return all;
}

/// "connection:type" of each message.
std::string session_parts_of(SessionReader& reader) {
  std::string text;
  while (const auto part = reader.next()) {
    text += std::to_string(part->connection) + ":" +
            std::to_string(static_cast<unsigned>(part->message.type)) + " ";
  }
  return text;
}

TEST(SessionReader, EachMessageIsOfTheConnectionThatIsNamedBeforeIt) {
  const FrameBytes bytes =
      session_stream_of({encode_share(), encode_of(7), encode_ask(), encode_confirm(),
                         encode_of(UINT32_MAX), encode_over()});
  for (size_t piece = 1; piece <= bytes.size(); ++piece) {
    SessionReader reader;
    std::string heard;
    for (size_t at = 0; at < bytes.size(); at += piece) {
      ASSERT_TRUE(reader.feed(std::span(bytes).subspan(at, std::min(piece, bytes.size() - at))));
      heard += session_parts_of(reader);
    }
    EXPECT_EQ(heard, "0:20 7:17 0:11 4294967295:22 ") << "in pieces of " << piece;
    EXPECT_FALSE(reader.broken());
  }
}

TEST(SessionReader, AMessageIsGivenOutWholeAsItCame) {
  const FrameBytes close = encode(CloseNotice{12, 3});
  SessionReader reader;
  ASSERT_TRUE(reader.feed(session_stream_of({encode_of(1), close})));
  const auto part = reader.next();
  ASSERT_TRUE(part);
  EXPECT_TRUE(std::ranges::equal(part->message.bytes, close));
}

TEST(SessionReader, GoesOnWithWhatWasReadBefore) {
  ControlReader begun;
  ASSERT_TRUE(begun.feed(session_stream_of({encode_confirm(), encode_of(3), encode_ask()})));
  ASSERT_TRUE(begun.next());
  SessionReader reader(std::move(begun));
  EXPECT_EQ(session_parts_of(reader), "3:17 ");
}

TEST(SessionReader, MalformedNamesEndTheStream) {
  FrameBytes with_payload = encode(CloseNotice{});
  with_payload[4] = static_cast<std::byte>(ControlType::of);
  set_numbers(with_payload, 1, 0);
  const std::pair<const char*, FrameBytes> cases[] = {
      {"no connection", encode_of(0)},
      {"two in a row", session_stream_of({encode_of(1), encode_of(2)})},
      {"more than a number", with_payload},
      {"shared inside", session_stream_of({encode_of(1), encode_share()})},
  };
  for (const auto& [what, bytes] : cases) {
    SessionReader reader;
    ASSERT_TRUE(reader.feed(session_stream_of({bytes, encode_ask()})));
    EXPECT_EQ(session_parts_of(reader), "") << what;
    EXPECT_TRUE(reader.broken()) << what;
  }
}

}  // namespace
}  // namespace nccl_ha
