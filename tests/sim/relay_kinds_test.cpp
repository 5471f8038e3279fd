// Hops of several kinds on one route: queue pairs where both neighbours have them, datagrams where
// not.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "runtime/fabric/datagram/udp_factory.h"
#include "runtime/fabric/verbs/rc_factory.h"
#include "tests/support/relay_line.h"
#include "tests/support/relayed_pair.h"

namespace nccl_ha::test {
namespace {

using fabric::CompletionStatus;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// RDMA at all cables.
RelayLine::Options all_rdma(size_t relays, uint64_t seed = 1) {
  RelayLine::Options options;
  options.relays = relays;
  options.seed = seed;
  options.rdma = [](size_t) { return 2; };
  return options;
}

using Kinds = std::vector<fabric::FabricKind>;

/// Of the hops from the first host to the last one, as the relays have them.
Kinds kinds(RelayLine& line) {
  Kinds found;
  for (size_t host = 1; host + 1 < line.hosts(); ++host) {
    const auto& sessions = line.node(host).sessions();
    if (sessions.size() != 1) {
      return {};
    }
    const auto before = sessions[0]->hop_kind(relay::RelaySession::up);
    EXPECT_TRUE(found.empty() || found.back() == before) << "one hop, two kinds";
    if (found.empty()) {
      found.push_back(before);
    }
    found.push_back(sessions[0]->hop_kind(relay::RelaySession::down));
  }
  return found;
}

constexpr auto rc = fabric::verbs::rc_kind;
constexpr auto udp = fabric::datagram_kind;

/// Both directions at once, in messages of several pieces.
void exchange(RelayLine& line, RelayedPair& pair) {
  const size_t half = pair.ends[0].bytes.size() / 2;
  fill(pair.ends[0].bytes, 1);
  fill(pair.ends[1].bytes, 2);
  pair.receive(0, 8);
  pair.receive(1, 8);
  for (uint64_t i = 0; i < 8; ++i) {
    ASSERT_EQ(pair.write(0, i, half), Errc::ok);
    ASSERT_EQ(pair.write(1, i, half, half), Errc::ok);
  }
  ASSERT_TRUE(line.world().run_until(
      [&] { return pair.completions(0) == 16 && pair.completions(1) == 16; }, seconds(5)))
      << pair.ends[0].owner.last_error.message() << pair.ends[1].owner.last_error.message();
  EXPECT_EQ(pair.ends[0].bytes, pair.ends[1].bytes);
}

/// Of each host's cables so many from the first one on are RDMA NICs'.
void expect_kinds(const std::vector<size_t>& rdma, const Kinds& expected) {
  RelayLine::Options options;
  options.relays = rdma.size() - 2;
  options.rdma = [&](size_t host) { return rdma[host]; };
  RelayLine line(options);
  RelayedPair pair(line, 1 << 20, 1);
  ASSERT_TRUE(pair.connect(line)) << pair.ends[0].owner.last_error.message();
  EXPECT_EQ(kinds(line), expected);
  exchange(line, pair);
}

TEST(RelayKinds, QueuePairsAllTheWay) { expect_kinds({2, 2, 2, 2, 2}, {rc, rc, rc, rc}); }

/// Nobody further on has heard of the path by then.
TEST(RelayKinds, AHopThatFailsSlowlyWhereItWasAskedForLeavesTheNextKind) {
  RelayLine line(all_rdma(1));
  sim::VerbFaults& verbs = line.process(1).nics.front()->verbs();  // towards the first host
  verbs.faults[sim::Verb::create_pair] = 1;
  verbs.faults.slow = 1;
  verbs.faults.slowest = milliseconds(5);
  RelayedPair pair(line, 1 << 20, 1);
  ASSERT_TRUE(pair.connect(line)) << pair.ends[0].owner.last_error.message();
  EXPECT_GT(verbs.failures(sim::Verb::create_pair), 0U) << "the fault did not happen";
  EXPECT_EQ(kinds(line), (Kinds{udp, rc}));
  exchange(line, pair);
}

/// From now on the processor finds no memory of a program's.
void hide_from_processor(RelayLine& line, RelayedPair& pair) {
  for (const size_t side : {0, 1}) {
    const size_t host = side == 0 ? 0 : line.hosts() - 1;
    ASSERT_TRUE(line.process(host).provider->memory().remove(pair.ends[side].key));
  }
}

TEST(RelayKinds, WhatDevicesReachTheProcessorDoesNotTouch) {
  for (const size_t relays : {1, 2, 3}) {
    RelayLine line(all_rdma(relays));
    RelayedPair pair(line, 1 << 20, 1);
    ASSERT_TRUE(pair.connect(line));
    hide_from_processor(line, pair);
    exchange(line, pair);
  }
}

TEST(RelayKinds, ADeviceAtOneEndIsNoUseToTheOther) {
  RelayLine::Options options;
  options.rdma = [](size_t host) { return host < 2 ? 1 : 0; };
  RelayLine line(options);
  RelayedPair pair(line, 1 << 20, 1);
  ASSERT_TRUE(pair.connect(line));
  ASSERT_EQ(kinds(line), (Kinds{rc, udp}));
  hide_from_processor(line, pair);
  pair.receive(1, 1);
  ASSERT_EQ(pair.write(0, 0, 1 << 20), Errc::ok);
  ASSERT_TRUE(line.world().run_until([&] { return pair.completions(0) == 1; }, seconds(5)));
  EXPECT_EQ(pair.ends[0].owner.completions[0].status, CompletionStatus::remote_access);
}

TEST(RelayKinds, MemoryThatNoDeviceTakesIsCopied) {
  for (const size_t copies : {0, 1, 2}) {  // at the first end, the last one, both
    RelayLine line(all_rdma(2));
    RelayedPair pair(line, 1 << 20, 1);
    ASSERT_TRUE(pair.connect(line));
    for (const size_t side : {0, 1}) {
      for (sim::RdmaNic* nic : line.process(side == 0 ? 0 : line.hosts() - 1).nics) {
        nic->verbs().faults[sim::Verb::register_memory] = copies == side || copies == 2 ? 1 : 0;
      }
    }
    exchange(line, pair);
  }
}

TEST(RelayKinds, EachCableHasWhatBothOfItsHostsHave) {
  expect_kinds({1, 1, 2, 0, 0}, {rc, udp, udp, udp});  // a relay is refused by the next one
  expect_kinds({1, 0, 0}, {udp, udp});                 // the first host
  expect_kinds({0, 2, 0}, {udp, udp});                 // a relay, by the last host
}

/// What is called from outside of a turn goes by the clock of the last one.
void turn_all(RelayLine& line) {
  static_cast<void>(line.world().run_until([] { return false; }, milliseconds(1)));
}

/// After `attempts` a path comes about, whose hops are of these kinds.
void expect_way_round(RelayLine& line, uint64_t attempts, const Kinds& expected) {
  for (uint64_t attempt = 1; attempt <= attempts; ++attempt) {
    turn_all(line);
    RelayedPair pair(line, 1 << 20, attempt);
    ASSERT_EQ(pair.connect(line), attempt == attempts) << attempt;
    if (attempt == attempts) {
      EXPECT_EQ(kinds(line), expected);
      exchange(line, pair);
    }
  }
}

TEST(RelayKinds, APortThatIsDownIsLeftOut) {
  const Kinds expected[] = {{udp, rc}, {udp, udp}, {rc, udp}};
  for (size_t broken = 0; broken < 3; ++broken) {
    RelayLine line(all_rdma(1));
    for (sim::RdmaNic* nic : line.process(broken).nics) {
      nic->set_port(false);
    }
    expect_way_round(line, 1, expected[broken]);
  }
}

TEST(RelayKinds, ADeviceThatDoesNotConnectIsAvoidedForAWhile) {
  // Whoever asks finds out when it has asked, and does better the next time.  The relay in the
  // middle cannot take the first host's hop either, but says so at once.
  const Kinds expected[] = {{udp, rc}, {udp, udp}, {rc, udp}};
  for (size_t broken = 0; broken < 3; ++broken) {
    RelayLine line(all_rdma(1));
    for (sim::RdmaNic* nic : line.process(broken).nics) {
      nic->verbs().faults[sim::Verb::to_ready_to_receive] = 1;
    }
    expect_way_round(line, 2, expected[broken]);
    for (sim::RdmaNic* nic : line.process(broken).nics) {
      nic->verbs().faults[sim::Verb::to_ready_to_receive] = 0;
    }
    static_cast<void>(line.world().run_until([] { return false; }, seconds(61)));
    turn_all(line);
    RelayedPair later(line, 1 << 20, 9);
    ASSERT_TRUE(later.connect(line)) << broken;
    EXPECT_EQ(kinds(line), (Kinds{rc, rc})) << "it works again";
  }
}

TEST(RelayKinds, WhatIsAvoidedHasItsTurnAfterAllOthers) {
  RelayLine line(all_rdma(1));
  relay::HopSource& hops = line.hops(0);
  const auto local = line.next(0).find(RelayLine::id(1))->local;
  const auto places = hops.places(local.get());
  const Instant now = line.world().now();
  hops.avoid(places.front(), RelayLine::id(1), now, "test");
  for (const size_t neighbour : {1, 2}) {
    Kinds asked;
    size_t choice = 0;
    const auto refuse = [&](const relay::HopPlace& place) -> Result<void> {
      asked.push_back(place.at.kind);
      return fail(Errc::remote, "test");
    };
    EXPECT_FALSE(
        relay::make_best_hop(hops, places, RelayLine::id(neighbour), now, choice, false, refuse));
    EXPECT_EQ(asked, neighbour == 1 ? (Kinds{udp, rc}) : (Kinds{rc, udp}));
  }
}

TEST(RelayKinds, NothingIsAvoidedWhereWhatEveryHostHasDoesNotComeUp) {
  RelayLine line(all_rdma(1));
  relay::HopSource& hops = line.hops(0);
  const auto local = line.next(0).find(RelayLine::id(1))->local;
  const auto places = hops.places(local.get());
  const Instant now = line.world().now();
  for (const size_t neighbour : {1, 2}) {
    hops.avoid(places.front(), RelayLine::id(neighbour), now, "test");
    ASSERT_TRUE(hops.avoids(places.front(), RelayLine::id(neighbour), now));
  }
  hops.avoid(places.back(), RelayLine::id(1), now, "test");
  EXPECT_FALSE(hops.avoids(places.front(), RelayLine::id(1), now));
  EXPECT_TRUE(hops.avoids(places.front(), RelayLine::id(2), now));
}

/// Whoever asked does not know which hop it is, and has as much patience as a hop, or less.
TEST(RelayKinds, AHopThatIsStillComingUpWhenWhoAskedGivesUpIsAvoided) {
  for (const size_t relays : {1, 2}) {
    for (const Duration limit : {seconds(2), seconds(3)}) {
      RelayLine::Options options = all_rdma(relays);
      options.config.ib_timeout = 20;  // the NIC itself would try for half a minute
      RelayLine line(options);
      line.drop(relays, 1);
      {
        RelayedPair pair(line, 4096, 1, 128, std::nullopt, limit);
        EXPECT_FALSE(pair.connect(line));
        EXPECT_TRUE(pair.failed(0));
      }
      EXPECT_GT(line.world().network().counts().dropped, 0U) << "the fault did not happen";
      line.drop(relays, 0);
      turn_all(line);
      RelayedPair later(line, 1 << 20, 2);
      ASSERT_TRUE(later.connect(line)) << relays;
      Kinds expected(relays, rc);
      expected.push_back(udp);
      EXPECT_EQ(kinds(line), expected) << relays;
      exchange(line, later);
    }
  }
}

TEST(RelayKinds, WhoeverEndsAPathItselfBlamesNoDevice) {
  RelayLine line(all_rdma(1));
  for (uint64_t steps = 1; steps < 400; steps += 7) {
    RelayedPair pair(line, 4096, steps);
    ASSERT_TRUE(pair.ends[0].path->connect(pair.ends[1].path->local_address()));
    ASSERT_TRUE(pair.ends[1].path->connect(pair.ends[0].path->local_address()));
    static_cast<void>(
        line.world().run_until([] { return false; }, std::chrono::microseconds(steps)));
    pair.ends[0].path->fail(fail(Errc::closed, "test"));
  }
  static_cast<void>(line.world().run_until([] { return false; }, milliseconds(10)));
  RelayedPair later(line, 4096, 1000);
  ASSERT_TRUE(later.connect(line));
  EXPECT_EQ(kinds(line), (Kinds{rc, rc}));
}

TEST(RelayKinds, MemoryThatIsNobodysFailsItsMessageOnly) {
  RelayLine line(all_rdma(2));
  RelayedPair pair(line, 4096, 1);
  ASSERT_TRUE(pair.connect(line));
  pair.receive(1, 10);
  ASSERT_EQ(pair.write(0, 0, 64), Errc::ok);
  ASSERT_TRUE(line.world().run_until([&] { return pair.completions(0) == 1; }, seconds(1)));
  pair.ends[1].key += 1000;
  ASSERT_EQ(pair.write(0, 1, 64), Errc::ok);
  ASSERT_EQ(pair.write(0, 2, 64), Errc::ok);
  ASSERT_TRUE(line.world().run_until(
      [&] { return pair.completions(0) == 3 && pair.failed(1) && pair.completions(1) == 10; },
      seconds(5)));
  EXPECT_EQ(pair.ends[0].owner.completions[0].status, CompletionStatus::ok);
  EXPECT_EQ(pair.ends[0].owner.completions[1].status, CompletionStatus::remote_access);
  EXPECT_EQ(pair.ends[0].owner.completions[2].status, CompletionStatus::flushed);
}

TEST(RelayKinds, MemoryThatIsTakenBackIsOutOfReach) {
  RelayLine line(all_rdma(2));
  RelayedPair pair(line, 4096, 1);
  ASSERT_TRUE(pair.connect(line));
  pair.receive(1, 10);
  ASSERT_EQ(pair.write(0, 0, 64), Errc::ok);
  ASSERT_TRUE(line.world().run_until([&] { return pair.completions(0) == 1; }, seconds(1)));
  EXPECT_EQ(pair.ends[0].owner.completions[0].status, CompletionStatus::ok);
  ASSERT_TRUE(line.process(3).provider->remove_memory(pair.ends[1].registration));
  const auto before = pair.ends[1].bytes;
  ASSERT_EQ(pair.write(0, 1, 64, 64), Errc::ok);
  ASSERT_TRUE(line.world().run_until([&] { return pair.completions(0) == 2; }, seconds(5)));
  EXPECT_EQ(pair.ends[0].owner.completions[1].status, CompletionStatus::remote_access);
  EXPECT_EQ(pair.ends[1].bytes, before);
}

TEST(RelayKinds, MemoryOfAnotherConnectionIsOutOfReach) {
  RelayLine line(all_rdma(2));
  RelayedPair pair(line, 4096, 1);
  RelayedPair other(line, 4096, 2);
  ASSERT_TRUE(pair.connect(line));
  pair.receive(1, 1);
  pair.ends[1].key = other.ends[1].key;
  std::swap(pair.ends[1].bytes, other.ends[1].bytes);  // where it writes to
  fill(pair.ends[0].bytes, 1);
  ASSERT_EQ(pair.write(0, 0, 64), Errc::ok);
  ASSERT_TRUE(line.world().run_until([&] { return pair.completions(0) == 1; }, seconds(5)));
  EXPECT_EQ(pair.ends[0].owner.completions[0].status, CompletionStatus::remote_access);
  EXPECT_EQ(pair.ends[1].bytes, std::vector<std::byte>(4096));
}

/// One side of a hop between two hosts.
struct HopEnd {
  HopEnd(RelayLine& line, size_t host, uint64_t domain) : hop(line.hops(host)) {
    const auto local = line.next(host).find(RelayLine::id(1 - host))->local;
    const relay::HopPlace place = line.hops(host).places(local.get()).front();
    hop.allocate(4, 4096, 4);
    fabric::PathOptions options;
    options.domain = domain;
    EXPECT_TRUE(hop.enter(place, options));
    options.active = host == 0;
    hop.size(options, 4);
    auto made = line.hops(host).make_hop(line.context(host), place, local.get(), options, &owner);
    hop.take(std::move(made).value(), place);
    EXPECT_TRUE(line.world().run_until([&] { return hop.path()->address_ready(); }, seconds(1)));
  }
  RecordingOwner owner;
  relay::HopLine hop;
};

TEST(RelayKinds, KeysOfOneSessionAreNoUseInAnother) {
  for (const bool others : {false, true}) {
    RelayLine line(all_rdma(1));
    HopEnd from(line, 0, 1);
    HopEnd to(line, 1, 1);
    const HopEnd other(line, 1, 2);
    ASSERT_FALSE(from.hop.place().direct);
    ASSERT_TRUE(to.hop.connect(from.hop.path()->local_address(), from.hop.window(), 4096));
    ASSERT_TRUE(from.hop.connect(to.hop.path()->local_address(),
                                 others ? other.hop.window() : to.hop.window(), 4096));
    ASSERT_TRUE(
        line.world().run_until([&] { return from.hop.ready() && to.hop.ready(); }, seconds(5)));
    const fabric::Gather gather = from.hop.gather(0, 0, 64, from.hop);
    ASSERT_TRUE(from.hop.post(&gather, 1, 7));
    const auto sent = [&] {
      const auto& all = from.owner.completions;
      return std::find_if(all.begin(), all.end(), [](const fabric::Completion& one) {
        return one.kind == fabric::CompletionKind::write;
      });
    };
    ASSERT_TRUE(
        line.world().run_until([&] { return sent() != from.owner.completions.end(); }, seconds(5)));
    EXPECT_EQ(sent()->status, others ? CompletionStatus::remote_access : CompletionStatus::ok);
  }
}

TEST(RelayKinds, MemoryThatIsGoneIsNotSent) {
  RelayLine line(all_rdma(1));
  RelayedPair pair(line, 1 << 20, 1);
  ASSERT_TRUE(pair.connect(line));
  ASSERT_EQ(pair.write(0, 0, 1 << 20), Errc::ok);  // waits for a receive
  ASSERT_TRUE(line.process(0).provider->remove_memory(pair.ends[0].registration));
  pair.receive(1, 1);
  ASSERT_TRUE(line.world().run_until([&] { return pair.completions(0) == 1; }, seconds(5)));
  EXPECT_EQ(pair.ends[0].owner.completions[0].status, CompletionStatus::local_protection);
  EXPECT_TRUE(pair.failed(0));
}

TEST(RelayKinds, NothingLandsAfterTheFence) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    expect_nothing_late(all_rdma(2, seed));
  }
}

TEST(RelayKinds, ASessionEndsWhenItsDevicesHaveLetGo) {
  RelayLine line(all_rdma(2));
  RelayedPair pair(line, 1 << 20, 1);
  ASSERT_TRUE(pair.connect(line));
  pair.receive(1, 100);
  for (uint64_t i = 0; i < 50; ++i) {
    ASSERT_EQ(pair.write(0, i, 1 << 20), Errc::ok);
  }
  ASSERT_TRUE(line.world().run_until([&] { return pair.completions(1) > 2; }, seconds(5)));
  line.kill(1);
  ASSERT_TRUE(line.world().run_until(
      [&] { return pair.failed(0) && pair.failed(1) && line.node(2).sessions().empty(); },
      seconds(1)));
  EXPECT_EQ(line.node(2).pool().used(), 0U);
  ASSERT_TRUE(line.world().run_until([&] { return pair.completions(0) == 50; }, seconds(1)));
}

TEST(RelayKinds, ACutCableEndsItOnBothSides) {
  RelayLine line(all_rdma(2));
  RelayedPair pair(line, 1 << 20, 1);
  ASSERT_TRUE(pair.connect(line));
  pair.receive(1, 100);
  for (uint64_t i = 0; i < 50; ++i) {
    ASSERT_EQ(pair.write(0, i, 1 << 20), Errc::ok);
  }
  ASSERT_TRUE(line.world().run_until([&] { return pair.completions(1) > 2; }, seconds(5)));
  line.cut(1);
  ASSERT_TRUE(line.world().run_until(
      [&] {
        return pair.failed(0) && pair.failed(1) && pair.completions(0) == 50 &&
               line.node(1).sessions().empty() && line.node(2).sessions().empty();
      },
      seconds(10)));
}

}  // namespace
}  // namespace nccl_ha::test
