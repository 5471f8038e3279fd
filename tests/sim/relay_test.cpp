// Relayed paths on virtual time: what breaks on the way, who waits for whom, and what is late.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "relay/mesh_settings.h"
#include "runtime/base/config.h"
#include "runtime/base/random.h"
#include "tests/support/path_harness.h"
#include "tests/support/relay_line.h"
#include "tests/support/relayed_pair.h"
#include "tests/support/sim_pair.h"

namespace nccl_ha::test {
namespace {

using fabric::Completion;
using fabric::CompletionKind;
using fabric::CompletionStatus;
using fabric::PathState;
using std::chrono::milliseconds;
using std::chrono::seconds;

RelayLine::Options over(size_t relays, uint64_t seed = 1) {
  RelayLine::Options options;
  options.relays = relays;
  options.seed = seed;
  return options;
}

TEST(RelaySim, CarriesBytesOverEightRelays) {
  RelayLine::Options options = over(8);
  options.relay.relays_max = 8;
  options.relays_max = 8;
  RelayLine line(options);
  RelayedPair pair(line, 1 << 20, 1);
  fill(pair.ends[0].bytes, 5);
  ASSERT_TRUE(pair.connect(line));
  EXPECT_EQ(pair.ends[0].path->traits().hops, 8);
  pair.receive(1, 4);
  for (uint64_t i = 0; i < 4; ++i) {
    ASSERT_EQ(pair.write(0, i, 1 << 20), Errc::ok);
  }
  ASSERT_TRUE(line.world().run_until(
      [&] { return pair.completions(0) == 4 && pair.completions(1) == 4; }, seconds(10)));
  EXPECT_EQ(pair.ends[0].bytes, pair.ends[1].bytes);
  for (size_t host = 1; host <= 8; ++host) {
    ASSERT_EQ(line.node(host).sessions().size(), 1U);
    EXPECT_EQ(line.node(host).sessions()[0]->counts(0).bytes, 4U << 20);
  }
}

TEST(RelaySim, AMessageWithoutAnAnswerIsAcknowledgedSoon) {
  RelayLine line(over(1));
  RelayedPair pair(line, 4096, 1);
  ASSERT_TRUE(pair.connect(line));
  pair.receive(1, 64);
  static_cast<void>(line.world().run_until([] { return false; }, milliseconds(10)));
  ASSERT_EQ(pair.write(0, 7, 64), Errc::ok);
  ASSERT_TRUE(line.world().run_until([&] { return pair.completions(1) == 1; }, milliseconds(5)));
  EXPECT_EQ(pair.completions(0), 0U);
  EXPECT_TRUE(line.world().run_until([&] { return pair.completions(0) == 1; }, milliseconds(1)));
}

/// Whoever answers does so in a later turn, as a program does that is told of a message first.
TEST(RelaySim, AnAnswerTakesAlongWhatIsOwed) {
  RelayLine line(over(1));
  RelayedPair pair(line, 4096, 1);
  ASSERT_TRUE(pair.connect(line));
  constexpr uint64_t rounds = 24;
  for (size_t side = 0; side < 2; ++side) {
    pair.receive(side, rounds);
  }
  const auto run = [&](Duration time) {
    static_cast<void>(line.world().run_until([] { return false; }, time));
  };
  const auto received = [&](size_t side) {
    return pair.ends[side].owner.count(CompletionKind::receive_immediate, CompletionStatus::ok);
  };
  run(milliseconds(10));
  const uint64_t before = line.world().network().counts().packets;
  for (uint64_t round = 0; round < rounds; ++round) {
    for (const size_t side : {0U, 1U}) {
      ASSERT_EQ(pair.write(side, round, 64, 1024 * side), Errc::ok);
      ASSERT_TRUE(
          line.world().run_until([&] { return received(1 - side) > round; }, milliseconds(5)));
      run(std::chrono::microseconds(20));
    }
  }
  // Two cables there and two back; discovery is none of this line's.
  EXPECT_LE(line.world().network().counts().packets - before, rounds * 4 + 2);
  run(milliseconds(5));
  EXPECT_EQ(pair.completions(0), 2 * rounds);
  EXPECT_EQ(pair.completions(1), 2 * rounds);
}

TEST(RelaySim, AKilledRelayEndsThePathOnBothSidesAtOnce) {
  RelayLine line(over(3));
  RelayedPair pair(line, 1 << 20, 1);
  ASSERT_TRUE(pair.connect(line));
  pair.receive(1, 100);
  for (uint64_t i = 0; i < 20; ++i) {
    ASSERT_EQ(pair.write(0, i, 1 << 20), Errc::ok);
  }
  ASSERT_TRUE(line.world().run_until([&] { return pair.completions(1) > 2; }, seconds(5)));
  line.kill(2);
  // Its kernel closes the streams; the news goes from neighbour to neighbour.
  ASSERT_TRUE(
      line.world().run_until([&] { return pair.failed(0) && pair.failed(1); }, milliseconds(100)));
  EXPECT_EQ(pair.ends[0].path->cause(), CompletionStatus::retry_exceeded);
  ASSERT_TRUE(line.world().run_until([&] { return pair.completions(0) == 20; }, milliseconds(100)));
  EXPECT_TRUE(line.node(1).sessions().empty()) << "and nobody holds anything of it any more";
  EXPECT_TRUE(line.node(3).sessions().empty());
}

TEST(RelaySim, ACutCableInTheMiddleEndsItAfterTheSilence) {
  RelayLine line(over(2));
  RelayedPair pair(line, 4096, 1);
  ASSERT_TRUE(pair.connect(line));
  line.cut(1);
  ASSERT_TRUE(line.world().run_until(
      [&] { return pair.failed(0) && pair.failed(1); },
      relay::SessionStream::silence_max + 2 * relay::SessionStream::ping_apart));
  EXPECT_FALSE(pair.ends[0].owner.last_error.what.empty());
  EXPECT_FALSE(pair.ends[1].owner.last_error.what.empty());
}

/// Whoever looks for life of the peer goes by it.
TEST(RelaySim, WhatOnlyARelayHasTakenIsNoProgress) {
  RelayLine line(over(1));
  RelayedPair pair(line, 1 << 20, 1);
  ASSERT_TRUE(pair.connect(line));
  pair.receive(1, 8);
  ASSERT_EQ(pair.write(0, 0, 1 << 20), Errc::ok);
  ASSERT_TRUE(line.world().run_until([&] { return pair.completions(0) == 1; }, seconds(5)));
  fabric::Path& path = *pair.ends[0].path;
  const uint64_t before = path.progress();
  EXPECT_GT(before, 0U);
  line.cut(1);
  for (uint64_t i = 1; i < 4; ++i) {
    ASSERT_EQ(pair.write(0, i, 1 << 20), Errc::ok);
  }
  ASSERT_TRUE(line.world().run_until([&] { return line.node(1).sessions()[0]->held(0) != 0; },
                                     milliseconds(100)));
  static_cast<void>(line.world().run_until([] { return false; }, milliseconds(100)));
  EXPECT_EQ(path.progress(), before);
  EXPECT_GT(line.world().network().counts().cut, 0U) << "nothing was cut";
  path.fail(fail(Errc::closed, "the test wants it"));
  ASSERT_TRUE(line.world().run_until([&] { return pair.completions(0) == 4; }, seconds(1)));
  EXPECT_EQ(path.progress(), before) << "what was flushed has not arrived";
}

TEST(RelaySim, BothEndsHearOfACableInTheMiddleWithoutALink) {
  for (const size_t rdma : {0, 2}) {
    RelayLine::Options options = over(3);
    options.rdma = [rdma](size_t) { return rdma; };
    RelayLine line(options);
    RelayedPair pair(line, 4096, 1);
    ASSERT_TRUE(pair.connect(line));
    static_cast<void>(line.world().run_until([] { return false; }, milliseconds(10)));
    line.unplug(1);
    ASSERT_TRUE(line.world().run_until(
        [&] {
          return !pair.ends[0].owner.links_down.empty() && !pair.ends[1].owner.links_down.empty();
        },
        milliseconds(2)))
        << rdma;
    EXPECT_NE(pair.ends[0].owner.links_down[0].what.find(text(RelayLine::id(1))), std::string::npos)
        << pair.ends[0].owner.links_down[0].what;
    EXPECT_NE(pair.ends[1].owner.links_down[0].what.find(text(RelayLine::id(2))), std::string::npos)
        << pair.ends[1].owner.links_down[0].what;
    static_cast<void>(line.world().run_until([] { return false; }, milliseconds(200)));
    line.unplug(1, false);
    pair.receive(1, 1);
    ASSERT_EQ(pair.write(0, 1, 4096), Errc::ok);
    EXPECT_TRUE(line.world().run_until([&] { return pair.completions(0) == 1; }, seconds(2)))
        << "a cable that is back carries on";
    for (const auto& end : pair.ends) {
      EXPECT_EQ(end.owner.links_down.size(), 1U);
      EXPECT_EQ(end.path->state(), PathState::ready);
    }
  }
}

TEST(RelaySim, AnEndThatFailsTakesTheSessionAlong) {
  for (const size_t side : {0, 1}) {
    RelayLine line(over(2));
    RelayedPair pair(line, 4096, 1);
    ASSERT_TRUE(pair.connect(line));
    pair.ends[side].path->fail(fail(Errc::closed, "test"));
    ASSERT_TRUE(line.world().run_until([&] { return pair.failed(1 - side); }, milliseconds(50)));
    EXPECT_TRUE(line.node(1).sessions().empty());
    EXPECT_TRUE(line.node(2).sessions().empty());
  }
}

TEST(RelaySim, NothingThatARelayHoldsLandsAfterTheFence) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    expect_nothing_late(over(2, seed));
  }
}

TEST(RelaySim, WithEverySlotFullInBothDirectionsItStillGoesOn) {
  // Both ends write as much as they can before either posts a receive: what is without one waits at
  // its end, and the pieces of others fill what slots there are.
  RelayLine::Options options = over(3);
  options.chunk_bytes = 2048;
  options.slots = relay::slots_min;
  RelayLine line(options);
  RelayedPair pair(line, 200000, 1);
  fill(pair.ends[0].bytes, 1);
  ASSERT_TRUE(pair.connect(line));
  for (uint64_t i = 0; i < 100; ++i) {
    ASSERT_EQ(pair.write(0, i, 100000), Errc::ok);
    ASSERT_EQ(pair.write(1, i, 100000, 100000), Errc::ok);
  }
  static_cast<void>(line.world().run_until([] { return false; }, milliseconds(20)));
  EXPECT_EQ(pair.completions(0) + pair.completions(1), 0U);
  for (uint64_t i = 0; i < 100; ++i) {
    pair.receive(0, 1);
    pair.receive(1, 1);
    ASSERT_TRUE(line.world().run_until(
        [&] { return pair.completions(0) >= 2 * i + 2 && pair.completions(1) >= 2 * i + 2; },
        seconds(5)))
        << i << ": " << pair.ends[0].owner.last_error.message();
  }
  EXPECT_EQ(pair.ends[0].bytes, pair.ends[1].bytes);
}

TEST(RelaySim, AReceiverThatTakesNothingStallsNobodyElse) {
  RelayLine line(over(1));
  std::vector<std::unique_ptr<RelayedPair>> pairs;
  for (uint64_t i = 0; i < 20; ++i) {
    pairs.push_back(std::make_unique<RelayedPair>(line, 100000, i + 1));
    ASSERT_TRUE(pairs.back()->connect(line)) << i;
  }
  ASSERT_EQ(line.node(1).sessions().size(), 20U);
  // The first never posts a receive, and lives on for much longer than a dead peer does.
  for (auto& pair : pairs) {
    for (uint64_t i = 0; i < 50; ++i) {
      ASSERT_EQ(pair->write(0, i, 100000), Errc::ok);
    }
  }
  for (size_t i = 1; i < pairs.size(); ++i) {
    pairs[i]->receive(1, 50);
  }
  ASSERT_TRUE(line.world().run_until(
      [&] {
        return std::all_of(pairs.begin() + 1, pairs.end(),
                           [](const auto& pair) { return pair->completions(0) == 50; });
      },
      seconds(10)));
  static_cast<void>(line.world().run_until([] { return false; }, seconds(15)));
  EXPECT_TRUE(pairs[0]->ready());
  EXPECT_EQ(pairs[0]->completions(0), 0U);
  pairs[0]->receive(1, 50);
  EXPECT_TRUE(line.world().run_until([&] { return pairs[0]->completions(0) == 50; }, seconds(5)));
}

TEST(RelaySim, MoreSessionsThanARelayAllowsAreRefusedWithAReason) {
  RelayLine::Options options = over(1);
  Config config;
  config.mesh_sessions = 2;
  options.relay.sessions_max = relay::relay_options(config, RelayLine::id(1)).sessions_max;
  RelayLine line(options);
  auto pairs = connected_pairs(line, 4096, 2);
  ASSERT_EQ(pairs.size(), 2U);
  RelayedPair refused(line, 4096, 9);
  EXPECT_FALSE(refused.connect(line));
  EXPECT_TRUE(refused.failed(0));
  EXPECT_NE(refused.ends[0].owner.last_error.what.find("2 paths already, which is its limit"),
            std::string::npos)
      << refused.ends[0].owner.last_error.what;
  EXPECT_EQ(line.node(1).counts().refused, 1U);
  pairs.clear();
  ASSERT_TRUE(line.world().run_until([&] { return line.node(1).sessions().empty(); }, seconds(1)));
  RelayedPair later(line, 4096, 10);
  EXPECT_TRUE(later.connect(line)) << "what has ended makes room";
}

TEST(RelaySim, AMessageThatFailsIsNamedToItsSenderOnly) {
  RelayLine line(over(2));
  RelayedPair pair(line, 4096, 1);
  ASSERT_TRUE(pair.connect(line));
  pair.receive(1, 10);
  for (uint64_t i = 0; i < 5; ++i) {
    ASSERT_EQ(pair.write(1, i, 64), Errc::ok);  // without a receive they wait
  }
  ASSERT_EQ(pair.write(0, 0, 64), Errc::ok);
  ASSERT_EQ(pair.write(0, 1, 64), Errc::ok);
  ASSERT_TRUE(line.world().run_until([&] { return pair.completions(0) == 2; }, seconds(1)));
  pair.ends[1].key += 1000;
  ASSERT_EQ(pair.write(0, 2, 64), Errc::ok);
  ASSERT_EQ(pair.write(0, 3, 64), Errc::ok);
  ASSERT_TRUE(line.world().run_until(
      [&] { return pair.completions(0) == 4 && pair.failed(1) && pair.completions(1) == 15; },
      seconds(5)));
  EXPECT_EQ(pair.ends[0].owner.completions[1].status, CompletionStatus::ok);
  EXPECT_EQ(pair.ends[0].owner.completions[2].status, CompletionStatus::remote_access);
  EXPECT_EQ(pair.ends[0].owner.completions[3].status, CompletionStatus::flushed);
  EXPECT_EQ(pair.ends[1].path->cause(), CompletionStatus::flushed);
  for (const Completion& one : pair.ends[1].owner.completions) {
    EXPECT_TRUE(
        one.status == CompletionStatus::flushed ||
        (one.kind == CompletionKind::receive_immediate && one.status == CompletionStatus::ok))
        << one.id << ": what this side had sent did not fail";
  }
}

TEST(RelaySim, TheShortestPiecesOfAllHostsFitEverywhere) {
  RelayLine::Options options = over(3);
  options.last_chunk_bytes = 4096;
  RelayLine line(options);
  RelayedPair pair(line, 1 << 20, 1);
  fill(pair.ends[0].bytes, 9);
  ASSERT_TRUE(pair.connect(line));
  pair.receive(1, 1);
  ASSERT_EQ(pair.write(0, 0, 1 << 20), Errc::ok);
  ASSERT_TRUE(line.world().run_until([&] { return pair.completions(1) == 1; }, seconds(5)));
  EXPECT_EQ(pair.ends[0].bytes, pair.ends[1].bytes);
  for (size_t host = 1; host <= 3; ++host) {
    EXPECT_EQ(line.node(host).sessions()[0]->counts(0).frames, (1U << 20) / 4096 + 0U) << host;
  }
}

TEST(RelaySim, AHostTakesNoMoreSlotsThanItAllows) {
  RelayLine::Options options = over(2);
  options.slots = 256;
  options.relay.slots_max = 20;
  options.last_slots = relay::slots_min;
  options.chunk_bytes = 4096;
  RelayLine line(options);
  RelayedPair pair(line, 1 << 20, 1);
  fill(pair.ends[0].bytes, 2);
  ASSERT_TRUE(pair.connect(line));
  EXPECT_EQ(line.node(1).sessions()[0]->share().slots, 20);
  EXPECT_EQ(line.node(2).sessions()[0]->share().slots, 20);
  pair.receive(1, 10);
  pair.receive(0, 10);
  for (uint64_t i = 0; i < 10; ++i) {
    ASSERT_EQ(pair.write(0, i, 1 << 19), Errc::ok);
    ASSERT_EQ(pair.write(1, i, 1 << 19, 1 << 19), Errc::ok);
  }
  ASSERT_TRUE(line.world().run_until(
      [&] { return pair.completions(0) == 20 && pair.completions(1) == 20; }, seconds(5)));
  EXPECT_EQ(pair.ends[0].bytes, pair.ends[1].bytes);
}

TEST(RelaySim, ARouteThatIsNoneIsRefused) {
  RelayLine line(over(2));
  fabric::PathOptions options;
  RecordingOwner owner;
  std::vector<fabric::Hop> route{relay::hop_of_node(RelayLine::id(2))};  // no cable from host 0
  options.route = route;
  options.active = true;
  auto path = line.make_path_over(0, options, &owner);
  ASSERT_TRUE(path);
  const auto wrong =
      (*path)->connect(encode(relay::PathEndpoint{RelayLine::id(3), 1, Secret::heard(1), {}}));
  ASSERT_FALSE(wrong);
  EXPECT_NE(wrong.error().what.find("no cable leads to relay"), std::string::npos);

  route = {relay::hop_of_node(RelayLine::id(1)), relay::hop_of_node(RelayLine::id(1))};
  options.route = route;
  auto round = line.make_path_over(0, options, &owner);
  ASSERT_TRUE(round);
  EXPECT_FALSE(
      (*round)->connect(encode(relay::PathEndpoint{RelayLine::id(3), 1, Secret::heard(1), {}})))
      << "the same host twice";
}

TEST(RelaySim, AWayThatNobodyNamesIsLookedForInTime) {
  RelayLine line(over(2));
  fabric::PathOptions options;
  RecordingOwner owner;
  options.active = true;
  options.connect_limit = seconds(2);
  auto unknown = line.make_path_over(0, options, &owner);
  ASSERT_TRUE(unknown);
  ASSERT_TRUE(
      (*unknown)->connect(encode(relay::PathEndpoint{RelayLine::id(3), 1, Secret::heard(1), {}})));
  const auto failed = [&] { return (*unknown)->state() == PathState::error; };
  EXPECT_FALSE(line.world().run_until(failed, milliseconds(1900)));
  EXPECT_TRUE(line.world().run_until([&] { return !owner.states.empty(); }, milliseconds(200)));
  EXPECT_TRUE(failed());
  EXPECT_NE(owner.last_error.what.find("no way over other hosts leads to"), std::string::npos)
      << owner.last_error.what;
}

TEST(RelaySim, AWayThatIsThereLaterIsTaken) {
  RelayLine line(over(1));
  RecordingOwner owners[2];
  std::unique_ptr<fabric::Path> ends[2];
  for (size_t side = 0; side < 2; ++side) {
    fabric::PathOptions options;
    options.domain = 1;
    options.active = side == 0;
    options.connect_limit = seconds(3);
    ends[side] = line.make_path_over(side == 0 ? 0 : 2, options, &owners[side]).value();
  }
  ASSERT_TRUE(ends[0]->connect(ends[1]->local_address()));
  ASSERT_TRUE(ends[1]->connect(ends[0]->local_address()));
  const auto ready = [&] {
    return ends[0]->state() == PathState::ready && ends[1]->state() == PathState::ready;
  };
  EXPECT_FALSE(line.world().run_until(ready, seconds(1)));
  line.tell_way(0, {RelayLine::id(1)});
  EXPECT_TRUE(line.world().run_until(ready, seconds(1)));
}

TEST(RelaySim, APathWhosePeerIsGoneIsRefusedByItsProcess) {
  RelayLine line(over(1));
  RelayedPair pair(line, 4096, 1);
  const auto address = pair.ends[1].path->local_address();
  const std::vector<std::byte> there(address.begin(), address.end());
  // Another path keeps the process listening.
  RelayedPair other(line, 4096, 2);
  pair.ends[1].path.reset();
  ASSERT_TRUE(pair.ends[0].path->connect(there));
  ASSERT_TRUE(line.world().run_until([&] { return pair.failed(0); }, seconds(2)));
  EXPECT_NE(pair.ends[0].owner.last_error.what.find("does not end here any more"),
            std::string::npos)
      << pair.ends[0].owner.last_error.what;
}

TEST(RelaySim, AStoringRelayPassesWholeMessagesOn) {
  for (const bool store : {false, true}) {
    RelayLine::Options options = over(1);
    options.relay.store = store;
    options.chunk_bytes = 4096;
    RelayLine line(options);
    RelayedPair pair(line, 1 << 20, 1);
    fill(pair.ends[0].bytes, 3);
    ASSERT_TRUE(pair.connect(line));
    pair.receive(1, 100);
    // Whole in the relay's slots, and longer than those.
    for (const size_t bytes : {size_t{40000}, size_t{1} << 20, size_t{1}, size_t{0}}) {
      const size_t before = pair.completions(0);
      ASSERT_EQ(pair.write(0, bytes, bytes), Errc::ok);
      ASSERT_TRUE(line.world().run_until([&] { return pair.completions(0) > before; }, seconds(5)))
          << bytes << " " << store;
    }
    EXPECT_EQ(pair.ends[0].bytes, pair.ends[1].bytes);
  }
}

TEST(RelaySim, WhatIsSentAgainIsWhatCame) {
  // With few slots each is used over and over, while what was in it may have to leave again.
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    RelayLine::Options options = over(2, seed);
    options.loss = 0.05;
    options.chunk_bytes = 4096;
    options.slots = relay::slots_min;
    RelayLine line(options);
    RelayedPair pair(line, 1 << 20, 1);
    fill(pair.ends[0].bytes, seed);
    ASSERT_TRUE(pair.connect(line)) << seed;
    pair.receive(1, 1);
    ASSERT_EQ(pair.write(0, 0, 1 << 20), Errc::ok);
    ASSERT_TRUE(line.world().run_until([&] { return pair.completions(0) == 1; }, seconds(60)));
    EXPECT_EQ(pair.ends[0].bytes, pair.ends[1].bytes) << seed;
    EXPECT_GT(line.world().network().counts().dropped, 0U) << "nothing was sent again";
  }
}

TEST(RelaySim, UnderLossEverythingArrivesOnceAndInOrder) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    RelayLine::Options options = over(1 + seed % 3, seed);
    options.loss = 0.02;
    options.chunk_bytes = 8192;
    RelayLine line(options);
    RelayedPair pair(line, 100000, 1);
    ASSERT_TRUE(pair.connect(line)) << seed;
    Random random(seed);
    uint64_t posted = 0;
    pair.receive(1, 100);
    ASSERT_TRUE(line.world().run_until(
        [&] {
          while (posted < 100 && pair.write(0, posted, random.below(100000)) == Errc::ok) {
            ++posted;
          }
          return pair.completions(0) == 100;
        },
        seconds(60)))
        << seed;
    for (uint64_t i = 0; i < 100; ++i) {
      ASSERT_EQ(pair.ends[1].owner.completions[i].immediate, i);
      ASSERT_EQ(pair.ends[0].owner.completions[i].id, i);
    }
    EXPECT_GT(line.world().network().counts().dropped, 0U) << "nothing was lost";
  }
}

TEST(RelaySim, EqualSeedsGiveEqualRuns) {
  uint64_t traces[2];
  for (uint64_t& trace : traces) {
    RelayLine::Options options = over(2, 77);
    options.loss = 0.05;
    RelayLine line(options);
    RelayedPair pair(line, 100000, 1);
    ASSERT_TRUE(pair.connect(line));
    pair.receive(1, 20);
    for (uint64_t i = 0; i < 20; ++i) {
      ASSERT_EQ(pair.write(0, i, 100000), Errc::ok);
    }
    ASSERT_TRUE(line.world().run_until([&] { return pair.completions(0) == 20; }, seconds(20)));
    trace = line.world().network().trace();
  }
  EXPECT_EQ(traces[0], traces[1]);
}

}  // namespace
}  // namespace nccl_ha::test
