// Several fallback paths of one connection, each over a rail of its own.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "ha/sweep.h"
#include "tests/rig/runs/failover_run.h"
#include "tests/support/log_lines.h"
#include "tests/support/sim_pair.h"
#include "tests/support/sim_seeds.h"

namespace nccl_ha::test {
namespace {

using rig::FailoverRun;
using rig::FailoverTotals;
using rig::SimPair;
using std::chrono::seconds;

Config shadows_config(int64_t shadows) {
  Config config;
  config.shadow_paths = shadows;
  return config;
}

void set_rail(SimPair& pair, size_t rail, bool dark) {
  sim::Link link;
  link.cut = dark;
  pair.set_links(link, link, rail);
}

bool is_open(SendChannel& channel) {
  for (uint16_t i = 0; i < sends_max; ++i) {
    if (channel.slot(i).state.load() == RequestState::pending) {
      return true;
    }
  }
  return false;
}

class Shadows : public testing::TestWithParam<bool> {
 protected:
  static SimPair make(uint64_t seed, size_t rails, int64_t shadows) {
    return SimPair(seed, {}, shadows_config(shadows), {.rails = rails, .rdma = GetParam()});
  }
  static std::string transfer(SimPair& pair, uint64_t seed) {
    rig::TransferPlan plan;
    plan.seed = seed;
    return pair.transfer(plan, seconds(20));
  }
};
INSTANTIATE_TEST_SUITE_P(Fabrics, Shadows, testing::Bool(), [](const auto& one) {
  return std::string(one.param ? "rdma" : "datagrams");
});

/// Nobody waits for a path to be made: each of them stands by.
TEST_P(Shadows, EachTakesOverInItsTurnAndAtOnce) {
  SimPair pair = make(91, 4, 3);
  ASSERT_TRUE(pair.connect()) << pair.error();
  const auto& failovers = pair.send_channel().counters();
  pass(pair, seconds(2));
  for (size_t rail = 0; rail < 3; ++rail) {
    set_rail(pair, rail, true);
    const Instant begin = pair.world().now();
    ASSERT_EQ(transfer(pair, 91 + rail), "") << "rail " << rail;
    EXPECT_LE(pair.world().now() - begin, seconds(2)) << "rail " << rail;
    EXPECT_EQ(failovers.traffic_moves.get(), rail + 1);
  }
  EXPECT_GT(pair.world().network().counts().cut + pair.world().rdma().counts.lost, 0U)
      << "the faults did not happen";
}

TEST_P(Shadows, NoTwoShareARail) {
  SimPair pair = make(92, 4, 3);
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, seconds(2));
  set_rail(pair, 2, true);
  pass(pair, seconds(10));
  EXPECT_EQ(pair.send_channel().counters().paths_down.get(), 1U);
}

/// Announcements go on over the second shadow, and traffic back to the first one, whose device's
/// keys were told for the path before.
TEST_P(Shadows, AReceiveThatWasOpenWhenAShadowWasReplacedCanBeWrittenOverIt) {
  Config config = shadows_config(2);
  config.enable_failback = true;
  config.failback_ms = 500;
  SimPair pair(96, {}, config, {.rails = 3, .rdma = GetParam()});
  ASSERT_TRUE(pair.connect()) << pair.error();
  const auto& failovers = pair.send_channel().counters();
  pass(pair, seconds(2));
  set_rail(pair, 0, true);
  ASSERT_EQ(transfer(pair, 1), "");
  set_rail(pair, 1, true);
  ASSERT_EQ(transfer(pair, 2), "");
  ASSERT_EQ(failovers.traffic_moves.get(), 2U);
  pair.post_receives(2);
  pass(pair, seconds(10));  // in which the path is tried again, each time as another one
  set_rail(pair, 1, false);
  ASSERT_TRUE(
      pair.world().run_until([&] { return failovers.traffic_moves.get() == 3; }, seconds(60)));
  ASSERT_TRUE(pair.post_send(1 << 16)) << pair.error();
  ASSERT_TRUE(is_open(pair.send_channel()));
  EXPECT_TRUE(pair.world().run_until([&] { return !is_open(pair.send_channel()); }, seconds(5)));
  EXPECT_EQ(failovers.traffic_moves.get(), 3U);
}

TEST_P(Shadows, AShadowThatWasReplacedCarriesAgain) {
  SimPair pair = make(93, 3, 2);
  ASSERT_TRUE(pair.connect()) << pair.error();
  const auto& failovers = pair.send_channel().counters();
  pass(pair, seconds(2));
  set_rail(pair, 0, true);
  ASSERT_EQ(transfer(pair, 1), "");
  set_rail(pair, 1, true);
  ASSERT_EQ(transfer(pair, 2), "");
  ASSERT_EQ(failovers.traffic_moves.get(), 2U);
  set_rail(pair, 1, false);
  ASSERT_TRUE(pair.world().run_until([&] { return failovers.paths_back.get() == 1; }, seconds(60)));
  set_rail(pair, 2, true);
  ASSERT_EQ(transfer(pair, 3), "");
  EXPECT_EQ(failovers.traffic_moves.get(), 3U);
}

TEST_P(Shadows, TheSideThatWantsFewerDecides) {
  for (const bool sender_wants_more : {true, false}) {
    SimPair pair(94, {}, shadows_config(sender_wants_more ? 3 : 1),
                 {.rails = 4, .rdma = GetParam()}, shadows_config(sender_wants_more ? 1 : 3));
    ASSERT_TRUE(pair.connect()) << pair.error();
    pass(pair, seconds(2));
    for (const size_t rail : {2U, 3U}) {
      set_rail(pair, rail, true);
    }
    pass(pair, seconds(10));
    EXPECT_EQ(pair.send_channel().counters().paths_down.get(), 0U) << "nothing lies there";
    ASSERT_EQ(transfer(pair, 94), "");
  }
}

/// Nothing was posted over it, and no heartbeat was due: the receiver knows all the same that the
/// sender's half was in use.
TEST_P(Shadows, AStandbyThatGoesIsToldOfOnBothHosts) {
  Config config = shadows_config(1);
  config.heartbeat_ms = 0;
  SimPair pair(103, {}, config, {.rails = 2, .rdma = GetParam()});
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, seconds(2));
  const LogLines log;
  ASSERT_TRUE(pair.send_driver().suspect(1));
  pass(pair, std::chrono::milliseconds(100));
  ASSERT_EQ(pair.send_channel().counters().paths_down.get(), 1U) << "the fault did not happen";
  EXPECT_EQ(pair.receive_channel().counters().paths_down.get(), 1U);
  EXPECT_EQ(log.count("is down: "), 2U) << log.text();
}

/// What it has shown is its first heartbeat.
TEST_P(Shadows, AStandbyThatFlapsIsMadeAnewLessAndLessOften) {
  Config config = shadows_config(1);
  config.heartbeat_ms = 0;
  SimPair pair(104, {}, config, {.rails = 2, .rdma = GetParam()});
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, seconds(2));
  const auto& counters = pair.send_channel().counters();
  const Instant begin = pair.world().now();
  for (uint64_t failure = 1; failure <= 6; ++failure) {
    ASSERT_TRUE(pair.send_driver().suspect(1));
    ASSERT_TRUE(
        pair.world().run_until([&] { return counters.paths_back.get() == failure; }, seconds(10)))
        << failure;
    pass(pair, std::chrono::milliseconds(1));
  }
  // The first attempt goes at once, the others wait for at least half of 100, 200, ... 1600 ms.
  EXPECT_GE(pair.world().now() - begin, std::chrono::milliseconds(1550));
}

/// More than there are rails for.
TEST_P(Shadows, WhatThereIsNoRailForIsMissedByNobody) {
  SimPair pair = make(95, 2, 4);
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, seconds(90));
  set_rail(pair, 0, true);
  ASSERT_EQ(transfer(pair, 95), "");
  EXPECT_EQ(pair.send_channel().counters().traffic_moves.get(), 1U);
}

struct LinksCase {
  size_t rails;
  int64_t shadows;
  size_t healed;  ///< the rail that comes back
};

/// Rails without a router between them, of which all but the first one stand by and fail for a
/// while; then one comes back.
class ShadowLinks : public testing::TestWithParam<LinksCase> {
 protected:
  static constexpr Duration soon = std::chrono::milliseconds(200);

  void SetUp() override {
    for (size_t one = 0; one < GetParam().rails; ++one) {
      for (size_t other = 0; other < GetParam().rails; ++other) {
        if (one != other) {
          set_link(pair_.sender().addresses[one], pair_.receiver().addresses[other], true);
        }
      }
    }
    ASSERT_TRUE(pair_.connect()) << pair_.error();
    pass(pair_, seconds(2));
  }
  void set_link(sim::Ip here, sim::Ip there, bool cut) {
    sim::Link link;
    link.cut = cut;
    pair_.world().network().set_link(here, there, link);
    pair_.world().network().set_link(there, here, link);
  }
  void tell(sim::Process& host, size_t rail, bool up) {
    pair_.world().tell_link(host, host.addresses[rail], up);
  }
  /// Of all standbys; both hosts are told, or nobody is.
  void outage(Duration time, bool told = true) {
    down_ = counters().paths_down.get();
    back_ = counters().paths_back.get();
    for (size_t rail = 1; rail < GetParam().rails; ++rail) {
      set_rail(pair_, rail, true);
      if (told) {
        tell(pair_.sender(), rail, false);
        tell(pair_.receiver(), rail, false);
      }
    }
    pass(pair_, time);
    ASSERT_EQ(counters().paths_down.get(), down_ + static_cast<uint64_t>(GetParam().shadows))
        << "the fault did not happen";
    ASSERT_EQ(counters().paths_back.get(), back_);
  }
  void heal() { set_rail(pair_, GetParam().healed, false); }
  /// How long it takes until one stands by; then the other rails come back too.
  Duration back_after() {
    const Instant begin = pair_.world().now();
    EXPECT_TRUE(
        pair_.world().run_until([&] { return counters().paths_back.get() > back_; }, seconds(120)));
    const Duration took = pair_.world().now() - begin;
    for (size_t rail = 1; rail < GetParam().rails; ++rail) {
      set_rail(pair_, rail, false);
      tell(pair_.sender(), rail, true);
      tell(pair_.receiver(), rail, true);
    }
    pass(pair_, seconds(15));
    EXPECT_EQ(counters().paths_back.get(), back_ + static_cast<uint64_t>(GetParam().shadows));
    return took;
  }
  const ConnectionCounters& counters() { return pair_.send_channel().counters(); }

  /// Attempts last 3 s, so that these end in every phase of one, and of the waits between them.
  template <class Body>
  void with_many_outages(Body body) {
    for (int i = 0; i < 40; ++i) {
      const Duration time = seconds(1) + i * std::chrono::milliseconds(437);
      SCOPED_TRACE(time.count());
      outage(time);
      body();
    }
    SCOPED_TRACE("a minute");
    outage(seconds(60));
    body();
  }

  SimPair pair_{97, {}, shadows_config(GetParam().shadows), {.rails = GetParam().rails}};
  uint64_t down_ = 0;
  uint64_t back_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Rails, ShadowLinks,
                         testing::Values(LinksCase{2, 1, 1}, LinksCase{3, 1, 1}, LinksCase{3, 1, 2},
                                         LinksCase{4, 2, 2}, LinksCase{4, 2, 3}),
                         [](const auto& one) {
                           return std::to_string(one.param.healed + 1) + "of" +
                                  std::to_string(one.param.rails);
                         });

TEST_P(ShadowLinks, StandsByAgainSoonAfterTheSendersLink) {
  with_many_outages([&] {
    heal();
    tell(pair_.sender(), GetParam().healed, true);
    EXPECT_LE(back_after(), soon);
  });
}

TEST_P(ShadowLinks, StandsByAgainSoonAfterTheReceiversLink) {
  with_many_outages([&] {
    heal();
    tell(pair_.receiver(), GetParam().healed, true);
    EXPECT_LE(back_after(), soon);
  });
}

/// Whoever is told first tries before the other end can answer.
TEST_P(ShadowLinks, OneEndMayHearOfItLongBeforeTheOther) {
  for (const bool sender_first : {true, false}) {
    sim::Process& first = sender_first ? pair_.sender() : pair_.receiver();
    sim::Process& second = sender_first ? pair_.receiver() : pair_.sender();
    for (const Duration apart : {seconds(1), seconds(2), seconds(4), seconds(12), seconds(30)}) {
      outage(seconds(7));
      tell(first, GetParam().healed, true);
      pass(pair_, apart);
      heal();
      tell(second, GetParam().healed, true);
      // As in 12 s no pair is preferred twice for that reason.
      EXPECT_LE(back_after(), apart < seconds(12) ? seconds(7) : soon) << apart.count();
    }
  }
}

/// Packets get through a little later than both hosts are told, as ARP asks once a second.
TEST_P(ShadowLinks, TriesAgainAtOnceWhereTheNetworkIsLaterThanTheLink) {
  with_many_outages([&] {
    tell(pair_.sender(), GetParam().healed, true);
    tell(pair_.receiver(), GetParam().healed, true);
    pass(pair_, std::chrono::milliseconds(900));
    heal();
    EXPECT_LE(back_after(), soon);
  });
}

class UntoldShadowLinks : public ShadowLinks {};
INSTANTIATE_TEST_SUITE_P(Rails, UntoldShadowLinks, testing::Values(LinksCase{2, 1, 1}));

/// A switch that forwards nothing leaves the links of both hosts as they are.
TEST_P(UntoldShadowLinks, StandsByAgainWithinSeconds) {
  for (const Duration time : {seconds(4), seconds(10), seconds(60), seconds(600)}) {
    outage(time, false);
    heal();
    // An attempt over another pair, one over the pair that stood by, and the waits before them.
    EXPECT_LE(back_after(), seconds(14)) << time.count();
  }
}

/// While nothing of it can be confirmed.
TEST_P(ShadowLinks, ALinkThatComesAndGoesFillsNoQueue) {
  const auto dark = [&](bool cut) {
    for (size_t rail = 0; rail < GetParam().rails; ++rail) {
      set_rail(pair_, rail, cut);
    }
  };
  dark(true);
  pass(pair_, seconds(2));
  for (int i = 0; i < 2000; ++i) {
    tell(pair_.receiver(), 1, i % 2 == 0);
    pass(pair_, std::chrono::milliseconds(1));
  }
  ASSERT_GT(counters().paths_down.get(), 0U) << "the fault did not happen";
  dark(false);
  rig::TransferPlan plan;
  plan.seed = 97;
  EXPECT_EQ(pair_.transfer(plan, seconds(20)), "");
}

/// The first one's link, that is out, comes and goes: another one that works has its turn.
TEST(ShadowLinksThatFlap, KeepNoOtherPairFromItsTurn) {
  SimPair pair(98, {}, shadows_config(1), {.rails = 3});
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, seconds(2));
  const auto& counters = pair.send_channel().counters();
  for (const size_t rail : {1U, 2U}) {
    set_rail(pair, rail, true);
  }
  pass(pair, seconds(2));
  ASSERT_EQ(counters.paths_down.get(), 1U) << "the fault did not happen";
  set_rail(pair, 2, false);
  sim::Process& sender = pair.sender();
  for (int i = 0; i < 60 && counters.paths_back.get() == 0; ++i) {
    pair.world().tell_link(sender, sender.addresses[1], i % 2 == 0);
    pass(pair, std::chrono::milliseconds(500));
  }
  EXPECT_EQ(counters.paths_back.get(), 1U);
}

/// Of the rail that carries traffic: it waits for a second at most, and not where it is told.
TEST(FirstRailsLink, IsTriedAtOnceWhereThePeerTellsOfIt) {
  SimPair pair(99, {}, shadows_config(1), {.rails = 2});
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, seconds(2));
  const auto& counters = pair.send_channel().counters();
  sim::Process& receiver = pair.receiver();
  for (int i = 0; i < 20; ++i) {
    const uint64_t down = counters.paths_down.get();
    set_rail(pair, 0, true);
    pair.world().tell_link(receiver, receiver.addresses[0], false);
    pass(pair, seconds(5) + i * std::chrono::milliseconds(437));
    ASSERT_EQ(counters.paths_down.get(), down + 1) << "the fault did not happen";
    set_rail(pair, 0, false);
    pair.world().tell_link(receiver, receiver.addresses[0], true);
    pass(pair, std::chrono::milliseconds(200));
    EXPECT_EQ(counters.paths_back.get(), down + 1) << i;
    pass(pair, seconds(2));
  }
}

/// Nothing leads to the peer but this rail, for the stream too.
TEST(OnlyRailsLink, IsDialledAtOnceWhereEitherHostHearsOfIt) {
  SimPair pair(101, {}, {}, {.rails = 1});
  ASSERT_TRUE(pair.connect()) << pair.error();
  const auto& counters = pair.send_channel().counters();
  for (int i = 0; i < 20; ++i) {
    for (sim::Process* host : {&pair.sender(), &pair.receiver()}) {
      pass(pair, seconds(1));
      const uint64_t down = counters.paths_down.get();
      set_rail(pair, 0, true);
      pair.world().tell_link(*host, host->addresses[0], false);
      pass(pair, seconds(6) + i * std::chrono::milliseconds(437));
      ASSERT_EQ(counters.paths_down.get(), down + 1) << "the fault did not happen";
      set_rail(pair, 0, false);
      pair.world().tell_link(*host, host->addresses[0], true);
      pass(pair, std::chrono::milliseconds(20));
      EXPECT_EQ(counters.paths_back.get(), down + 1)
          << i << (host == &pair.sender() ? ", told to the sender" : ", told to the receiver");
    }
  }
}

/// Both standbys share a NIC with the traffic's path, as the pair that need not is dark.  Then that
/// one is all there is, for the stream too, and each standby tries one of its NICs.
TEST(ShadowsThatTry, LeaveEachOtherTheOnlyPairThatWorks) {
  SimPair pair(102, {}, shadows_config(2), {.rails = 2});
  const auto set = [&](size_t here, size_t there, bool cut) {
    sim::Link link;
    link.cut = cut;
    sim::Network& network = pair.world().network();
    network.set_link(pair.sender().addresses[here], pair.receiver().addresses[there], link);
    network.set_link(pair.receiver().addresses[there], pair.sender().addresses[here], link);
  };
  set(1, 1, true);
  ASSERT_TRUE(pair.connect()) << pair.error();
  const auto& counters = pair.send_channel().counters();
  ASSERT_TRUE(pair.world().run_until([&] { return counters.paths_missing.get() == 0; }, seconds(2)))
      << "what the first one tries in vain is the second one's";
  const uint64_t down = counters.paths_down.get();
  set(1, 1, false);
  set(0, 0, true);
  set(0, 1, true);
  set(1, 0, true);
  rig::TransferPlan plan;
  plan.seed = 102;
  EXPECT_EQ(pair.transfer(plan, seconds(25)), "");
  EXPECT_EQ(counters.paths_down.get(), down + 3) << "the faults did not happen";
}

/// Hosts with addresses that lead nowhere (bridges, other networks) before those that lead to the
/// peer: `hopeless` NICs after the first, then two that work.  No router is between NICs.  With 20
/// of them a handle has no room for the addresses of the last two.
class HopelessPairs : public testing::TestWithParam<std::tuple<bool, size_t>> {
 protected:
  HopelessPairs() {
    pair_.emplace(100, sim::Link{}, shadows_config(1),
                  rig::SimCables{.rails = hopeless() + 3, .rdma = std::get<0>(GetParam())});
    const auto& here = pair_->sender().addresses;
    const auto& there = pair_->receiver().addresses;
    for (size_t one = 0; one < here.size(); ++one) {
      for (size_t other = 0; other < there.size(); ++other) {
        if (one != other || (one >= 1 && one <= hopeless())) {
          sim::Link link;
          link.cut = true;
          pair_->world().network().set_link(here[one], there[other], link);
          pair_->world().network().set_link(there[other], here[one], link);
        }
      }
    }
  }
  static size_t hopeless() { return std::get<1>(GetParam()); }
  /// Those rails are cut: how long after the verdict on the last of their paths all has arrived.
  Duration stall_after(const std::vector<size_t>& cut) {
    const uint64_t lost = lost_packets();
    const auto& counters = pair_->send_channel().counters();
    Instant verdict{};
    for (const size_t rail : cut) {
      set_rail(*pair_, rail, true);
    }
    rig::TransferPlan plan;
    plan.seed = 100;
    plan.each_round = [&] {
      if (verdict == Instant{} && counters.paths_down.get() == cut.size()) {
        verdict = pair_->world().now();
      }
    };
    EXPECT_EQ(pair_->transfer(plan, seconds(20)), "");
    EXPECT_EQ(counters.traffic_moves.get(), 1U);
    EXPECT_EQ(counters.paths_down.get(), cut.size());
    EXPECT_GT(lost_packets(), lost) << "the fault did not happen";
    return pair_->world().now() - verdict;
  }
  uint64_t lost_packets() {
    return pair_->world().network().counts().cut + pair_->world().rdma().counts.lost;
  }

  /// The sweep's own, and what messages and pauses between its attempts take.
  static constexpr Duration sweep = ha::Sweep::first + std::chrono::milliseconds(200);
  std::optional<SimPair> pair_;
};
INSTANTIATE_TEST_SUITE_P(Fabrics, HopelessPairs,
                         testing::Combine(testing::Bool(), testing::Values(0, 4, 20)),
                         [](const auto& one) {
                           return std::string(std::get<0>(one.param) ? "rdma" : "datagrams") +
                                  std::to_string(std::get<1>(one.param));
                         });

TEST_P(HopelessPairs, TheStandbyIsThereWithinASecondNevertheless) {
  ASSERT_TRUE(pair_->connect()) << pair_->error();
  pass(*pair_, hopeless() == 0 ? std::chrono::milliseconds(50) : sweep);
  EXPECT_LE(stall_after({0}), std::chrono::milliseconds(100)) << "nothing has to be looked for";
}

/// The traffic's path and the standby are cut at once, and the control stream with them; a third
/// NIC leads there.  First a stream is dialled over each way, with 10 ms between two, then the
/// paths sweep.
TEST_P(HopelessPairs, WithoutAnyPathTheNextOneIsThereWithinTwoSecondsOfTheVerdict) {
  ASSERT_TRUE(pair_->connect()) << pair_->error();
  pass(*pair_, seconds(2));
  EXPECT_LE(stall_after({0, hopeless() + 1}), seconds(2));
}

TEST(SimShadows, RailsFailWhileBytesAreChecked) {
  const uint64_t runs = sim_seeds() / 8;
  FailoverTotals totals;
  for (uint64_t seed = 1; seed <= runs; ++seed) {
    FailoverRun run;
    run.seed = 9000000 + seed;
    run.rails = 3 + seed % 2;
    run.shadows = 2 + seed % 3;
    run.rdma = seed % 4 != 0;
    ASSERT_EQ(rig::run_failovers(run, &totals), "") << "seed " << run.seed;
  }
  EXPECT_GT(totals.down, runs);
  EXPECT_GT(totals.moves, runs / 2);
}

}  // namespace
}  // namespace nccl_ha::test
