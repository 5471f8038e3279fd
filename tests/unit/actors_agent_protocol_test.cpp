#include <gtest/gtest.h>

#include "actors/agent_protocol.h"

namespace nccl_ha {
namespace {

std::span<const std::byte> payload_of(const std::vector<std::byte>& frame) {
  return std::span(frame).subspan(agent_header_bytes);
}

FlowAnnouncement an_announcement() {
  FlowAnnouncement announcement;
  announcement.flow.source = {4, {10, 0, 1, 2}};
  announcement.flow.destination = {6, {0xfd, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}};
  announcement.source_host = "node1";
  announcement.destination_host = "node2";
  announcement.devices = {"mlx5_0", "mlx5_1"};
  return announcement;
}

TEST(AgentProtocol, EachMessageComesBackAsItWas) {
  AgentHello hello;
  hello.pid = 4711;
  hello.host = "node1";
  const auto hello_again = decode_agent_hello(payload_of(encode(hello)));
  ASSERT_TRUE(hello_again);
  EXPECT_EQ(hello_again->pid, 4711U);
  EXPECT_EQ(hello_again->host, "node1");
  const auto welcome = decode_agent_welcome(payload_of(encode(AgentWelcome{agent_version, 9, 3})));
  ASSERT_TRUE(welcome);
  EXPECT_EQ(welcome->generation, 9U);
  EXPECT_EQ(welcome->pid, 3U);
  const auto announced = decode_announcement(payload_of(encode(5, an_announcement())));
  ASSERT_TRUE(announced);
  EXPECT_EQ(announced->flow, an_announcement().flow);
  EXPECT_EQ(announced->source_host, "node1");
  EXPECT_EQ(announced->destination_host, "node2");
  EXPECT_EQ(announced->devices, an_announcement().devices);
  const auto place = decode_place(payload_of(encode(5, FlowPlace{7, 8, 9})));
  ASSERT_TRUE(place);
  EXPECT_EQ(place->slot, 7U);
  EXPECT_EQ(place->flow, 8U);
  EXPECT_EQ(place->generation, 9U);
  const auto refusal =
      decode_agent_refusal(payload_of(encode(5, AgentRefusal{Errc::no_memory, "full"})));
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->code, Errc::no_memory);
  EXPECT_EQ(refusal->text, "full");
}

TEST(AgentProtocol, ACutOrLongerMessageIsNone) {
  const auto frame = encode(5, an_announcement());
  const auto payload = payload_of(frame);
  for (size_t length = 0; length < payload.size(); ++length) {
    EXPECT_FALSE(decode_announcement(payload.first(length))) << length;
  }
  auto longer = frame;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(decode_announcement(payload_of(longer)));
}

TEST(AgentProtocol, AddressesMustBeOnes) {
  for (const auto& [offset, value] :
       {std::pair{0, 0}, std::pair{0, 5}, std::pair{5, 1}, std::pair{17, 9}}) {
    auto frame = encode(5, an_announcement());
    frame[agent_header_bytes + static_cast<size_t>(offset)] = static_cast<std::byte>(value);
    EXPECT_FALSE(decode_announcement(payload_of(frame))) << offset << " " << value;
  }
}

TEST(AgentProtocol, AnotherVersionIsToldApartFromGarbage) {
  AgentHello hello;
  hello.version = 99;
  const auto read = decode_agent_hello(payload_of(encode(hello)));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->version, 99);
}

TEST(AgentProtocol, WhatATerminalWouldActOnIsReplaced) {
  const auto read =
      decode_agent_refusal(payload_of(encode(0, AgentRefusal{Errc::remote, "a\x1b[2Jb\n"})));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->text, "a?[2Jb?");
}

TEST(AgentReader, CutsAStreamAnywhere) {
  std::vector<std::byte> stream;
  for (uint64_t i = 0; i < 20; ++i) {
    const auto frame =
        i % 2 == 0 ? encode(i, an_announcement()) : encode_agent(AgentMessage::leave, i);
    stream.insert(stream.end(), frame.begin(), frame.end());
  }
  for (size_t step = 1; step < 200; step += 7) {
    AgentReader reader;
    uint64_t next = 0;
    for (size_t at = 0; at < stream.size(); at += step) {
      ASSERT_TRUE(reader.feed(std::span(stream).subspan(at, std::min(step, stream.size() - at))));
      while (const auto message = reader.next()) {
        EXPECT_EQ(message->connection, next);
        EXPECT_EQ(message->type, next % 2 == 0 ? AgentMessage::enter : AgentMessage::leave);
        ++next;
      }
    }
    EXPECT_EQ(next, 20U);
  }
}

TEST(AgentReader, GarbageEndsItForGood) {
  AgentReader reader;
  const std::string http = "G";
  EXPECT_FALSE(reader.feed(std::as_bytes(std::span(http))));
  EXPECT_TRUE(reader.broken());
  EXPECT_FALSE(reader.feed(encode(AgentHello{})));
  for (const auto& [offset, value] : {std::pair{4, 0}, std::pair{4, 11}, std::pair{7, 0x7f}}) {
    auto frame = encode(AgentHello{});
    frame[static_cast<size_t>(offset)] = static_cast<std::byte>(value);
    AgentReader other;
    other.feed(frame);
    EXPECT_FALSE(other.next());
    EXPECT_TRUE(other.broken());
  }
}

TEST(AgentProtocol, AStatusOfAnyLengthComesWhole) {
  const std::string text(3 * agent_payload_max + 17, 'x');
  std::string read;
  bool ended = false;
  AgentReader reader;
  for (const auto& frame : encode_status(text)) {
    ASSERT_TRUE(reader.feed(frame));
    while (const auto message = reader.next()) {
      ended = message->type == AgentMessage::status_end;
      read.append(reinterpret_cast<const char*>(message->payload.data()), message->payload.size());
    }
  }
  EXPECT_TRUE(ended);
  EXPECT_EQ(read, text);
}

}  // namespace
}  // namespace nccl_ha
