#include <gtest/gtest.h>
#include <netinet/in.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "runtime/fabric/datagram/path_check.h"

namespace nccl_ha::fabric {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

SocketAddress address_of(sa_family_t family) {
  SocketAddress address;
  address.storage.ss_family = family;
  address.length = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  return address;
}

FrameHeader pong_of(uint32_t bytes, uint32_t candidate) {
  FrameHeader pong;
  pong.type = FrameType::pong;
  pong.fragment_length = bytes;
  pong.immediate = candidate;
  return pong;
}

class PathCheckTest : public testing::Test {
 protected:
  PathCheckTest() { check_.begin(9000, address_of(AF_INET), {}, seconds(10)); }
  /// Rounds until the check is through, or `most` of them; datagrams up to `way_max` come back.
  bool run(uint32_t way_max, bool small = true, int most = 100) {
    for (int i = 0; i < most; ++i) {
      const PathCheck::Round round = check_.next_round();
      if (check_.through()) {
        return true;
      }
      if (round.small && small && check_.on_pong(pong_of(header_bytes, round.attempt), {})) {
        return true;
      }
      if (round.full_bytes != 0) {
        sizes_.push_back(round.full_bytes);
        if (round.full_bytes <= way_max &&
            check_.on_pong(pong_of(round.full_bytes, round.candidate), {})) {
          return true;
        }
      }
    }
    return false;
  }

  PathCheck check_;
  std::vector<uint32_t> sizes_;
};

TEST_F(PathCheckTest, IsThroughWithOneRoundWhereTheInterfacesSizeGetsThrough) {
  EXPECT_TRUE(run(9000, true, 1));
  EXPECT_EQ(check_.mtu(), 9000U);
  EXPECT_EQ(check_.mtu(), check_.mtu_max());
  EXPECT_EQ(check_.datagram_bytes(), 9000U - 20 - 8) << "headers of IP and UDP";
}

TEST_F(PathCheckTest, TriesSmallerSizesUntilOneGetsThrough) {
  EXPECT_TRUE(run(1472));
  EXPECT_EQ(check_.mtu(), 1500U);
  EXPECT_EQ(check_.mtu_max(), 9000U);
  const auto got_through = std::find(sizes_.begin(), sizes_.end(), 1472U);
  EXPECT_TRUE(std::is_sorted(sizes_.begin(), got_through, std::greater<>()));
  EXPECT_GE(std::count(sizes_.begin(), got_through, 8972U), 4) << "each may get lost";
  EXPECT_TRUE(std::is_sorted(got_through + 1, sizes_.end(), std::greater<>()));
  EXPECT_GE(std::count(got_through, sizes_.end(), 8972U), 3) << "and the losses be over";
}

TEST_F(PathCheckTest, ALargeSizeThatGotLostForAWhileIsTriedAgainOnceASmallerOneGetsThrough) {
  EXPECT_FALSE(run(0, true, 5));
  EXPECT_EQ(sizes_.back(), 8972U);
  EXPECT_FALSE(run(4172, true, 1)) << "got through, but a larger one may by now";
  EXPECT_TRUE(run(8972, true, 1));
  EXPECT_EQ(check_.mtu(), 9000U);
}

TEST_F(PathCheckTest, SizeIsNotToBlameWhileNothingGetsThrough) {
  EXPECT_FALSE(run(0, false, 50));
  EXPECT_EQ(sizes_.back(), 8972U);
  EXPECT_NE(std::string(check_.diagnosis()).find("no datagram"), std::string::npos);
}

TEST_F(PathCheckTest, TellsAFilterFromASize) {
  EXPECT_FALSE(run(0, true, 50));
  EXPECT_NE(std::string(check_.diagnosis()).find("MTU"), std::string::npos);
  PathCheck other;
  other.begin(1500, address_of(AF_INET), {}, seconds(10));
  const PathCheck::Round round = other.next_round();
  EXPECT_FALSE(other.on_pong(pong_of(round.full_bytes, round.candidate), {}));
  EXPECT_TRUE(other.next_round().small) << "that one has not come back";
  EXPECT_EQ(other.next_round().full_bytes, 0U);
  EXPECT_NE(std::string(other.diagnosis()).find("command port"), std::string::npos);
}

TEST_F(PathCheckTest, AnAnswerCountsForTheSizeThatItWasAskedWith) {
  static_cast<void>(check_.next_round());
  EXPECT_FALSE(check_.on_pong(pong_of(header_bytes, 0), {}));
  EXPECT_FALSE(check_.on_pong(pong_of(8972, 1), {})) << "not that candidate's";
  EXPECT_FALSE(check_.on_pong(pong_of(8972, 1000), {})) << "no candidate's";
  EXPECT_TRUE(check_.on_pong(pong_of(8972, 0), {}));
}

TEST_F(PathCheckTest, RoundsComeLessOftenInTime) {
  Duration before{};
  for (int i = 0; i < 10; ++i) {
    const Duration wait = check_.next_round().wait;
    EXPECT_GE(wait, before);
    EXPECT_LE(wait, milliseconds(100));
    before = wait;
  }
  EXPECT_EQ(before, milliseconds(100));
  EXPECT_FALSE(check_.expired({Instant(seconds(10)) - milliseconds(1), {}}));
  EXPECT_TRUE(check_.expired({Instant(seconds(10)), {}}));
  EXPECT_FALSE(check_.expired({Instant(seconds(12)), seconds(3)})) << "it stood still itself";
  EXPECT_TRUE(check_.expired({Instant(seconds(13)), seconds(3)}));
}

TEST(PathCheck, WhereAnythingGetsThroughTheSearchForTheSizeHasItsTime) {
  for (const bool answered : {true, false}) {
    PathCheck check;
    const Instant begin{seconds(5)};
    Instant now = begin;
    check.begin(9000, address_of(AF_INET), {begin, {}}, milliseconds(25));
    while (!check.expired({now, {}}) && !check.through()) {
      const PathCheck::Round round = check.next_round();
      if (round.small && answered) {
        static_cast<void>(check.on_pong(pong_of(header_bytes, round.attempt), {now, {}}));
      }
      if (answered && round.full_bytes != 0 && round.full_bytes <= 1252) {
        static_cast<void>(check.on_pong(pong_of(round.full_bytes, round.candidate), {now, {}}));
      }
      now += round.wait;
    }
    EXPECT_TRUE(!answered || check.mtu() == 1280) << "the smallest";
    EXPECT_LE(now - begin, answered ? milliseconds(1600) : milliseconds(65));
  }
}

TEST(PathCheck, KnowsTheHeadersOfEachKindOfNetwork) {
  const auto payload = [](uint32_t mtu, const SocketAddress& to) {
    PathCheck check;
    check.begin(mtu, to, {}, seconds(1));
    return check.datagram_bytes();
  };
  EXPECT_EQ(payload(1500, address_of(AF_INET)), 1472U);
  EXPECT_EQ(payload(1500, address_of(AF_INET6)), 1452U);
  EXPECT_EQ(payload(65536, address_of(AF_INET)), 65507U) << "the largest of UDP";
  UdAddress pair;
  pair.queue_pair = 17;
  EXPECT_EQ(payload(4096, SocketAddress::from_ud(pair)), 4096U);
}

TEST(PathCheck, PingsThatCameTooEarlyAreAnsweredOnce) {
  PathCheck check;
  FrameHeader small;
  FrameHeader full;
  full.payload_length = 1000;
  for (const uint32_t attempt : {1U, 2U}) {
    small.immediate = full.immediate = attempt;
    check.keep(small);
    check.keep(full);
  }
  std::vector<uint16_t> lengths;
  const auto answer = [&](const FrameHeader& ping) {
    lengths.push_back(ping.payload_length);
    EXPECT_EQ(ping.immediate, 2U) << "the last one";
  };
  check.answer_kept(answer);
  check.answer_kept(answer);
  EXPECT_EQ(lengths, (std::vector<uint16_t>{0, 1000}));
}

}  // namespace
}  // namespace nccl_ha::fabric
