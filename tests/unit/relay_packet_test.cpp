#include <gtest/gtest.h>

#include "relay/packet.h"
#include "runtime/base/random.h"
#include "runtime/fabric/byte_order.h"

namespace nccl_ha::relay {
namespace {

LinkState full_state() {
  LinkState state;
  state.origin = NodeId{77};
  state.sequence = sequence_max;
  state.lifetime_ms = lifetime_max_ms;
  state.name = std::string(node_name_max, 'n');
  for (size_t i = 0; i < addresses_max; ++i) {
    IpAddress address;
    address.family = 6;
    address.prefix_len = 64;
    address.bytes[15] = static_cast<uint8_t>(i);
    state.addresses.push_back(address);
  }
  for (uint32_t i = 0; i < links_max; ++i) {
    state.links.push_back({NodeId{i + 1}, i, i + 100, 200000});
  }
  return state;
}

std::vector<DiscoveryPacket> one_of_each() {
  HelloPacket hello;
  hello.number = 3;
  hello.hello_ms = 500;
  hello.dead_ms = 2000;
  hello.leaves = true;
  hello.digest = 0x1122334455667788;
  for (uint32_t i = 0; i < heard_max; ++i) {
    hello.heard.push_back({NodeId{i + 1}, i, i});
  }
  SummaryPacket summary;
  summary.first = NodeId{1};
  summary.last = NodeId{UINT64_MAX};
  RequestPacket request;
  for (uint64_t i = 0; i < summary_entries_max; ++i) {
    summary.entries.push_back({NodeId{i + 1}, i});
  }
  for (uint64_t i = 0; i < request_nodes_max; ++i) {
    request.nodes.push_back(NodeId{i});
  }
  StatesPacket states;
  states.states.push_back(full_state());
  NeighboursPacket neighbours;
  neighbours.states = 12;
  for (uint64_t i = 0; i < neighbours_per_packet_max; ++i) {
    NeighboursPacket::Entry entry{NodeId{i + 1}, 2, 3, 4, 18740, {}};
    entry.address.family = 6;
    entry.address.bytes = {0xFE, 0x80};
    neighbours.entries.push_back(entry);
  }
  return {{NodeId{9}, 1, hello, 3}, {NodeId{9}, 1, neighbours}, {NodeId{9}, 1, states},
          {NodeId{9}, 1, summary},  {NodeId{9}, 1, request},    {NodeId{9}, 1, QueryPacket{true}}};
}

TEST(DiscoveryPackets, EachSurvivesTheWireAtItsLargest) {
  for (const DiscoveryPacket& packet : one_of_each()) {
    const auto bytes = encode(packet);
    EXPECT_LE(bytes.size(), discovery_packet_max);
    const auto decoded = decode_packet(bytes);
    ASSERT_TRUE(decoded) << decoded.error().message();
    EXPECT_EQ(decoded->body.index(), packet.body.index());
    EXPECT_EQ(encode(*decoded), bytes);
  }
}

TEST(DiscoveryPackets, NoneIsTakenCutShortOrTooLong) {
  for (const DiscoveryPacket& packet : one_of_each()) {
    auto bytes = encode(packet);
    for (size_t length = 0; length < bytes.size(); ++length) {
      // Also where the header tells the shorter length.
      std::vector<std::byte> part(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(length));
      EXPECT_FALSE(decode_packet(part));
      if (length >= 8) {
        fabric::put(part.data(), 6, static_cast<uint16_t>(length));
        EXPECT_FALSE(decode_packet(part)) << length;
      }
    }
    bytes.push_back({});
    EXPECT_FALSE(decode_packet(bytes));
    fabric::put(bytes.data(), 6, static_cast<uint16_t>(bytes.size()));
    EXPECT_FALSE(decode_packet(bytes));
  }
}

TEST(DiscoveryPackets, AnotherVersionIsNamed) {
  auto bytes = encode(one_of_each()[0]);
  bytes[4] = std::byte{discovery_version + 1};
  const auto decoded = decode_packet(bytes);
  ASSERT_FALSE(decoded);
  EXPECT_NE(decoded.error().what.find("version 4"), std::string::npos) << decoded.error().what;
}

TEST(DiscoveryPackets, NumbersOutOfRangeAreRefused) {
  LinkState state = full_state();
  state.sequence = sequence_max + 1;
  EXPECT_FALSE(decode_link_state(encode(state)));
  state = full_state();
  state.lifetime_ms = lifetime_max_ms + 1;
  EXPECT_FALSE(decode_link_state(encode(state)));
  state = full_state();
  state.origin = NodeId{0};
  EXPECT_FALSE(decode_link_state(encode(state)));
  state = full_state();
  state.addresses[0].prefix_len = 129;
  EXPECT_FALSE(decode_link_state(encode(state)));
  SummaryPacket disordered;
  disordered.last = NodeId{10};
  disordered.entries = {{NodeId{2}, 1}, {NodeId{2}, 1}};
  EXPECT_FALSE(decode_packet(encode({NodeId{9}, 1, disordered})));
  disordered.entries = {{NodeId{11}, 1}};
  EXPECT_FALSE(decode_packet(encode({NodeId{9}, 1, disordered})));
}

TEST(DiscoveryPackets, NamesThatNobodyShouldPrintAreRefused) {
  for (const char* name : {"\x1b[2J", "a b", "a\n", "\xc3\x28", "\x7f"}) {
    LinkState state = full_state();
    state.name = name;
    EXPECT_FALSE(decode_link_state(encode(state))) << name;
    state.name = clean_node_name(name);
    EXPECT_EQ(state.name.size(), std::string(name).size());
    EXPECT_TRUE(decode_link_state(encode(state))) << state.name;
  }
  EXPECT_EQ(clean_node_name("h-1.example_2"), "h-1.example_2");
  EXPECT_EQ(clean_node_name(std::string(300, 'x')).size(), node_name_max);
}

TEST(DiscoveryPackets, WhatAWriterPutsIsWhatItTook) {
  LinkState small;
  small.sequence = 5;
  small.lifetime_ms = 1000;
  small.name = "small";
  std::vector<LinkState> taken;
  StatesWriter writer(NodeId{4}, 2, 5);
  for (uint64_t i = 0; i < 300; ++i) {
    LinkState state = i % 50 == 0 ? full_state() : small;
    state.origin = NodeId{i + 1};
    taken.push_back(state);
    writer.add(encode(state), 700);
  }
  size_t at = 0;
  for (const auto& bytes : writer.take()) {
    EXPECT_LE(bytes.size(), discovery_packet_max);
    const auto packet = decode_packet(bytes);
    ASSERT_TRUE(packet) << packet.error().message();
    for (const LinkState& state : std::get<StatesPacket>(packet->body).states) {
      ASSERT_LT(at, taken.size());
      EXPECT_EQ(state.lifetime_ms, 700U);
      LinkState expected = taken[at++];
      expected.lifetime_ms = 700;
      EXPECT_EQ(encode(state), encode(expected));
    }
  }
  EXPECT_EQ(at, taken.size());
}

TEST(NodeIds, DependOnAddressesAndMachineButNotOnOrder) {
  IpAddress one;
  one.bytes = {10, 0, 0, 1};
  IpAddress other = one;
  other.bytes[3] = 2;
  const NodeId id = make_node_id({one, other}, "m");
  EXPECT_EQ(make_node_id({other, one}, "m"), id);
  EXPECT_NE(make_node_id({one}, "m"), id);
  EXPECT_NE(make_node_id({one, other}, "n"), id);
  EXPECT_EQ(text(NodeId{0xAB}), "00000000000000ab");
}

}  // namespace
}  // namespace nccl_ha::relay
