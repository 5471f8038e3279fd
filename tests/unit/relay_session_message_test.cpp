#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "relay/frame.h"
#include "relay/session_message.h"
#include "runtime/fabric/byte_order.h"

namespace nccl_ha::relay {
namespace {

Ticket a_ticket() {
  Ticket ticket{3, NodeId{4}, 5, 6, {}};
  ticket.id.fill(std::byte{7});
  return ticket;
}

SetupRequest long_request() {
  SetupRequest request;
  request.session = 77;
  request.place = 1;
  for (uint64_t i = 0; i < route_nodes_max; ++i) {
    request.nodes.push_back(NodeId{i + 1});
  }
  request.port = 4711;
  request.token = Secret::heard(99);
  request.ticket = a_ticket();
  request.chunk_bytes = 65536;
  request.window = {4096, 3, 65536 + frame_header_bytes, 16};
  request.hop_address.resize(fabric::path_address_max, std::byte{7});
  return request;
}

SetupAck an_ack() {
  SetupAck ack;
  ack.chunk_bytes = 65536;
  ack.window = {4096, 3, 65536 + frame_header_bytes, 16};
  ack.hop_address.resize(72);
  return ack;
}

TEST(SessionMessages, EachSurvivesTheWire) {
  const std::vector<SessionMessage> all{
      long_request(),
      an_ack(),
      SetupRefusal{fabric::CompletionStatus::remote_access, 5, std::string(255, 'x')},
      SessionLinkDown{std::string(255, 'x')},
      SessionPing{},
      SessionKeyQuestion{7},
      SessionKey{7, 9},
      SessionHello{a_ticket(), {}, true}};
  for (const SessionMessage& message : all) {
    const auto bytes = encode(message);
    EXPECT_LE(bytes.size(), session_message_max);
    EXPECT_EQ(*session_message_length(bytes), bytes.size());
    const auto decoded = decode_session_message(bytes);
    ASSERT_TRUE(decoded) << decoded.error().message();
    EXPECT_EQ(decoded->index(), message.index());
    EXPECT_EQ(encode(*decoded), bytes);
    for (size_t length = 0; length < bytes.size(); ++length) {
      std::vector<std::byte> part(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(length));
      EXPECT_FALSE(decode_session_message(part));
      if (length >= session_header_bytes) {
        fabric::put(part.data(), 6, static_cast<uint16_t>(length));
        EXPECT_FALSE(decode_session_message(part));
      }
    }
  }
}

/// Else the fuzzer would begin with what is refused at its header (tests/fuzz/make_corpus.py).
TEST(SessionMessages, TheSeedsOfTheFuzzerAreOfThisVersion) {
  const auto seed = [](const char* name) {
    std::ifstream file(std::string(NHA_SOURCE_DIR "/tests/fuzz/corpus/session/") + name,
                       std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
    return std::vector<std::byte>(bytes, bytes + text.size());
  };
  for (const char* name :
       {"request", "ack", "refusal", "ping", "hello", "link_down", "key_question", "key"}) {
    EXPECT_TRUE(decode_session_message(seed(name))) << name;
  }
  EXPECT_TRUE(decode_endpoint(seed("endpoint")));
}

TEST(SessionMessages, NumbersOutOfRangeAreRefused) {
  const auto refused = [](const auto& change) {
    SetupRequest request = long_request();
    change(request);
    return !decode_session_message(encode(request));
  };
  EXPECT_TRUE(refused([](SetupRequest& request) { request.place = 0; })) << "the origin itself";
  EXPECT_TRUE(refused([](SetupRequest& request) { request.place = route_nodes_max; }));
  EXPECT_TRUE(refused([](SetupRequest& request) { request.nodes.resize(2); })) << "no relay";
  EXPECT_TRUE(refused([](SetupRequest& request) { request.chunk_bytes = chunk_bytes_min - 1; }));
  EXPECT_TRUE(refused([](SetupRequest& request) { request.chunk_bytes = chunk_bytes_max + 1; }));
  EXPECT_TRUE(refused([](SetupRequest& request) { --request.window.slot_bytes; })) << "too small";
  EXPECT_TRUE(refused([](SetupRequest& request) { request.window.slots = slots_min - 1; }));
  EXPECT_TRUE(refused([](SetupRequest& request) { request.window.slots = slots_max + 1; }));
  EXPECT_TRUE(refused([](SetupRequest& request) { request.hop_address.clear(); }));
  EXPECT_TRUE(refused([](SetupRequest& request) { request.hop_address.resize(513); }));
  EXPECT_FALSE(refused([](SetupRequest& request) { request.place = 2; })) << "that is right";
  EXPECT_FALSE(decode_session_message(
      encode(SetupRefusal{fabric::CompletionStatus{200}, 0, "of no status"})));
}

TEST(SessionMessages, TextsOfOthersArePrintable) {
  const std::string text = "a\x1b[2J\nb\x7f\xff c";
  const auto refusal =
      decode_session_message(encode(SetupRefusal{fabric::CompletionStatus::flushed, 0, text}));
  ASSERT_TRUE(refusal);
  EXPECT_EQ(std::get<SetupRefusal>(*refusal).text, "a?[2J?b?? c");
  const auto down = decode_session_message(encode(SessionLinkDown{text}));
  ASSERT_TRUE(down);
  EXPECT_EQ(std::get<SessionLinkDown>(*down).text, "a?[2J?b?? c");
}

TEST(SessionMessages, AnotherVersionIsNamed) {
  auto bytes = encode(SessionMessage(SessionPing{}));
  bytes[4] = std::byte{session_version + 1};
  const auto length = session_message_length(bytes);
  ASSERT_FALSE(length);
  EXPECT_NE(length.error().what.find("speaks version 7, this one 6"), std::string::npos);
}

TEST(PathEndpoints, AreExactlyWhatWasWritten) {
  const PathEndpoint endpoint{NodeId{5}, 80, Secret::heard(6), a_ticket()};
  auto bytes = encode(endpoint);
  ASSERT_EQ(bytes.size(), endpoint_bytes);
  const auto decoded = decode_endpoint(bytes);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->node, endpoint.node);
  EXPECT_EQ(decoded->port, endpoint.port);
  EXPECT_EQ(decoded->token, endpoint.token);
  EXPECT_EQ(decoded->ticket, endpoint.ticket);
  bytes.push_back({});
  EXPECT_FALSE(decode_endpoint(bytes));
  EXPECT_FALSE(decode_endpoint(encode(PathEndpoint{NodeId{5}, 0, Secret::heard(6), {}})))
      << "no port";
  EXPECT_FALSE(decode_endpoint(encode(PathEndpoint{NodeId{0}, 80, Secret::heard(6), {}})))
      << "nobody";
  EXPECT_EQ(*node_of_hop(hop_of_node(NodeId{9})), NodeId{9});
  EXPECT_FALSE(node_of_hop(fabric::Hop{}));
}

TEST(Frames, HeaderAndLengthMustAgree) {
  std::vector<std::byte> slot(frame_header_bytes + 1000);
  Frame frame;
  frame.session = 3;
  frame.hops = 2;
  frame.payload_bytes = 1000;
  frame.message_bytes = 1000;
  frame.flags = frame_last | frame_immediate;
  const auto good = [&](const Frame& made) {
    encode(made, slot.data());
    return decode_frame(slot).has_value();
  };
  ASSERT_TRUE(good(frame));
  const auto decoded = decode_frame(slot);
  std::vector<std::byte> again(frame_header_bytes);
  encode(*decoded, again.data());
  EXPECT_EQ(std::memcmp(again.data(), slot.data(), again.size()), 0);

  Frame wrong = frame;
  wrong.payload_bytes = 1001;
  wrong.message_bytes = 1001;
  EXPECT_FALSE(good(wrong)) << "more than the slot holds";
  wrong = frame;
  wrong.offset = 1;
  EXPECT_FALSE(good(wrong)) << "behind the message's end";
  wrong = frame;
  wrong.offset = UINT32_MAX;
  EXPECT_FALSE(good(wrong));
  wrong = frame;
  wrong.flags = 0;
  EXPECT_FALSE(good(wrong)) << "the end that does not say so";
  wrong = frame;
  wrong.flags |= 8;
  EXPECT_FALSE(good(wrong));
  wrong = frame;
  wrong.hop = 3;
  EXPECT_FALSE(good(wrong)) << "passed on too often";
  wrong = frame;
  wrong.kind = FrameKind::note;
  EXPECT_FALSE(good(wrong)) << "notes carry nothing";
  wrong.kind = FrameKind{3};
  EXPECT_FALSE(good(wrong)) << "once a send";
  wrong.kind = FrameKind{9};
  EXPECT_FALSE(good(wrong));
  EXPECT_FALSE(decode_frame(std::span(slot).first(frame_header_bytes - 1)));
}

}  // namespace
}  // namespace nccl_ha::relay
