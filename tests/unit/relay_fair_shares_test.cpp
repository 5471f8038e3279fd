#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "relay/fair_shares.h"
#include "relay/relay_pool.h"
#include "runtime/base/random.h"

namespace nccl_ha::relay {
namespace {

using std::chrono::milliseconds;

/// Members with pieces of one size each, on a cable that takes a byte per nanosecond.
class Sharing : public testing::Test {
 protected:
  struct Piece {
    uint32_t member;
    uint64_t bytes;
  };
  uint32_t add(uint64_t piece) {
    const uint32_t member = shares_.enter();
    pieces_.resize(std::max<size_t>(pieces_.size(), member + 1));
    sent_.resize(pieces_.size());
    pieces_[member] = piece;
    sent_[member] = 0;
    return member;
  }
  void serve() {
    shares_.serve(now_, [&](uint32_t member, uint64_t bytes) {
      FairShares::Taken taken;
      while (taken.bytes + pieces_[member] <= bytes) {
        taken.bytes += pieces_[member];
        flight_.push_back({member, pieces_[member]});
      }
      taken.more = true;
      return taken;
    });
  }
  /// The oldest of those that are not held arrive.
  void run(size_t pieces, uint32_t held = UINT32_MAX) {
    for (size_t i = 0; i < pieces; ++i) {
      const auto next = std::find_if(flight_.begin(), flight_.end(),
                                     [&](const Piece& one) { return one.member != held; });
      if (next != flight_.end()) {
        const Piece piece = *next;
        flight_.erase(next);
        now_ += Duration(static_cast<int64_t>(piece.bytes));
        sent_[piece.member] += piece.bytes;
        shares_.done(piece.member, piece.bytes, now_);
        shares_.want(piece.member);
      } else {
        now_ += milliseconds(1);
      }
      serve();
      flight_most_ = std::max(flight_most_, shares_.in_flight());
    }
  }
  FairShares shares_{{1000, 8000, milliseconds(20)}};
  std::vector<uint64_t> pieces_;
  std::vector<uint64_t> sent_;
  std::vector<Piece> flight_;
  uint64_t flight_most_ = 0;
  Instant now_{std::chrono::seconds(1)};
};

TEST_F(Sharing, AllGetTheSameWhateverTheirPieces) {
  for (const uint64_t piece : {1000, 500, 900, 37, 333, 1000}) {
    shares_.want(add(piece));
  }
  serve();
  run(100000);
  const auto [least, most] = std::minmax_element(sent_.begin(), sent_.end());
  EXPECT_GT(*least, 1'000'000U);
  EXPECT_LE(*most - *least, 20'000U) << "a few quanta";
  EXPECT_LE(flight_most_, 8000U + 2000U) << "the limit, and the last turn";
}

TEST_F(Sharing, WhoHasLittleSavesNothingUp) {
  const uint32_t member = shares_.enter();
  for (int i = 0; i < 100; ++i) {
    shares_.want(member);
    shares_.serve(now_, [](uint32_t, uint64_t) { return FairShares::Taken{100, false}; });
    shares_.done(member, 100, now_);
  }
  uint64_t offered = 0;
  shares_.want(member);
  shares_.serve(now_, [&](uint32_t, uint64_t bytes) {
    offered = bytes;
    return FairShares::Taken{};
  });
  EXPECT_EQ(offered, 1000U) << "a burst would hold the others up";
}

TEST_F(Sharing, WhoIsStalledHoldsUpNobody) {
  const uint32_t stalled = add(1000);
  shares_.want(stalled);
  serve();
  ASSERT_EQ(shares_.in_flight(), 8000U) << "all of what may be under way is its";
  const uint32_t other = add(100);
  shares_.want(other);
  serve();
  EXPECT_TRUE(shares_.blocked());
  run(30, stalled);
  EXPECT_EQ(sent_[stalled], 0U);
  run(1000, stalled);
  EXPECT_GT(sent_[other], 50'000U);
  // When its hop moves again it gets its turns too.
  run(1000);
  EXPECT_GT(sent_[stalled], 10'000U);
  EXPECT_LE(flight_most_, 8000U + 8000U + 2000U);
}

TEST_F(Sharing, WhoLeavesTakesWhatItHadUnderWayAlong) {
  const uint32_t first = add(1000);
  shares_.want(first);
  serve();
  const uint32_t second = add(1000);
  shares_.want(second);
  shares_.leave(first);
  std::erase_if(flight_, [&](const Piece& one) { return one.member == first; });
  EXPECT_EQ(shares_.in_flight(), 0U);
  serve();
  EXPECT_EQ(shares_.in_flight(), 8000U);
  EXPECT_EQ(add(1), first) << "its number is free again";
  shares_.leave(first);
  shares_.leave(second);
  EXPECT_EQ(shares_.in_flight(), 0U);
  EXPECT_EQ(shares_.waiting(), 0U);
  EXPECT_FALSE(shares_.blocked());
}

TEST_F(Sharing, WhoLeavesWhileItIsStalledTakesNothingOfTheOthers) {
  const uint32_t stalled = add(1000);
  shares_.want(stalled);
  serve();
  const uint32_t other = add(100);
  shares_.want(other);
  run(100, stalled);
  ASSERT_GT(sent_[other], 0U) << "the stalled one was set aside";
  shares_.leave(stalled);
  std::erase_if(flight_, [&](const Piece& one) { return one.member == stalled; });
  const auto under_way = [&] {
    uint64_t bytes = 0;
    for (const Piece& one : flight_) {
      bytes += one.bytes;
    }
    return bytes;
  };
  EXPECT_EQ(shares_.in_flight(), under_way());
  const uint64_t before = sent_[other];
  run(200);
  EXPECT_GT(sent_[other], before + 10'000);
  EXPECT_EQ(shares_.in_flight(), under_way());
}

TEST(RelayPool, GivesLessTheLessThereIsAndNothingWithoutRoom) {
  constexpr uint32_t chunk = 1024;
  RelayPool pool(RelayPool::bytes_of(200, chunk));
  std::vector<uint16_t> given;
  for (uint16_t slots = 1; slots != 0;) {
    slots = pool.take(16, chunk);
    given.push_back(slots);
    EXPECT_LE(pool.used(), pool.bytes());
  }
  given.pop_back();
  EXPECT_EQ(given.front(), 16) << "all that it asked for";
  EXPECT_EQ(given.back(), slots_min);
  EXPECT_TRUE(std::is_sorted(given.rbegin(), given.rend()));
  EXPECT_LT(pool.bytes() - pool.used(), RelayPool::bytes_of(slots_min, chunk));
  for (const uint16_t slots : given) {
    pool.give_back(slots, chunk);
  }
  EXPECT_EQ(pool.used(), 0U);
  EXPECT_GT(pool.used_most(), pool.bytes() * 9 / 10);
}

}  // namespace
}  // namespace nccl_ha::relay
