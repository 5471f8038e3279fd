// Control messages and their boxes on paths, and streams that take each other's place.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "actors/connection/control_link.h"
#include "tests/support/connection_bench.h"

namespace nccl_ha {
namespace {

using std::chrono::microseconds;

class ControlLinkTest : public ConnectionBench {
 protected:
  static std::vector<std::byte> notice() {
    return encode(ControlType::down, PathNotice{0, 1, false, false, "why"});
  }
  /// The peer's message of that number.
  static std::vector<std::byte> message(uint32_t number) {
    std::vector<std::byte> frame = notice();
    set_numbers(frame, number, 1);
    return frame;
  }
  void arrive(const ControlMark& mark, size_t bytes) { take(arrival(0, mark.pack(), bytes)); }
  /// The peer's write of a message is told of when `frame` is in its place.
  void arrive(uint8_t number, const std::vector<std::byte>& frame) {
    auto& place = bench_->paths.lane(0).control.box->incoming[number % ControlBox::slots];
    std::memcpy(place.data(), frame.data(), frame.size());
    arrive(ControlMark{number, 1, 0}, frame.size());
  }
  /// What was written so far is acknowledged, or so many more of it.
  void complete_writes(size_t count = SIZE_MAX) {
    for (; count != 0 && completed_ < bench_->path().posts.size(); ++completed_, --count) {
      take(completion_of(0, bench_->path().posts[completed_]));
    }
  }
  /// The numbers of all messages that were written.
  std::vector<unsigned> written() const {
    std::vector<unsigned> numbers;
    for (const fabric::WritePost& post : bench_->path().posts) {
      if (post.gather_count != 0) {
        numbers.push_back(ControlMark::unpack(post.immediate).number);
      }
    }
    return numbers;
  }
  void take(const fabric::Completion& completion) {
    EXPECT_TRUE(bench_->control.boxes().on_completion(completion, bench_->paths.lane(0)));
  }
  /// The connection's from now on.
  SilentStream& take_stream(ControlReader reader = {}) {
    auto stream = std::make_unique<SilentStream>();
    SilentStream& taken = *stream;
    bench_->control.take_stream(std::move(stream), std::move(reader));
    return taken;
  }

  size_t completed_ = 0;
};

/// That a write is acknowledged says nothing of who reads what it wrote.
TEST_F(ControlLinkTest, AMessageIsWrittenOverOneThatThePeerHasTaken) {
  for (unsigned i = 0; i < ControlBox::slots + 2; ++i) {
    bench_->control.send(notice());
  }
  complete_writes();
  EXPECT_EQ(written(), (std::vector<unsigned>{1, 2, 3, 4}));
  arrive(ControlMark{0, 2, 0}, 0);
  EXPECT_EQ(written(), (std::vector<unsigned>{1, 2, 3, 4, 5}));
  const auto& posts = bench_->path().posts;
  EXPECT_EQ(posts.back().remote_address, posts.front().remote_address);
  arrive(ControlMark{0, 3, 0}, 0);
  EXPECT_EQ(written(), (std::vector<unsigned>{1, 2, 3, 4, 5, 6}));
  EXPECT_TRUE(bench_->failures.empty());
}

/// The path before took some of it along when it failed; the stream may be gone too.
TEST_F(ControlLinkTest, APathThatComesUpIsGivenWhatIsUnconfirmed) {
  for (int i = 0; i < 3; ++i) {
    bench_->control.send(notice());
  }
  complete_writes();
  arrive(ControlMark{0, 2, 0}, 0);
  ASSERT_EQ(written(), (std::vector<unsigned>{1, 2, 3}));
  bench_->control.boxes().begin(bench_->paths.lane(0));
  EXPECT_EQ(written(), (std::vector<unsigned>{1, 2, 3, 2, 3})) << "1 is confirmed";
  EXPECT_TRUE(bench_->failures.empty());
}

/// A lane that was slow leaves out what was confirmed meanwhile.  The write before in the same
/// place may still be repeated, over what would be written there now.
TEST_F(ControlLinkTest, APlaceIsNotWrittenWhileAnOlderWriteToItIsUnderWay) {
  for (unsigned i = 0; i < 2 * ControlBox::slots - 1; ++i) {
    bench_->control.send(notice());
  }
  complete_writes(ControlBox::slots - 1);
  EXPECT_EQ(written(), (std::vector<unsigned>{1, 2, 3, 4})) << "the peer has confirmed nothing";
  arrive(ControlMark{0, 8, 0}, 0);  // the stream brought all of them
  bench_->control.send(notice());
  EXPECT_EQ(written(), (std::vector<unsigned>{1, 2, 3, 4})) << "4 is under way";
  complete_writes();
  EXPECT_EQ(written(), (std::vector<unsigned>{1, 2, 3, 4, 8}));
  EXPECT_TRUE(bench_->failures.empty());
}

/// The stream brought the first one, which was confirmed; who reads completions comes late.
TEST_F(ControlLinkTest, APlaceThatWasWrittenAnewMeanwhileIsNotTheOlderMessage) {
  take_stream().hear(message(1));
  arrive(1, message(5));
  for (uint8_t number = 2; number <= 5; ++number) {
    arrive(number, message(number));
  }
  pass(microseconds(10));
  EXPECT_EQ(bench_->heard, (std::vector<uint32_t>{1, 2, 3, 4, 5}));
  EXPECT_TRUE(bench_->failures.empty());
}

TEST_F(ControlLinkTest, WhatWasTakenIsConfirmedOverThePathsToo) {
  arrive(1, message(1));
  pass(microseconds(10));
  ASSERT_EQ(bench_->heard, (std::vector<uint32_t>{1}));
  ASSERT_EQ(bench_->path().posts.size(), 1U);
  const fabric::WritePost& mark = bench_->path().posts.front();
  EXPECT_EQ(mark.gather_count, 0U);
  ASSERT_TRUE(ControlMark::marks(mark.immediate));
  EXPECT_EQ(ControlMark::unpack(mark.immediate).confirmed, 2U);
}

/// The old one ends within a message, and of the new one more was read than made it the new one.
TEST_F(ControlLinkTest, AStreamThatTakesTheOldOnesPlaceIsReadFromItsBeginning) {
  const std::vector<std::byte> first = message(1);
  take_stream().hear(std::span(first).first(first.size() - 3));
  ControlReader reader;
  ASSERT_TRUE(reader.feed(first));
  SilentStream& taken = take_stream(std::move(reader));
  bench_->control.read_stream();
  taken.hear(message(2));
  EXPECT_EQ(bench_->heard, (std::vector<uint32_t>{1, 2}));
  EXPECT_TRUE(bench_->failures.empty());
}

}  // namespace
}  // namespace nccl_ha
