#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "actors/connection/eager_arrivals.h"
#include "actors/send_channel.h"

namespace nccl_ha {
namespace {

/// Entries of group `number` with one buffer for each tag.
std::vector<CtsEntry> group_with(uint64_t number, const std::vector<int>& tags) {
  std::vector<CtsEntry> entries(tags.size());
  for (size_t i = 0; i < tags.size(); ++i) {
    entries[i].group = number;
    entries[i].size = 100;
    entries[i].tag = tags[i];
    entries[i].count = static_cast<uint8_t>(tags.size());
    entries[i].position = static_cast<uint8_t>(i);
  }
  return entries;
}

class EagerChannel : public testing::Test {
 protected:
  EagerChannel() { channel_->allow_eager(tables_, 64); }
  const EagerHead& head(uint64_t number) const { return tables_->eager[number % eager_slots].head; }
  SendRequest* send(int tag, std::string_view text = "text") {
    return channel_->submit_eager(channel_->match(tag), tag, text.data(), text.size());
  }
  void announce(uint64_t number, std::vector<int> tags) {
    ASSERT_EQ(channel_->publish(group_with(number, tags)), tags.size());
  }

  std::shared_ptr<DataTables> tables_ = std::make_shared<DataTables>();
  std::unique_ptr<SendChannel> channel_ = std::make_unique<SendChannel>(1, fabric::Attachment{});
};

TEST_F(EagerChannel, AMessageWithoutAPlaceIsCopiedAndDone) {
  char text[] = "some bytes";
  SendRequest* request = send(3, text);
  ASSERT_NE(request, nullptr);
  EXPECT_EQ(request->state.load(), RequestState::done);
  EXPECT_EQ(request->bytes[0], 10U);
  std::fill(std::begin(text), std::end(text), 'x');  // it is the caller's again
  EXPECT_EQ(std::memcmp(tables_->eager[0].data.data(), "some bytes", 10), 0);
  EXPECT_EQ(head(0).group, 0U);
  EXPECT_EQ(head(0).tag, 3);
  EXPECT_EQ(head(0).bytes, 10U);
  EXPECT_FALSE(head(0).is_placed());
  EXPECT_EQ(channel_->eager_submitted(), 1U);
  channel_->release(*request);
  EXPECT_EQ(channel_->open(), 0U);
}

TEST_F(EagerChannel, OneWithAPlaceNamesIt) {
  announce(0, {1, 2});
  ASSERT_NE(send(2), nullptr);
  EXPECT_EQ(head(0).group, 0U);
  EXPECT_EQ(head(0).position, 1U);
  EXPECT_EQ(channel_->match(2), nullptr) << "the place is taken";
  ASSERT_NE(send(1), nullptr);
  EXPECT_EQ(channel_->filled_groups(), 1U);
}

TEST_F(EagerChannel, WhatIsTooLargeOrHasNoPlaceInAGroupThatIsNotFullWaits) {
  EXPECT_EQ(send(1, std::string_view(std::string(65, 'x'))), nullptr);
  announce(0, {1, 2});
  EXPECT_EQ(send(3), nullptr);
  EXPECT_EQ(channel_->eager_submitted(), 0U);
}

TEST_F(EagerChannel, WhatIsSentLaterComesAfterThoseWithoutAPlace) {
  ASSERT_NE(send(1), nullptr);
  ASSERT_NE(send(2), nullptr);
  ASSERT_NE(send(1), nullptr);
  announce(0, {2});
  EXPECT_EQ(channel_->match(2), nullptr) << "the second one's";
  EXPECT_EQ(channel_->filled_groups(), 1U);
  announce(1, {1, 1, 1});
  const CtsEntry* place = channel_->match(1);
  ASSERT_NE(place, nullptr);
  EXPECT_EQ(place->position, 2U) << "after those of the first one and the third one";
}

TEST_F(EagerChannel, ASlotIsFreeWhenItsMessageHasArrivedAndHasAPlace) {
  for (size_t i = 0; i < eager_slots; ++i) {
    ASSERT_NE(send(1), nullptr) << i;
  }
  EXPECT_EQ(send(1), nullptr);
  channel_->eager_arrived(0);
  EXPECT_EQ(send(1), nullptr) << "perhaps it waits there for its receive";
  announce(0, {1});
  EXPECT_NE(send(1), nullptr);
  announce(1, {1});
  EXPECT_EQ(send(1), nullptr) << "that one is still under way";
  channel_->eager_arrived(1);
  EXPECT_NE(send(1), nullptr);
}

/// Whatever the worker publishes while the caller looks: message n, of one tag, is for group n.
TEST_F(EagerChannel, NoneOvertakesWhileTheWorkerPublishes) {
  constexpr uint64_t messages = 300'000;
  std::atomic<uint64_t> sent{0};
  std::atomic<bool> failed{false};
  std::thread worker([&] {
    for (uint64_t group = 0, arrived = 0; group < messages && !failed.load();) {
      for (; arrived != channel_->eager_submitted(); ++arrived) {
        channel_->eager_arrived(arrived);
      }
      // Now before the message is there, now after it.
      if (group < sent.load() + group % 3) {
        failed = channel_->publish(group_with(group, {1})) != 1;
        ++group;
      } else {
        std::this_thread::yield();
      }
    }
  });
  uint64_t eager = 0;
  uint64_t unplaced = 0;
  while (sent.load() < messages && !failed.load()) {
    const CtsEntry* place = channel_->match(1);
    if (place != nullptr && place->group != sent.load()) {
      ADD_FAILURE() << "message " << sent << " got the place of message " << place->group;
      failed = true;
    }
    SendRequest* request = channel_->submit_eager(place, 1, "", 0);
    eager += request != nullptr ? 1 : 0;
    unplaced += request != nullptr && place == nullptr ? 1 : 0;
    if (request == nullptr && place != nullptr) {
      request = channel_->submit(*place, nullptr, 0, 0);
      uint16_t index = 0;
      ASSERT_TRUE(channel_->next_submitted(&index));
    }
    if (request != nullptr) {
      channel_->release(*request);
      ++sent;
    }
  }
  worker.join();
  EXPECT_FALSE(failed.load());
  EXPECT_GT(eager, 1000U);
  EXPECT_GT(unplaced, 1000U);
}

TEST_F(EagerChannel, NothingIsCopiedWhereItIsNotAllowed) {
  SendChannel other(1, fabric::Attachment{});
  EXPECT_EQ(other.submit_eager(nullptr, 1, "", 0), nullptr);
  EXPECT_EQ(other.eager_bytes(), 0U);
}

class Arrivals : public testing::Test {
 protected:
  EagerArrivals::Verdict arrive(uint64_t number, uint16_t bytes = 5) {
    slot_.head = {0, 1, bytes};
    return arrivals_.arrive(static_cast<uint32_t>(number) % Immediate::groups_told_apart,
                            sizeof(EagerHead) + bytes, slot_);
  }
  uint64_t ready() { return arrivals_.end() - arrivals_.begin(); }

  EagerSlot slot_{};
  EagerArrivals arrivals_;
};

TEST_F(Arrivals, NoneIsTakenBeforeAllThatWereSentEarlierHaveCome) {
  EXPECT_EQ(arrive(1), EagerArrivals::Verdict::fresh);
  EXPECT_TRUE(arrivals_.any());
  EXPECT_EQ(ready(), 0U);
  EXPECT_EQ(arrive(0), EagerArrivals::Verdict::fresh);
  EXPECT_EQ(ready(), 2U);
  arrivals_.take(1);
  EXPECT_EQ(arrivals_.taken(), 0U);
  arrivals_.take(0);
  EXPECT_EQ(arrivals_.taken(), 2U);
  EXPECT_FALSE(arrivals_.any());
}

TEST_F(Arrivals, OneThatComesAgainIsKnown) {
  EXPECT_EQ(arrive(0), EagerArrivals::Verdict::fresh);
  EXPECT_EQ(arrive(0), EagerArrivals::Verdict::known) << "while it waits";
  arrivals_.take(0);
  EXPECT_EQ(arrive(0), EagerArrivals::Verdict::known) << "after it was taken";
}

TEST_F(Arrivals, ANumberForWhichNoSlotIsFreeIsMalformed) {
  EXPECT_EQ(arrive(eager_slots), EagerArrivals::Verdict::malformed);
  EXPECT_EQ(arrive(Immediate::groups_told_apart - 1), EagerArrivals::Verdict::malformed)
      << "there was none before the first one";
  EXPECT_FALSE(arrivals_.any());
}

TEST_F(Arrivals, LengthsThatDoNotAgreeAreMalformed) {
  slot_.head = {0, 1, 5};
  EXPECT_EQ(arrivals_.arrive(0, sizeof(EagerHead) + 4, slot_), EagerArrivals::Verdict::malformed);
  EXPECT_EQ(arrivals_.arrive(0, sizeof(EagerHead) - 1, slot_), EagerArrivals::Verdict::malformed);
  slot_.head.bytes = eager_bytes_max + 1;
  EXPECT_EQ(arrivals_.arrive(0, sizeof(EagerHead) + slot_.head.bytes, slot_),
            EagerArrivals::Verdict::malformed);
  EXPECT_FALSE(arrivals_.any());
}

TEST_F(Arrivals, NumbersWrap) {
  for (uint64_t number = 0; number < 3 * Immediate::groups_told_apart; ++number) {
    ASSERT_EQ(arrive(number), EagerArrivals::Verdict::fresh) << number;
    ASSERT_EQ(ready(), 1U);
    arrivals_.take(number);
  }
  EXPECT_EQ(arrivals_.taken(), 3 * Immediate::groups_told_apart);
}

}  // namespace
}  // namespace nccl_ha
