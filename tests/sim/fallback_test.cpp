// Fallback paths over devices that have other keys for a connection's memory, or do not take it.
#include <gtest/gtest.h>

#include <cerrno>

#include "ha/candidates.h"
#include "tests/rig/runs/pair.h"
#include "tests/support/log_lines.h"
#include "tests/support/process_limit.h"
#include "tests/support/sim_pair.h"

namespace nccl_ha::test {
namespace {

using rig::SimPair;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// The first NIC of either host, towards every address of the other one.
void link_first(SimPair& pair, bool dark) {
  sim::Link link;
  link.cut = dark;
  const auto& from = pair.sender().addresses;
  const auto& to = pair.receiver().addresses;
  for (size_t i = 0; i < from.size(); ++i) {
    for (const auto& [a, b] : {std::pair(from[0], to[i]), std::pair(from[i], to[0])}) {
      pair.world().network().set_link(a, b, link);
      pair.world().network().set_link(b, a, link);
    }
  }
}

Config eager_config() {
  Config config;
  config.max_retries = 1;
  config.retry_budget_ms = 5000;
  return config;
}

enum class Side { sender, receiver };

uint64_t rejected(SimPair& pair) {
  return pair.send_channel().counters().paths_rejected.get() +
         pair.receive_channel().counters().paths_rejected.get();
}

sim::RdmaNic& nic_of(SimPair& pair, Side side, size_t nic) {
  return *(side == Side::sender ? pair.sender() : pair.receiver()).nics[nic];
}

/// What a user's memlock limit does: the callers' memory lies on the first NIC, and no more is
/// taken.
void refuse(SimPair& pair, Side side, size_t nic, bool refuses = true) {
  nic_of(pair, side, nic).verbs().faults[sim::Verb::register_memory] = refuses ? 1 : 0;
}

uint64_t refused(SimPair& pair, Side side, size_t nic) {
  return nic_of(pair, side, nic).verbs().failures(sim::Verb::register_memory);
}

/// How long a sender goes on whose first link is cut, until it gives up.
Duration fails_after_the_cut(SimPair& pair) {
  link_first(pair, true);
  pair.post_receives(2);
  const Instant begin = pair.world().now();
  static_cast<void>(pair.post_send(1 << 16));
  EXPECT_TRUE(pair.world().run_until([&] { return pair.send_channel().phase() == Phase::failed; },
                                     seconds(60)));
  return pair.world().now() - begin;
}

class RefusedFallback : public testing::TestWithParam<Side> {};
INSTANTIATE_TEST_SUITE_P(Sides, RefusedFallback, testing::Values(Side::sender, Side::receiver));

TEST_P(RefusedFallback, APrimaryThatFlapsIsAwaited) {
  SimPair pair(51, {}, eager_config(), {.rails = 2, .rdma = true});
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, seconds(1));
  refuse(pair, GetParam(), 1);
  rig::TransferPlan plan;
  plan.seed = 51;
  const Instant begin = pair.world().now();
  plan.each_round = [&] { link_first(pair, pair.world().now() - begin < seconds(2)); };
  EXPECT_EQ(pair.transfer(plan, seconds(20)), "");
  EXPECT_EQ(refused(pair, GetParam(), 1), 1U) << "the fault did not happen";
  EXPECT_EQ(rejected(pair), 1U);
  EXPECT_GE(pair.world().now() - begin, seconds(2)) << "it never had to wait";
}

/// Firmware that takes long with something refuses nothing: its path is made anew soon.
TEST_P(RefusedFallback, ADeviceThatIsBusyForAMomentCarriesAMomentLater) {
  SimPair pair(57, {}, eager_config(), {.rails = 2, .rdma = true});
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, seconds(1));
  nic_of(pair, GetParam(), 1).verbs().force(sim::Verb::register_memory, 1, EBUSY);
  link_first(pair, true);  // for good
  rig::TransferPlan plan;
  plan.seed = 57;
  const Instant begin = pair.world().now();
  EXPECT_EQ(pair.transfer(plan, seconds(20)), "");
  EXPECT_LE(pair.world().now() - begin, seconds(3));
  EXPECT_EQ(refused(pair, GetParam(), 1), 1U) << "the fault did not happen";
  EXPECT_EQ(rejected(pair), 0U);
}

/// Each new path of its is of no use either: nobody waits for ever.
TEST_P(RefusedFallback, WhereADeviceStaysBusyTheConnectionEndsWithinItsBudget) {
  SimPair pair(58, {}, eager_config(), {.rails = 2, .rdma = true});
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, seconds(1));
  for (uint64_t nth = 1; nth <= 1000; ++nth) {
    nic_of(pair, GetParam(), 1).verbs().force(sim::Verb::register_memory, nth, EBUSY);
  }
  const Duration took = fails_after_the_cut(pair);
  EXPECT_GT(refused(pair, GetParam(), 1), 2U) << "it was asked too seldom";
  EXPECT_LE(took, seconds(8));
}

TEST_P(RefusedFallback, TheNextCandidateTakesOver) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SimPair pair(5200 + seed, {}, eager_config(), {.rails = 3, .rdma = true});
    ASSERT_TRUE(pair.connect()) << pair.error();
    pass(pair, seconds(1));
    refuse(pair, GetParam(), 1);
    link_first(pair, true);  // for good
    rig::TransferPlan plan;
    plan.seed = seed;
    const Instant begin = pair.world().now();
    ASSERT_EQ(pair.transfer(plan, seconds(20)), "") << "seed " << seed;
    EXPECT_LE(pair.world().now() - begin, seconds(3)) << "seed " << seed;
    EXPECT_EQ(rejected(pair), 1U) << "seed " << seed;
    EXPECT_EQ(refused(pair, GetParam(), 1), 1U);
  }
}

TEST_P(RefusedFallback, DatagramsAreTheLastCandidate) {
  SimPair pair(53, {}, eager_config(), {.rails = 2, .rdma = true, .spare = true});
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, seconds(1));
  refuse(pair, GetParam(), 1);
  link_first(pair, true);
  rig::TransferPlan plan;
  plan.seed = 53;
  EXPECT_EQ(pair.transfer(plan, seconds(20)), "");
  EXPECT_EQ(rejected(pair), 1U);
}

TEST_P(RefusedFallback, WhenNobodyIsLeftTheConnectionEndsWithinItsBudget) {
  SimPair pair(54, {}, eager_config(), {.rails = 3, .rdma = true});
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, seconds(1));
  refuse(pair, GetParam(), 1);
  refuse(pair, GetParam(), 2);
  const Duration took = fails_after_the_cut(pair);
  EXPECT_NE(pair.error().find("HA_NCCL_RETRY_BUDGET_MS"), std::string::npos) << pair.error();
  EXPECT_EQ(rejected(pair), 2U);
  EXPECT_LE(took, seconds(8));
  EXPECT_TRUE(pair.world().run_until(
      [&] { return pair.receive_channel().phase() == Phase::failed; }, seconds(1)));
}

TEST_P(RefusedFallback, ARejectionIsForgotten) {
  Config config = eager_config();
  config.retry_budget_ms = 60000;
  SimPair pair(55, {}, config, {.rails = 2, .rdma = true});
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, seconds(1));
  refuse(pair, GetParam(), 1);
  link_first(pair, true);  // for good
  rig::TransferPlan plan;
  plan.seed = 55;
  const Instant begin = pair.world().now();
  plan.each_round = [&] {
    if (rejected(pair) != 0) {
      refuse(pair, GetParam(), 1, false);
    }
  };
  EXPECT_EQ(pair.transfer(plan, ha::ShadowCandidates::forget_after + seconds(15)), "");
  EXPECT_EQ(refused(pair, GetParam(), 1), 1U);
  EXPECT_GE(pair.world().now() - begin, ha::ShadowCandidates::forget_after);
}

TEST_P(RefusedFallback, ADeviceThatTakesNothingAtAllIsPassedOver) {
  SimPair pair(56, {}, eager_config(), {.rails = 3, .rdma = true});
  refuse(pair, GetParam(), 1);
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, seconds(1));
  EXPECT_EQ(rejected(pair), 1U);
  EXPECT_EQ(refused(pair, GetParam(), 1), 1U);
  EXPECT_EQ(pair.send_channel().counters().paths_down.get(), 0U);
  link_first(pair, true);
  rig::TransferPlan plan;
  plan.seed = 56;
  const Instant begin = pair.world().now();
  EXPECT_EQ(pair.transfer(plan, seconds(20)), "");
  EXPECT_LE(pair.world().now() - begin, seconds(2));
}

/// New memory is registered there while the primaries work again: what fails then costs nothing.
TEST_P(RefusedFallback, WhatFailsWhileThePrimaryWorksIsNoNews) {
  SimPair pair(57, {}, eager_config(), {.rails = 2, .rdma = true});
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, seconds(1));
  link_first(pair, true);
  rig::TransferPlan plan;
  plan.seed = 57;
  ASSERT_EQ(pair.transfer(plan, seconds(20)), "");
  ASSERT_EQ(pair.send_channel().counters().traffic_moves.get(), 1U);
  link_first(pair, false);
  pass(pair, seconds(2));
  refuse(pair, GetParam(), 1);
  plan.seed = 58;
  const Instant begin = pair.world().now();
  EXPECT_EQ(pair.transfer(plan, seconds(20)), "");
  EXPECT_EQ(rejected(pair), 1U);
  EXPECT_LE(pair.world().now() - begin, seconds(1));
}

/// Twice in turn, with the pause after a rejection between.
TEST_P(RefusedFallback, TheLogSaysOnceWhichLimitToRaise) {
  Config config = eager_config();
  config.retry_budget_ms = 300000;
  SimPair pair(58, {}, config, {.rails = 2, .rdma = true});
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, seconds(1));
  const ProcessLimit little(RLIMIT_MEMLOCK, 48 * 1024);
  LogLines log;
  // Calls between register what the device itself needs for the path.
  for (const uint64_t nth : {1, GetParam() == Side::sender ? 3 : 4}) {
    nic_of(pair, GetParam(), 1).verbs().force(sim::Verb::register_memory, nth, ENOMEM);
  }
  link_first(pair, true);  // for good
  rig::TransferPlan plan;
  plan.seed = 58;
  EXPECT_EQ(pair.transfer(plan, seconds(200)), "");
  EXPECT_EQ(refused(pair, GetParam(), 1), 2U) << "the fault did not happen";
  EXPECT_EQ(rejected(pair), 2U);
  const char* whose = GetParam() == Side::sender ? "this host" : "the peer";
  EXPECT_EQ(log.count("cannot take over through a device of "), 1U) << log.text();
  const std::string line = log.line(std::string("cannot take over through a device of ") + whose);
  for (const char* part : {"memory cannot be registered with", "only 48 KiB may be locked",
                           "ulimit -l unlimited", "Cannot allocate memory"}) {
    EXPECT_NE(line.find(part), std::string::npos) << line << '\n' << log.text();
  }
}

/// What a device needs of the process before it registers memory.  `parts` are what the log has to
/// say.
void expect_next_stands_by(Side side, uint64_t seed, sim::Verb verb, int error,
                           const std::vector<const char*>& parts) {
  LogLines log;
  SimPair pair(seed, {}, eager_config(), {.rails = 3, .rdma = true});
  sim::VerbFaults& verbs = nic_of(pair, side, 1).verbs();
  for (uint64_t nth = 1; nth <= 100; ++nth) {
    verbs.force(verb, nth, error);
  }
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, seconds(1));
  EXPECT_GT(verbs.failures(verb), 0U) << "the fault did not happen";
  link_first(pair, true);  // for good
  rig::TransferPlan plan;
  plan.seed = seed;
  const Instant begin = pair.world().now();
  EXPECT_EQ(pair.transfer(plan, seconds(20)), "");
  EXPECT_LE(pair.world().now() - begin, seconds(2)) << "nothing stood by";
  EXPECT_EQ(log.count("that is to stand by cannot be made"), 1U) << log.text();
  const std::string line = log.line("that is to stand by cannot be made");
  for (const char* part : parts) {
    EXPECT_NE(line.find(part), std::string::npos) << line;
  }
}

TEST_P(RefusedFallback, WithoutDescriptorsForADeviceTheNextOneStandsBy) {
  expect_next_stands_by(GetParam(), 62, sim::Verb::create_channel, EMFILE,
                        {"simrdma1", "RLIMIT_NOFILE", "ulimit -n"});
}

TEST_P(RefusedFallback, WithoutLockedMemoryForQueuesTheNextOneStandsBy) {
  const ProcessLimit little(RLIMIT_MEMLOCK, 48 * 1024);
  for (const sim::Verb verb : {sim::Verb::create_queue, sim::Verb::create_pair}) {
    SCOPED_TRACE(sim::to_text(verb));
    expect_next_stands_by(GetParam(), 63, verb, ENOMEM,
                          {"simrdma1", "only 48 KiB may be locked", "ulimit -l unlimited"});
  }
}

/// What the receiver wrote on the path that failed still arrives, for as long as the sender has not
/// closed its side: without the keys, over an announcement that has them.
TEST(ShadowKeysInTime, AnAnnouncementOfTheOldPathComesLate) {
  constexpr auto late = milliseconds(5);
  SimPair pair(63, {}, {}, {.rails = 2, .rdma = true});
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, seconds(1));
  sim::Link slow;
  slow.delay = late;
  pair.set_links({}, slow, 0);
  pair.post_receives(1);
  pass(pair, late / 2);
  const auto& counts = pair.world().rdma().counts;
  const uint64_t before = counts.after_error;
  pair.world().pause(pair.sender(), pair.world().now() + 2 * late);
  ASSERT_TRUE(pair.receive_driver().suspect(0));
  pass(pair, late);
  EXPECT_EQ(pair.receive_channel().counters().paths_down.get(), 1U);
  EXPECT_EQ(pair.send_channel().counters().paths_down.get(), 0U);
  EXPECT_EQ(counts.after_error, before + 1) << "the sender's NIC acknowledged nothing";
  link_first(pair, true);  // for good
  ASSERT_TRUE(pair.post_send(1 << 16)) << pair.error();
  EXPECT_TRUE(pair.world().run_until(
      [&] { return pair.receive_channel().slot(0).state.load() == RequestState::done; },
      seconds(10)))
      << "no key came again";
  EXPECT_EQ(pair.send_channel().counters().traffic_moves.get(), 1U);
}

/// Memory of a GPU at the receiver, by DMA-BUF.
class RefusedGpuFallback : public testing::Test {
 protected:
  static rig::SimCables cables() {
    rig::SimCables cables{.rails = 3, .rdma = true};
    cables.traits.gpu = true;
    return cables;
  }
  static rig::TransferPlan gpu_plan(uint64_t seed) {
    rig::TransferPlan plan;
    plan.seed = seed;
    plan.gpu = true;
    return plan;
  }
};

TEST_F(RefusedGpuFallback, ADeviceThatDoesNotTakeTheDescriptorMakesRoomForTheNext) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SimPair pair(5900 + seed, {}, eager_config(), cables());
    ASSERT_TRUE(pair.connect()) << pair.error();
    pass(pair, seconds(1));
    sim::VerbFaults& verbs = nic_of(pair, Side::receiver, 1).verbs();
    verbs.faults[sim::Verb::register_dmabuf] = 1;
    link_first(pair, true);  // for good
    const Instant begin = pair.world().now();
    ASSERT_EQ(pair.transfer(gpu_plan(seed), seconds(20)), "") << "seed " << seed;
    EXPECT_LE(pair.world().now() - begin, seconds(3)) << "seed " << seed;
    EXPECT_EQ(verbs.failures(sim::Verb::register_dmabuf), 1U);
    EXPECT_EQ(rejected(pair), 1U) << "seed " << seed;
  }
}

/// Then no device but its own reaches the memory.
TEST_F(RefusedGpuFallback, WithoutACopyOfTheDescriptorThePrimaryIsAwaited) {
  SimPair pair(60, {}, eager_config(), cables());
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, seconds(1));
  LogLines log;
  sim::VerbFaults& kernel = nic_of(pair, Side::receiver, 0).verbs();
  for (uint64_t nth = 1; nth <= 100; ++nth) {
    kernel.force(sim::Verb::duplicate, nth, EMFILE);
  }
  rig::TransferPlan plan = gpu_plan(60);
  const Instant begin = pair.world().now();
  plan.each_round = [&] { link_first(pair, pair.world().now() - begin < seconds(2)); };
  EXPECT_EQ(pair.transfer(plan, seconds(20)), "");
  EXPECT_GE(pair.world().now() - begin, seconds(2)) << "it never had to wait";
  EXPECT_GT(kernel.failures(sim::Verb::duplicate), 0U) << "the fault did not happen";
  EXPECT_EQ(rejected(pair), 2U) << "each of the other two devices, once";
  EXPECT_EQ(nic_of(pair, Side::receiver, 1).verbs().calls(sim::Verb::register_dmabuf), 0U);
  const std::string line = log.line("cannot take over through a device of the peer");
  for (const char* part : {"DMA-BUF", "Too many open files", "RLIMIT_NOFILE", "ulimit -n"}) {
    EXPECT_NE(line.find(part), std::string::npos) << line << '\n' << log.text();
  }
}

TEST_F(RefusedGpuFallback, WithoutACopyOfTheDescriptorTheConnectionEndsWithinItsBudget) {
  SimPair pair(61, {}, eager_config(), cables());
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, seconds(1));
  sim::VerbFaults& kernel = nic_of(pair, Side::receiver, 0).verbs();
  kernel.faults[sim::Verb::duplicate] = 1;
  link_first(pair, true);  // for good
  rig::TransferPlan plan = gpu_plan(61);
  plan.may_end = true;
  const Instant begin = pair.world().now();
  static_cast<void>(pair.transfer(plan, seconds(60)));
  EXPECT_GT(kernel.failures(sim::Verb::duplicate), 0U) << "the fault did not happen";
  EXPECT_EQ(pair.send_channel().phase(), Phase::failed);
  EXPECT_NE(pair.error().find("HA_NCCL_RETRY_BUDGET_MS"), std::string::npos) << pair.error();
  EXPECT_EQ(rejected(pair), 2U);
  EXPECT_LE(pair.world().now() - begin, seconds(8));
}

}  // namespace
}  // namespace nccl_ha::test
