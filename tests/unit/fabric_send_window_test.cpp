#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "runtime/base/random.h"
#include "runtime/fabric/datagram/send_window.h"

namespace nccl_ha::fabric {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class SendWindowTest : public testing::Test {
 protected:
  static constexpr uint32_t size = 16;
  static constexpr uint32_t many = 1000;

  SendWindowTest() { window_.open(nullptr, size, 10'000); }
  ~SendWindowTest() override { window_.close(now_); }
  Segment& send(uint16_t length = 100, Channel channel = Channel::data) {
    Segment& segment = window_.next_segment();
    segment.length = length;
    window_.on_sent(segment, channel, now_ + milliseconds(5));
    return segment;
  }
  void sound() {
    const auto wrong = window_.self_check();
    EXPECT_FALSE(wrong) << *wrong;
    EXPECT_EQ(hotel_.guests(), window_.in_flight());
  }

  Instant now_{seconds(1)};
  Hotel hotel_{now_};
  Activity activity_;
  SendWindow window_{hotel_, activity_};
};

TEST_F(SendWindowTest, ASegmentIsInTheHotelAndCountsAsActivityWhileItIsInFlight) {
  EXPECT_TRUE(window_.empty());
  Segment& segment = send();
  EXPECT_EQ(window_.next(), 1U);
  EXPECT_EQ(window_.in_flight(), 1U);
  EXPECT_EQ(activity_.payload_in_flight(), 100U);
  sound();
  window_.take_back(segment, now_);
  EXPECT_EQ(segment.state, Segment::State::resend);
  EXPECT_EQ(activity_.payload_in_flight(), 0U);
  EXPECT_EQ(window_.count_open(), 1U) << "it has to go again";
  sound();
  window_.on_sent(segment, Channel::data, now_ + milliseconds(5));
  EXPECT_EQ(window_.next(), 1U) << "the same number";
  EXPECT_EQ(window_.acknowledge(1, now_), 1U);
  EXPECT_TRUE(window_.empty());
  EXPECT_EQ(activity_.payload_in_flight(), 0U);
  sound();
}

TEST_F(SendWindowTest, ThereIsRoomForWhatPeerNetworkAndSocketTake) {
  EXPECT_TRUE(window_.has_room(1));
  send();
  EXPECT_FALSE(window_.has_room(1)) << "the congestion window";
  EXPECT_TRUE(window_.has_room(2));
  send(10'000);
  EXPECT_FALSE(window_.has_room(many)) << "the peer's socket";
  window_.acknowledge(2, now_);
  Segment& large = send(20'000);
  EXPECT_EQ(large.sequence, 2U) << "one segment goes however long it is";
  window_.acknowledge(3, now_);
  while (window_.next() < size) {
    send();
  }
  EXPECT_FALSE(window_.has_credit());
  EXPECT_FALSE(window_.has_room(many)) << "credits";
  window_.allow(size + 1);
  EXPECT_TRUE(window_.has_room(many));
  window_.allow(size);
  EXPECT_TRUE(window_.has_credit()) << "what was allowed is not taken back";
  sound();
}

TEST_F(SendWindowTest, TheOldestSegmentKeepsItsPlaceWhateverThePeerAllows) {
  window_.allow(3 * size);
  while (window_.next() < size) {
    send(0);
  }
  EXPECT_TRUE(window_.has_credit());
  EXPECT_FALSE(window_.has_room(many));
  window_.acknowledge(1, now_);
  EXPECT_TRUE(window_.has_room(many));
}

TEST_F(SendWindowTest, OnlyWhatWasSentCanBeAcknowledged) {
  for (int i = 0; i < 4; ++i) {
    send();
  }
  window_.acknowledge(2, now_);
  for (const uint32_t late : {0U, 1U, 2U}) {
    EXPECT_TRUE(window_.plausible(late)) << late;
  }
  EXPECT_TRUE(window_.plausible(4));
  EXPECT_FALSE(window_.plausible(5));
  EXPECT_FALSE(window_.plausible(2 + (1U << 31)));
  EXPECT_EQ(window_.acknowledge(1, now_), 0U) << "late";
  EXPECT_EQ(window_.oldest(), 2U);
  sound();
}

TEST_F(SendWindowTest, CreditsFromHalfTheNumberSpaceAwayAreNone) {
  send();
  const uint32_t late = window_.oldest() - (1U << 31) + 1;
  ASSERT_TRUE(window_.plausible(late));
  window_.allow(late + 2);
  EXPECT_EQ(window_.next(), 1U);
  window_.acknowledge(1, now_);
  for (uint32_t i = 0; i < 3 * size; ++i) {
    window_.allow(window_.oldest() + size);
    ASSERT_TRUE(window_.has_credit()) << i;
    send();
    window_.acknowledge(window_.next(), now_);
  }
  sound();
}

TEST_F(SendWindowTest, SelectedSegmentsAreNewsOnce) {
  for (int i = 0; i < 8; ++i) {
    send();
  }
  const std::array<std::byte, 2> bitmap{std::byte{0b1000'0110}, std::byte{0xFF}};
  EXPECT_EQ(window_.acknowledge_selected(1, bitmap, now_), 2U) << "2 and 3; 8 was never sent";
  EXPECT_EQ(window_.acknowledge_selected(1, bitmap, now_), 0U);
  EXPECT_EQ(window_.in_flight(), 6U);
  sound();
  EXPECT_EQ(window_.acknowledge(5, now_), 3U) << "0, 1 and 4";
  EXPECT_EQ(window_.acknowledge_selected(2, bitmap, now_), 0U) << "what lies before the window";
  sound();
}

/// Its place is that of the oldest segment.
TEST_F(SendWindowTest, NothingBehindAFullWindowIsAcknowledged) {
  while (window_.next() < size) {
    send();
  }
  const std::array<std::byte, 2> last{std::byte{0}, std::byte{0b1000'0000}};
  EXPECT_EQ(window_.acknowledge_selected(1, last, now_), 0U);
  EXPECT_EQ(window_.in_flight(), size);
  sound();
}

TEST_F(SendWindowTest, WhatLaterOnesOfItsChannelHaveOvertakenIsLost) {
  send();
  send(50, Channel::command);
  for (int i = 0; i < 3; ++i) {
    send();
  }
  std::vector<uint32_t> lost;
  const auto look = [&] {
    return window_.each_lost([&](Segment& segment) {
      lost.push_back(segment.sequence);
      window_.take_back(segment, now_);
    });
  };
  const std::array<std::byte, 1> two{std::byte{0b0000'1100}};
  window_.acknowledge_selected(0, two, now_);
  EXPECT_EQ(look(), 0U) << "late, perhaps";
  const std::array<std::byte, 1> three{std::byte{0b0001'1100}};
  window_.acknowledge_selected(0, three, now_);
  EXPECT_EQ(look(), 1U);
  EXPECT_EQ(lost, std::vector<uint32_t>{0}) << "of the other channel nothing is known";
  EXPECT_EQ(look(), 0U) << "once";
  sound();
}

/// An acknowledgement of the first transmission says nothing of the second one, nor of what was
/// sent before that.
TEST_F(SendWindowTest, WhatWasLateHasNotOvertakenWhatIsUnderWay) {
  for (const bool late : {true, false}) {
    SendWindow window(hotel_, activity_);
    window.open(nullptr, size, 10'000);
    const auto transmit = [&](Segment& segment) {
      segment.length = 100;
      window.on_sent(segment, Channel::data, now_ + milliseconds(5));
    };
    for (int i = 0; i < 7; ++i) {
      transmit(window.next_segment());
    }
    std::vector<Segment*> lost;
    const auto look = [&] {
      return window.each_lost([&](Segment& segment) {
        segment.late_until = now_ + milliseconds(1);
        lost.push_back(&segment);
        window.take_back(segment, now_);
      });
    };
    const std::array<std::byte, 1> three{std::byte{0b0000'1110}};
    window.acknowledge_selected(0, three, now_);
    ASSERT_EQ(look(), 1U);
    transmit(*lost.front());
    EXPECT_EQ(window.acknowledge(4, late ? now_ : now_ + milliseconds(1)), 1U);
    EXPECT_EQ(look(), late ? 0U : 1U) << "the fifth was sent three transmissions before the second";
    window.close(now_);
  }
}

TEST_F(SendWindowTest, TheThirdDuplicateShowsTheOldestToBeLost) {
  Segment& oldest = send();
  send();
  EXPECT_EQ(window_.on_duplicate(), nullptr);
  EXPECT_EQ(window_.on_duplicate(), nullptr);
  EXPECT_EQ(window_.on_duplicate(), &oldest);
  EXPECT_EQ(window_.on_duplicate(), nullptr) << "once";
  window_.acknowledge(1, now_);
  window_.on_duplicate();
  window_.on_duplicate();
  Segment* next = window_.on_duplicate();
  ASSERT_NE(next, nullptr) << "counted anew for the next one";
  EXPECT_EQ(next->sequence, 1U);
}

TEST_F(SendWindowTest, ClosingGivesUpWhatIsOpen) {
  send();
  window_.take_back(send(), now_);
  send();
  window_.close(now_);
  EXPECT_TRUE(window_.empty());
  EXPECT_EQ(window_.count_open(), 0U);
  EXPECT_EQ(activity_.payload_in_flight(), 0U);
  sound();
}

TEST_F(SendWindowTest, StaysSoundWhateverIsSentLostAndAcknowledged) {
  Random random(7);
  uint64_t acknowledged = 0;
  for (int step = 0; step < 20'000; ++step) {
    now_ += milliseconds(1);
    const uint32_t used = window_.next() - window_.oldest();
    const auto below = static_cast<uint32_t>(random.below(used + 1));
    if (random.chance(0.5) && window_.has_room(12)) {
      send(static_cast<uint16_t>(random.below(1000)),
           random.chance(0.3) ? Channel::command : Channel::data);
    } else if (random.chance(0.3)) {
      acknowledged += window_.acknowledge(window_.oldest() + below, now_);
      window_.allow(window_.oldest() + size);
    } else if (random.chance(0.5)) {
      const std::array<std::byte, 2> bitmap{static_cast<std::byte>(random.below(256)),
                                            static_cast<std::byte>(random.below(256))};
      acknowledged += window_.acknowledge_selected(window_.oldest() + 1, bitmap, now_);
      window_.each_lost([&](Segment& segment) { window_.take_back(segment, now_); });
    } else if (!window_.empty() && window_.newest().state == Segment::State::resend) {
      window_.on_sent(window_.newest(), Channel::data, now_ + milliseconds(5));
    } else if (!window_.empty() && window_.newest().state == Segment::State::in_flight) {
      window_.take_back(window_.newest(), now_);
    }
    ASSERT_FALSE(window_.self_check()) << "step " << step << ": " << *window_.self_check();
    ASSERT_EQ(window_.next(), acknowledged + window_.count_open()) << "step " << step;
  }
  EXPECT_GT(acknowledged, 1000U);
}

}  // namespace
}  // namespace nccl_ha::fabric
