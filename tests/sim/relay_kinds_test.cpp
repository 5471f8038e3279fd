// Hops of several kinds on one route: queue pairs where both neighbours have them, datagrams where
// not.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
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

TEST(RelayKinds, QueuePairsAllTheWay) {
  RelayLine line(all_rdma(3));
  RelayedPair pair(line, 1 << 20, 1);
  ASSERT_TRUE(pair.connect(line));
  EXPECT_EQ(kinds(line), (Kinds{rc, rc, rc, rc}));
  exchange(line, pair);
}

TEST(RelayKinds, EachCableHasWhatBothOfItsHostsHave) {
  // Of five hosts, RDMA from the first cable on: the second and the third cable have it at one end.
  RelayLine::Options options;
  options.relays = 3;
  options.rdma = [](size_t host) { return std::array<size_t, 5>{1, 1, 2, 0, 0}.at(host); };
  RelayLine line(options);
  RelayedPair pair(line, 1 << 20, 1);
  ASSERT_TRUE(pair.connect(line)) << pair.ends[0].owner.last_error.message();
  EXPECT_EQ(kinds(line), (Kinds{rc, udp, udp, udp}));
  exchange(line, pair);
}

TEST(RelayKinds, TheFirstHostAsksAgainToo) {
  RelayLine::Options options;
  options.rdma = [](size_t host) { return std::array<size_t, 3>{1, 0, 0}.at(host); };
  RelayLine line(options);
  RelayedPair pair(line, 1 << 20, 1);
  ASSERT_TRUE(pair.connect(line)) << pair.ends[0].owner.last_error.message();
  EXPECT_EQ(kinds(line), (Kinds{udp, udp}));
  exchange(line, pair);
}

TEST(RelayKinds, TheLastHostIsAskedAgainToo) {
  RelayLine::Options options;
  options.rdma = [](size_t host) { return std::array<size_t, 3>{0, 2, 0}.at(host); };
  RelayLine line(options);
  RelayedPair pair(line, 1 << 20, 1);
  ASSERT_TRUE(pair.connect(line)) << pair.ends[0].owner.last_error.message();
  EXPECT_EQ(kinds(line), (Kinds{udp, udp}));
  exchange(line, pair);
}

TEST(RelayKinds, ADeviceThatDoesNotConnectIsLeftOutForAWhile) {
  for (const size_t broken : {0, 1, 2}) {
    RelayLine line(all_rdma(1));
    for (sim::RdmaNic* nic : line.process(broken).nics) {
      nic->set_port(false);
    }
    // Who asks finds out when it has asked, and does better the next time; others say so at once.
    bool ready = false;
    for (uint64_t attempt = 1; attempt <= 3 && !ready; ++attempt) {
      RelayedPair pair(line, 1 << 20, attempt);
      ready = pair.connect(line);
      if (ready) {
        exchange(line, pair);
        const Kinds expected = broken == 0   ? Kinds{udp, rc}
                               : broken == 1 ? Kinds{udp, udp}
                                             : Kinds{rc, udp};
        EXPECT_EQ(kinds(line), expected) << broken;
      }
    }
    EXPECT_TRUE(ready) << broken;
  }
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

TEST(RelayKinds, MemoryThatIsGoneIsNotSent) {
  RelayLine line(all_rdma(1));
  RelayedPair pair(line, 1 << 20, 1);
  ASSERT_TRUE(pair.connect(line));
  ASSERT_EQ(pair.write(0, 0, 1 << 20), Errc::ok);  // waits for a receive
  ASSERT_TRUE(line.process(0).provider->memory().remove(pair.ends[0].key));
  pair.receive(1, 1);
  ASSERT_TRUE(line.world().run_until([&] { return pair.completions(0) == 1; }, seconds(5)));
  EXPECT_EQ(pair.ends[0].owner.completions[0].status, CompletionStatus::local_protection);
  EXPECT_TRUE(pair.failed(0));
}

TEST(RelayKinds, NothingLandsAfterTheFence) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    RelayLine line(all_rdma(2, seed));
    RelayedPair pair(line, 1 << 20, 1);
    fill(pair.ends[0].bytes, seed);
    ASSERT_TRUE(pair.connect(line));
    pair.receive(1, 100);
    for (uint64_t i = 0; i < 50; ++i) {
      ASSERT_EQ(pair.write(0, i, 1 << 20), Errc::ok);
    }
    Random random(seed);
    ASSERT_TRUE(line.world().run_until([&] { return pair.completions(1) >= 1; }, seconds(5)));
    static_cast<void>(line.world().run_until([] { return false; },
                                             std::chrono::microseconds(random.below(5000))));
    pair.ends[1].path->fail(fail(Errc::closed, "the fence"));
    ASSERT_TRUE(line.world().run_until([&] { return pair.completions(1) == 100; }, seconds(1)));
    std::fill(pair.ends[1].bytes.begin(), pair.ends[1].bytes.end(), std::byte{0x11});
    static_cast<void>(line.world().run_until([] { return false; }, seconds(5)));
    EXPECT_TRUE(std::all_of(pair.ends[1].bytes.begin(), pair.ends[1].bytes.end(),
                            [](std::byte one) { return one == std::byte{0x11}; }))
        << seed;
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
