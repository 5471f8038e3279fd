// Handshakes in which a stream, a NIC or a route fails before the acceptor has answered: the
// connector tries again, and neither caller hears of it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "tests/rig/runs/pair.h"
#include "tests/support/sim_pair.h"
#include "tests/support/sim_seeds.h"

namespace nccl_ha::test {
namespace {

using rig::SimCables;
using rig::SimPair;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(SimHandshakeFaults, ADeviceThatFailsBeforeTheAcceptorHasAnsweredLeavesItToTheOther) {
  size_t failed_first = 0;
  const auto points = sim_alike(40);
  for (uint64_t point = 1; point <= points; ++point) {
    SCOPED_TRACE(fmt::format("at point {}", point));
    SimPair pair(62, {}, {}, {.rails = 2, .rdma = true});
    const Instant stands_at = pair.world().now() + microseconds(25 * point);
    const Instant fails_at = stands_at + milliseconds(100);
    bool stands = false;
    bool fails = false;
    ASSERT_TRUE(pair.connect([&] {
      const Instant now = pair.world().now();
      if (!stands && now >= stands_at) {
        stands = true;
        pair.world().pause(pair.receiver(), stands_at + seconds(2));
      }
      if (!fails && now >= fails_at) {
        fails = true;
        pair.sender().nics[0]->fail_for_good();
      }
    })) << pair.error();
    failed_first += fails ? 1 : 0;
    if (!fails) {
      pair.sender().nics[0]->fail_for_good();
    }
    expect_transfers(pair);
  }
  EXPECT_GT(failed_first, points / 10) << "the device always failed afterwards";
}

TEST(SimHandshakeFaults, ARouteThatIsAwayForAMomentIsDialledAgain) {
  for (const int error : {ENETUNREACH, ENETDOWN, EADDRNOTAVAIL, EHOSTUNREACH}) {
    SCOPED_TRACE(fmt::format("errno {}", error));
    sim::Link away;
    away.dial_error = error;
    SimPair pair(63, away);
    const Instant back = pair.world().now() + seconds(1);
    bool works = false;
    ASSERT_TRUE(pair.connect([&] {
      if (!works && pair.world().now() >= back) {
        works = true;
        pair.world().network().all = {};
      }
    })) << pair.error();
    EXPECT_TRUE(works) << "the fault did not happen";
    EXPECT_LE(pair.world().now() - back, seconds(2));
    expect_transfers(pair);
  }
}

}  // namespace
}  // namespace nccl_ha::test
