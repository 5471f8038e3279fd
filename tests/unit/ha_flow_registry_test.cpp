#include <gtest/gtest.h>

#include <map>
#include <set>

#include "ha/flow_registry.h"
#include "runtime/base/random.h"

namespace nccl_ha::ha {
namespace {

HostAddress flow_host(uint8_t last) {
  HostAddress address;
  address.family = 4;
  address.bytes = {10, 0, 0, last};
  return address;
}
Flow flow_to(uint8_t last) { return {flow_host(1), flow_host(last)}; }

TEST(FlowRegistry, ConnectionsOfAFlowShareASlot) {
  FlowRegistry registry({4, 100});
  const auto one = registry.enter(1, 10, flow_to(2));
  const auto two = registry.enter(2, 10, flow_to(2));
  const auto other = registry.enter(1, 11, flow_to(3));
  ASSERT_TRUE(one && two && other);
  EXPECT_TRUE(one->first);
  EXPECT_FALSE(two->first);
  EXPECT_EQ(one->slot, two->slot);
  EXPECT_NE(one->slot, other->slot);
  EXPECT_EQ(registry.flows(), 2U);
  EXPECT_EQ(registry.connections_of(one->slot), 2U);
  const auto left = registry.leave(1, 10);
  ASSERT_TRUE(left);
  EXPECT_FALSE(left->last);
  EXPECT_EQ(*registry.slot_of(flow_to(2)), one->slot);
  const auto last = registry.leave(2, 10);
  ASSERT_TRUE(last);
  EXPECT_TRUE(last->last);
  EXPECT_EQ(registry.slot_of(flow_to(2)), nullptr);
}

TEST(FlowRegistry, BothDirectionsAreFlowsOfTheirOwn) {
  FlowRegistry registry({4, 100});
  EXPECT_NE(registry.enter(1, 1, {flow_host(1), flow_host(2)})->slot,
            registry.enter(1, 2, {flow_host(2), flow_host(1)})->slot);
  EXPECT_NE(flow_hash({flow_host(1), flow_host(2)}), flow_hash({flow_host(2), flow_host(1)}));
}

TEST(FlowRegistry, AUserLeavesSlotsForOthers) {
  FlowRegistry registry({8, 100});
  const auto slots_of = [&](FlowRegistry::User user, uint8_t from) {
    size_t taken = 0;
    for (uint8_t i = 0; i < 20; ++i) {
      taken += registry.enter(user, i, flow_to(static_cast<uint8_t>(from + i)), user) ? 1U : 0U;
    }
    return taken;
  };
  EXPECT_EQ(slots_of(1000, 10), 4U);
  const auto refused = registry.enter(1000, 99, flow_to(9), 1000);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().what.find("kept for other users"), std::string::npos);
  EXPECT_TRUE(registry.enter(1000, 98, flow_to(10), 1000)) << "a flow that is there needs no slot";
  EXPECT_EQ(slots_of(1001, 40), 2U);
  EXPECT_EQ(slots_of(1002, 70), 1U);
  registry.drop(1000);
  EXPECT_EQ(registry.flows(), 3U);
  EXPECT_EQ(slots_of(1003, 100), 3U);
  EXPECT_EQ(slots_of(0, 130), 2U) << "root takes what there is";
}

TEST(FlowRegistry, AFullTableIsAClearAnswerAndHasRoomAgain) {
  FlowRegistry registry({2, 100});
  ASSERT_TRUE(registry.enter(1, 1, flow_to(2)));
  ASSERT_TRUE(registry.enter(1, 2, flow_to(3)));
  const auto refused = registry.enter(1, 3, flow_to(4));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.code(), Errc::no_memory);
  EXPECT_NE(refused.error().what.find("all 2 slots"), std::string::npos);
  EXPECT_TRUE(registry.enter(1, 4, flow_to(3))) << "a flow that is there needs no slot";
  EXPECT_EQ(registry.connections(), 3U);
  ASSERT_TRUE(registry.leave(1, 1));
  EXPECT_TRUE(registry.enter(1, 3, flow_to(4)));
}

TEST(FlowRegistry, ASlotIsUsedAgainAsLateAsCanBe) {
  FlowRegistry registry({3, 100});
  const uint32_t first = registry.enter(1, 1, flow_to(2))->slot;
  ASSERT_TRUE(registry.leave(1, 1));
  EXPECT_NE(registry.enter(1, 2, flow_to(3))->slot, first);
  EXPECT_NE(registry.enter(1, 3, flow_to(4))->slot, first);
  EXPECT_EQ(registry.enter(1, 4, flow_to(5))->slot, first);
}

TEST(FlowRegistry, WhatIsWrongChangesNothing) {
  FlowRegistry registry({4, 2});
  ASSERT_TRUE(registry.enter(1, 1, flow_to(2)));
  EXPECT_EQ(registry.enter(1, 1, flow_to(3)).code(), Errc::invalid_argument);
  EXPECT_EQ(registry.enter(1, 2, {}).code(), Errc::invalid_argument);
  EXPECT_EQ(registry.leave(1, 2).code(), Errc::invalid_argument);
  EXPECT_EQ(registry.leave(2, 1).code(), Errc::invalid_argument);
  ASSERT_TRUE(registry.enter(1, 2, flow_to(2)));
  EXPECT_EQ(registry.enter(1, 3, flow_to(2)).code(), Errc::no_memory);
  EXPECT_EQ(registry.connections(), 2U);
  EXPECT_EQ(registry.flows(), 1U);
  EXPECT_TRUE(registry.drop(7).empty());
}

TEST(FlowRegistry, AClientThatGoesFreesAllThatWasItsAlone) {
  FlowRegistry registry({4, 100});
  ASSERT_TRUE(registry.enter(1, 1, flow_to(2)));
  ASSERT_TRUE(registry.enter(1, 2, flow_to(2)));
  ASSERT_TRUE(registry.enter(1, 3, flow_to(3)));
  ASSERT_TRUE(registry.enter(2, 1, flow_to(3)));
  const auto ended = registry.drop(1);
  ASSERT_EQ(ended.size(), 1U);
  EXPECT_EQ(ended[0].flow, flow_to(2));
  EXPECT_EQ(registry.connections(), 1U);
  EXPECT_EQ(registry.free_slots(), 3U);
}

// Against a plain account of who has what.
TEST(FlowRegistry, NoSlotLeaksWhateverHappens) {
  constexpr uint32_t slots = 16;
  FlowRegistry registry({slots, 12});
  Random random(5);
  std::map<std::pair<uint64_t, uint64_t>, uint8_t> known;
  for (int step = 0; step < 40000; ++step) {
    const uint64_t client = random.below(6);
    const uint64_t connection = random.below(20);
    const auto to = static_cast<uint8_t>(random.below(30));
    const uint64_t what = random.below(20);
    if (what == 0) {
      registry.drop(client);
      std::erase_if(known, [&](const auto& entry) { return entry.first.first == client; });
    } else if (what < 9) {
      EXPECT_EQ(registry.leave(client, connection).ok(), known.erase({client, connection}) == 1);
    } else if (registry.enter(client, connection, flow_to(to))) {
      EXPECT_TRUE(known.emplace(std::pair{client, connection}, to).second);
    }
    std::set<uint8_t> flows;
    for (const auto& [who, flow] : known) {
      flows.insert(flow);
    }
    ASSERT_EQ(registry.connections(), known.size());
    ASSERT_EQ(registry.flows(), flows.size());
    ASSERT_EQ(registry.free_slots(), slots - flows.size());
  }
}

}  // namespace
}  // namespace nccl_ha::ha
