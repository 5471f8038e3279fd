// Control streams that break on virtual time: a stream is only a messenger, so its loss ends no
// connection; and peers that are really gone, which both sides learn in time.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "actors/connection/connection.h"
#include "tests/rig/runs/pair.h"
#include "tests/support/sim_pair.h"

namespace nccl_ha::test {
namespace {

using rig::SimCables;
using rig::SimPair;
using rig::TransferPlan;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

sim::Tcp& tcp(SimPair& pair) { return pair.world().network().tcp(); }

void set_streams_dark(SimPair& pair, bool dark) {
  sim::Middlebox box;
  box.dark = dark;
  for (size_t rail = 0; rail < pair.sender().addresses.size(); ++rail) {
    tcp(pair).set_middlebox(pair.sender().addresses[rail], pair.receiver().addresses[rail], box);
  }
}

/// A path each of datagrams and RDMA, and with another rail to fall back to.
std::vector<SimCables> all_cables() {
  return {{.rails = 1}, {.rails = 2}, {.rails = 1, .rdma = true}, {.rails = 2, .rdma = true}};
}

std::string text_of(const SimCables& cables) {
  return fmt::format("{} rails of {}", cables.rails, cables.rdma ? "RDMA" : "datagrams");
}

/// Nothing has happened to the connection.
void expect_untouched(SimPair& pair) {
  EXPECT_EQ(pair.send_channel().phase(), Phase::ready) << pair.error();
  EXPECT_EQ(pair.receive_channel().phase(), Phase::ready) << pair.error();
  EXPECT_EQ(pair.send_channel().counters().paths_down.get(), 0U);
  EXPECT_EQ(pair.receive_channel().counters().paths_down.get(), 0U);
}

/// Data of so many seconds, with pauses of half a second.
TransferPlan load_for(SimPair& pair, int64_t time, std::function<void()> each_round) {
  TransferPlan plan;
  plan.groups = static_cast<uint64_t>(2 * time);
  plan.bytes_max = 20000;
  plan.each_round = std::move(each_round);
  plan.released = [&pair, begin = pair.world().now()] {
    return static_cast<uint64_t>((pair.world().now() - begin) / milliseconds(500)) + 1;
  };
  return plan;
}

TEST(SimStream, TheManagementNetworkMayBeAwayForAsLongAsItWants) {
  uint64_t ended = 0;
  for (const SimCables& cables : all_cables()) {
    for (const int64_t away : {10, 58, 62, 120}) {
      for (const bool load : {false, true}) {
        SCOPED_TRACE(fmt::format("{} away for {} s {}", text_of(cables), away,
                                 load ? "under load" : "idle"));
        SimPair pair(31, {}, {}, cables);
        ASSERT_TRUE(pair.connect()) << pair.error();
        pass(pair, seconds(1));
        set_streams_dark(pair, true);
        const Instant back = pair.world().now() + seconds(away);
        if (load) {
          EXPECT_EQ(pair.transfer(load_for(pair, away + 40,
                                           [&] {
                                             if (pair.world().now() >= back) {
                                               set_streams_dark(pair, false);
                                             }
                                           }),
                                  seconds(away + 60)),
                    "");
        } else {
          pass(pair, seconds(away));
          set_streams_dark(pair, false);
          pass(pair, seconds(60));
        }
        expect_untouched(pair);
        ended += tcp(pair).counts().timeouts + tcp(pair).counts().resets;
        // There is a stream again: whoever dies now is noticed by it.
        pair.world().kill_process(pair.sender());
        EXPECT_TRUE(pair.world().run_until(
            [&] { return pair.receive_channel().phase() == Phase::failed; }, seconds(1)));
      }
    }
  }
  EXPECT_GT(ended, 16U) << "no stream ever ended";
}

TEST(SimStream, AMiddleboxThatEndsOrForgetsStreamsEndsNoConnection) {
  enum class Fault : uint8_t { reset, fin, forgotten, forgotten_and_reset };
  for (const SimCables& cables : all_cables()) {
    for (const Fault fault :
         {Fault::reset, Fault::fin, Fault::forgotten, Fault::forgotten_and_reset}) {
      for (const bool load : {false, true}) {
        SCOPED_TRACE(fmt::format("{} fault {} {}", text_of(cables), static_cast<int>(fault),
                                 load ? "under load" : "idle"));
        SimPair pair(32, {}, {}, cables);
        ASSERT_TRUE(pair.connect()) << pair.error();
        pass(pair, seconds(1));
        bool done = false;
        const Instant at = pair.world().now() + seconds(2);
        const auto strike = [&] {
          if (done || pair.world().now() < at) {
            return;
          }
          done = true;
          const sim::Ip one = pair.sender().address;
          const sim::Ip other = pair.receiver().address;
          if (fault == Fault::reset || fault == Fault::fin) {
            tcp(pair).end_flows(one, other, fault == Fault::reset);
          } else {
            tcp(pair).forget_flows(one, other, fault == Fault::forgotten_and_reset);
          }
        };
        if (load) {
          EXPECT_EQ(pair.transfer(load_for(pair, 80, strike), seconds(120)), "");
        } else {
          pass(pair, seconds(2));
          strike();
          pass(pair, seconds(80));
        }
        ASSERT_TRUE(done);
        expect_untouched(pair);
        pair.world().kill_process(pair.receiver());
        EXPECT_TRUE(pair.world().run_until(
            [&] { return pair.send_channel().phase() == Phase::failed; }, seconds(1)));
      }
    }
  }
}

TEST(SimStream, AKilledProcessIsNoticedWithinASecond) {
  for (const SimCables& cables : all_cables()) {
    for (const bool sender_dies : {false, true}) {
      for (const bool load : {false, true}) {
        SCOPED_TRACE(fmt::format("{} the {} dies {}", text_of(cables),
                                 sender_dies ? "sender" : "receiver",
                                 load ? "under load" : "idle"));
        SimPair pair(33, {}, {}, cables);
        ASSERT_TRUE(pair.connect()) << pair.error();
        pass(pair, seconds(1));
        if (load) {
          pair.post_receives(8);
          ASSERT_TRUE(pair.post_send(1 << 20)) << pair.error();
        }
        pair.world().kill_process(sender_dies ? pair.sender() : pair.receiver());
        const Instant killed = pair.world().now();
        const Channel& left = sender_dies ? static_cast<Channel&>(pair.receive_channel())
                                          : static_cast<Channel&>(pair.send_channel());
        EXPECT_TRUE(
            pair.world().run_until([&] { return left.phase() == Phase::failed; }, seconds(1)));
        EXPECT_GE(pair.world().now() - killed, milliseconds(200)) << "nobody asked";
        EXPECT_NE(left.failure().what.find("the peer is gone"), std::string::npos)
            << left.failure().what;
        EXPECT_GT(tcp(pair).counts().refused, 0U);
      }
    }
  }
}

TEST(SimStream, AHostWithoutPowerEndsBothKindsOfConnectionWithinTheBudget) {
  Config config;
  config.retry_budget_ms = 5000;
  for (const SimCables& cables : all_cables()) {
    for (const bool sender_dies : {false, true}) {
      for (const bool load : {false, true}) {
        SCOPED_TRACE(fmt::format("{} the {} dies {}", text_of(cables),
                                 sender_dies ? "sender" : "receiver",
                                 load ? "under load" : "idle"));
        SimPair pair(34, {}, config, cables);
        ASSERT_TRUE(pair.connect()) << pair.error();
        pass(pair, seconds(1));
        if (load) {
          pair.post_receives(8);
          ASSERT_TRUE(pair.post_send(1 << 20)) << pair.error();
        }
        pair.world().power_off(sender_dies ? pair.sender() : pair.receiver());
        const Channel& left = sender_dies ? static_cast<Channel&>(pair.receive_channel())
                                          : static_cast<Channel&>(pair.send_channel());
        // Silence of a path without a witness, then the budget.
        EXPECT_TRUE(
            pair.world().run_until([&] { return left.phase() == Phase::failed; }, seconds(10)));
      }
    }
  }
}

TEST(SimStream, APeerThatNoLongerKnowsTheConnectionSaysSo) {
  // It was closed in the middle, nobody hears that in time, and its process lives on.
  SimPair pair(35, {});
  ASSERT_TRUE(pair.connect()) << pair.error();
  pair.post_receives(1);
  pass(pair, milliseconds(10));
  rig::SimLink other(pair.world(), pair.sender(), pair.receiver());
  ASSERT_TRUE(other.wait_ready()) << other.error();
  sim::Link dark;
  dark.cut = true;
  pair.set_links(dark, dark);
  pair.receive_driver().close();
  pass(pair, seconds(5));
  ASSERT_EQ(pair.send_channel().phase(), Phase::ready) << pair.error();
  pair.set_links({}, {});
  ASSERT_TRUE(pair.world().run_until([&] { return pair.send_channel().phase() == Phase::failed; },
                                     seconds(5)));
  EXPECT_NE(pair.send_channel().failure().what.find("no longer knows this connection"),
            std::string::npos)
      << pair.send_channel().failure().what;
  EXPECT_EQ(other.sender().phase(), Phase::ready) << other.error();
}

TEST(SimStream, WithoutFailoverTheFirstFailureIsFinal) {
  Config config;
  config.enable_backup = false;
  for (const bool reset : {false, true}) {
    SimPair pair(36, {}, config);
    ASSERT_TRUE(pair.connect()) << pair.error();
    tcp(pair).end_flows(pair.sender().address, pair.receiver().address, reset);
    EXPECT_TRUE(pair.world().run_until(
        [&] {
          return pair.send_channel().phase() == Phase::failed &&
                 pair.receive_channel().phase() == Phase::failed;
        },
        milliseconds(10)));
  }
}

TEST(SimStream, AnEngineThatEndsInGoodOrderSaysSo) {
  for (const bool sender_ends : {false, true}) {
    SimPair pair(37, {});
    ASSERT_TRUE(pair.connect()) << pair.error();
    sim::World::end_process(sender_ends ? pair.sender() : pair.receiver());
    const Channel& left = sender_ends ? static_cast<Channel&>(pair.receive_channel())
                                      : static_cast<Channel&>(pair.send_channel());
    ASSERT_TRUE(
        pair.world().run_until([&] { return left.phase() == Phase::failed; }, milliseconds(10)));
    EXPECT_NE(left.failure().what.find("closed the connection"), std::string::npos)
        << left.failure().what;
  }
}

// A stream knows no messages: a read may bring any part of one, and the stream may end there.
TEST(SimStream, MessagesMayArriveInPiecesAndTheirStreamMayEndWithinOne) {
  uint64_t torn = 0;
  for (const SimCables& cables : all_cables()) {
    for (const size_t longest : {1, 7, 40}) {
      for (const bool sender_ends : {false, true}) {
        SCOPED_TRACE(fmt::format("{} pieces of {} the {} ends", text_of(cables), longest,
                                 sender_ends ? "sender" : "receiver"));
        SimPair pair(38, {}, {}, cables);
        tcp(pair).set_pieces({longest, microseconds(50)});
        ASSERT_TRUE(pair.connect()) << pair.error();
        EXPECT_GT(tcp(pair).counts().pieces, 10U) << "nothing was cut";
        pass(pair, seconds(1));
        // Each time a path is given up, and the stream that tells of it ends meanwhile.
        const Instant begin = pair.world().now();
        int suspicions = 0;
        int resets = 0;
        const auto strike = [&] {
          const Duration since = pair.world().now() - begin;
          if (suspicions < 5 && since >= suspicions * seconds(2)) {
            ++suspicions;
            EXPECT_TRUE(pair.receive_driver().suspect(0));
            pair.world().network().stop_at(pair.world().now() + microseconds(100 * suspicions));
          } else if (resets < suspicions &&
                     since >= resets * seconds(2) + microseconds(100 * (resets + 1))) {
            ++resets;
            tcp(pair).end_flows(pair.sender().address, pair.receiver().address, true);
          }
        };
        EXPECT_EQ(pair.transfer(load_for(pair, 12, strike), seconds(60)), "");
        EXPECT_EQ(resets, 5);
        EXPECT_GE(pair.receive_channel().counters().paths_down.get(), 5U) << "no path was given up";
        torn += tcp(pair).counts().torn;
        sim::World::end_process(sender_ends ? pair.sender() : pair.receiver());
        const Channel& left = sender_ends ? static_cast<Channel&>(pair.receive_channel())
                                          : static_cast<Channel&>(pair.send_channel());
        ASSERT_TRUE(pair.world().run_until([&] { return left.phase() == Phase::failed; },
                                           milliseconds(100)));
        EXPECT_NE(left.failure().what.find("closed the connection"), std::string::npos)
            << left.failure().what;
      }
    }
  }
  EXPECT_GT(torn, 20U) << "no stream ended within a message";
}

}  // namespace
}  // namespace nccl_ha::test
