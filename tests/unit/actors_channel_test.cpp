#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "actors/send_channel.h"

namespace nccl_ha {
namespace {

/// Entries of group `number`, as a receiver writes them.
std::vector<CtsEntry> group_of(uint64_t number, uint8_t count) {
  std::vector<CtsEntry> entries(count);
  for (uint8_t i = 0; i < count; ++i) {
    entries[i] = {};
    entries[i].group = number;
    entries[i].address = 0x1000 * (i + 1);
    entries[i].size = 100;
    entries[i].tag = i;
    entries[i].count = count;
    entries[i].position = i;
    entries[i].seal();
  }
  return entries;
}

class ChannelTest : public testing::Test {
 protected:
  std::unique_ptr<SendChannel> channel_ = std::make_unique<SendChannel>(1, fabric::Attachment{});
};

TEST_F(ChannelTest, TakesGroupAfterGroupOutOfOneWrite) {
  std::vector<CtsEntry> written = group_of(0, 2);
  const std::vector<CtsEntry> second = group_of(1, 1);
  written.insert(written.end(), second.begin(), second.end());
  EXPECT_EQ(channel_->match(1), nullptr);
  EXPECT_EQ(channel_->publish(written), 2U);
  EXPECT_EQ(channel_->publish(std::span(written).subspan(2)), 1U);
  EXPECT_EQ(channel_->published_groups(), 2U);
  const CtsEntry* place = channel_->match(1);
  ASSERT_NE(place, nullptr);
  EXPECT_EQ(place->address, 0x2000U);
  EXPECT_EQ(channel_->match(7), nullptr);
  // What the peer writes there later changes nothing.
  written[1].address = 0xBAD;
  written[0].count = 200;
  EXPECT_EQ(channel_->match(1)->address, 0x2000U);
}

TEST_F(ChannelTest, RefusesWhatNoReceiverWrites) {
  const std::vector<std::function<void(std::vector<CtsEntry>&)>> faults{
      [](auto& e) { e[0].count = 0; },    [](auto& e) { e[0].count = 9; },
      [](auto& e) { e[0].count = 4; },    [](auto& e) { e[1].count = 2; },
      [](auto& e) { e[0].group = 1; },    [](auto& e) { e[2].group = 1; },
      [](auto& e) { e[1].position = 2; },
  };
  for (size_t i = 0; i < faults.size(); ++i) {
    std::vector<CtsEntry> entries = group_of(0, 3);
    faults[i](entries);
    EXPECT_EQ(channel_->publish(entries), 0U) << i;
    EXPECT_EQ(channel_->published_groups(), 0U) << i;
    EXPECT_EQ(channel_->match(0), nullptr) << i;
  }
  EXPECT_EQ(channel_->publish(group_of(0, 3)), 3U);
}

TEST_F(ChannelTest, FindsAGroupThatIsThereAsAWhole) {
  std::vector<CtsEntry> ring(4);
  EXPECT_EQ(channel_->publish_if_there(ring), 0U) << "zeroes are no group 0";
  const std::vector<CtsEntry> written = group_of(0, 3);
  for (size_t i = 0; i < written.size(); ++i) {
    ring[i] = written[i];
    EXPECT_EQ(channel_->publish_if_there(ring), i == 2 ? 3U : 0U) << i;
  }
  EXPECT_EQ(channel_->published_groups(), 1U);
  EXPECT_EQ(channel_->match(2)->address, written[2].address);
  EXPECT_EQ(channel_->publish_if_there(ring), 0U) << "that is not the next one";
  EXPECT_EQ(channel_->publish_if_there(std::span(ring).first(1)), 0U);
}

TEST_F(ChannelTest, AGroupThatReachesPastTheRingIsNotFound) {
  std::vector<CtsEntry> ring = group_of(0, 3);
  EXPECT_EQ(channel_->publish_if_there(std::span(ring).first(2)), 0U);
  EXPECT_EQ(channel_->published_groups(), 0U);
}

/// A NIC may have written any of an entry's words when they are looked at.
TEST_F(ChannelTest, AMixtureOfTwoEntriesIsNeitherOfThem) {
  using Words = std::array<uint64_t, 8>;
  std::vector<CtsEntry> older = group_of(0, 1);
  older[0].group = cts_slots * 8;  // as the slot was used before
  older[0].address = 0x7F0000001000;
  older[0].size = 4096;
  older[0].key = 17;
  older[0].tag = 5;
  older[0].shadow_keys[0] = 3;
  older[0].seal();
  std::vector<CtsEntry> newer = group_of(0, 1);
  newer[0].address = 0x7F0000002000;
  newer[0].size = 8192;
  newer[0].key = 34;
  newer[0].shadow_keys[0] = 6;
  newer[0].seal();
  const auto before = std::bit_cast<Words>(older[0]);
  const auto after = std::bit_cast<Words>(newer[0]);
  for (unsigned arrived = 0; arrived < 256; ++arrived) {
    Words words = before;
    for (size_t i = 0; i < words.size(); ++i) {
      words[i] = (arrived >> i & 1U) != 0 ? after[i] : before[i];
    }
    std::vector<CtsEntry> ring{std::bit_cast<CtsEntry>(words)};
    const bool whole = words == after;
    EXPECT_EQ(ring[0].is_whole(), whole || words == before) << arrived;
    if (!whole) {
      EXPECT_EQ(channel_->publish_if_there(ring), 0U) << arrived;
    }
  }
  EXPECT_EQ(channel_->publish_if_there(newer), 1U);
}

TEST_F(ChannelTest, RefusesMoreOpenGroupsThanThereCanBe) {
  for (uint64_t number = 0; number < cts_slots; ++number) {
    ASSERT_EQ(channel_->publish(group_of(number, 1)), 1U) << number;
  }
  EXPECT_EQ(channel_->publish(group_of(cts_slots, 1)), 0U);
}

/// The worker looks through all slots, which no ring tells it about (docs/memory-order.md).  That
/// it may is seen by ThreadSanitizer, and by a processor that keeps no order of its own.
TEST_F(ChannelTest, WhoSeesThatARequestIsOpenSeesWhatItIs) {
  constexpr uint64_t rounds = 5000;
  std::thread caller([&] {
    for (uint64_t i = 0; i < rounds; ++i) {
      const CtsEntry* place = channel_->match(0);
      for (; place == nullptr; place = channel_->match(0)) {
        std::this_thread::yield();
      }
      SendRequest* request = channel_->submit(*place, nullptr, static_cast<uint32_t>(i + 1), 0);
      while (request->state.load(std::memory_order_acquire) != RequestState::done) {
        std::this_thread::yield();
      }
      channel_->release(*request);
    }
  });
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < rounds; ++i) {
    EXPECT_EQ(channel_->publish(group_of(i, 1)), 1U);
    SendRequest* open = nullptr;
    for (; open == nullptr; std::this_thread::yield()) {
      for (uint16_t at = 0; at < sends_max && open == nullptr; ++at) {
        SendRequest& one = channel_->slot(at);
        open = one.state.load(std::memory_order_acquire) == RequestState::pending ? &one : nullptr;
      }
    }
    wrong += open->group != i || open->size != i + 1 ? 1 : 0;
    uint16_t index = 0;
    while (!channel_->next_submitted(&index)) {
      std::this_thread::yield();
    }
    EXPECT_EQ(index, open->index);
    open->state.store(RequestState::done, std::memory_order_release);
  }
  caller.join();
  EXPECT_EQ(wrong, 0U);
}

}  // namespace
}  // namespace nccl_ha
