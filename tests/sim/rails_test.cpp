// Several rails of one device: who carries what, and what becomes of it when one fails or is slow.
#include <gtest/gtest.h>

#include "runtime/telemetry/agent_directory.h"
#include "tests/rig/runs/failover_run.h"
#include "tests/support/sim_flow.h"
#include "tests/support/sim_pair.h"
#include "tests/support/sim_seeds.h"
#include "tests/support/simulated_agent.h"
#include "tests/support/temporary_folder.h"

namespace nccl_ha::test {
namespace {

using rig::SimPair;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint64_t mega = 1'000'000;

sim::Link at_rate(uint64_t rate) {
  sim::Link link;
  link.rate = rate;
  return link;
}
void set_rail(SimPair& pair, size_t rail, const sim::Link& link) {
  pair.set_links(link, link, rail);
}
sim::Link dark() {
  sim::Link link;
  link.cut = true;
  return link;
}

/// That the sender's packets had in them, by rail.
uint64_t carried(SimPair& pair, size_t rail) {
  return pair.world().network().carried(pair.sender().addresses[rail],
                                        pair.receiver().addresses[rail]);
}
/// Heartbeats, probes and control messages are no more.
constexpr uint64_t next_to_nothing = 200'000;

class Rails : public testing::TestWithParam<bool> {
 protected:
  static SimPair make(uint64_t seed, const Config& config, size_t rails = 2, bool named = true,
                      std::shared_ptr<ha::HintSource> hints = nullptr) {
    return SimPair(seed, {}, config,
                   {.rails = rails,
                    .rdma = GetParam(),
                    .one_device = true,
                    .sout_and_sup = named,
                    .hints = std::move(hints)});
  }
  static std::string transfer(SimPair& pair, uint64_t seed, uint64_t groups = 20) {
    rig::TransferPlan plan;
    plan.seed = seed;
    plan.groups = groups;
    return pair.transfer(plan, seconds(60));
  }
};
INSTANTIATE_TEST_SUITE_P(Fabrics, Rails, testing::Bool(), [](const auto& one) {
  return std::string(one.param ? "rdma" : "datagrams");
});

/// Seed 000, table 3.4.
TEST_P(Rails, WithinAnIslandDataTakesSup) {
  SimPair pair = make(1, {});
  ASSERT_TRUE(pair.connect()) << pair.error();
  ASSERT_EQ(transfer(pair, 1), "");
  EXPECT_LT(carried(pair, 0), next_to_nothing);
  EXPECT_GE(carried(pair, 1), pair.bytes_wanted());
  EXPECT_EQ(pair.send_channel().counters().traffic_moves.get(), 0U);
  // And clear-to-sends, of which each has 64 bytes.
  const auto& network = pair.world().network();
  const uint64_t back = network.carried(pair.receiver().addresses[0], pair.sender().addresses[0]);
  rig::TransferPlan small;
  small.groups = 500;
  small.large = 0;
  ASSERT_EQ(pair.transfer(small, seconds(60)), "");
  EXPECT_LT(network.carried(pair.receiver().addresses[0], pair.sender().addresses[0]) - back,
            500 * 64U / 2);
}

TEST_P(Rails, BetweenIslandsNothingEverTakesSup) {
  Config config;
  config.mpib_island_prefix_len = 32;
  config.origins["mpib_island_prefix_len"] = {};
  SimPair pair = make(2, config);
  ASSERT_TRUE(pair.connect()) << pair.error();
  ASSERT_EQ(transfer(pair, 2), "");
  pass(pair, seconds(10));
  EXPECT_EQ(carried(pair, 1), 0U);
  EXPECT_GE(carried(pair, 0), pair.bytes_wanted());
  // And when SOUT fails there is nothing else.
  set_rail(pair, 0, dark());
  pass(pair, seconds(10));
  EXPECT_EQ(carried(pair, 1), 0U);
  EXPECT_EQ(pair.send_channel().phase(), Phase::ready) << pair.error();
}

TEST_P(Rails, SoutTakesOverWithinAnIslandAndGivesBack) {
  Config config;
  config.failback_ms = 500;
  SimPair pair = make(3, config);
  ASSERT_TRUE(pair.connect()) << pair.error();
  const auto& counters = pair.send_channel().counters();
  ASSERT_EQ(transfer(pair, 3), "");
  set_rail(pair, 1, dark());
  const uint64_t sup = carried(pair, 1);
  ASSERT_EQ(transfer(pair, 4), "");
  EXPECT_EQ(counters.traffic_moves.get(), 1U);
  EXPECT_GE(carried(pair, 0), pair.bytes_wanted());
  EXPECT_LT(carried(pair, 1) - sup, pair.bytes_wanted());
  set_rail(pair, 1, {});
  ASSERT_TRUE(
      pair.world().run_until([&] { return counters.traffic_moves.get() == 2; }, seconds(20)));
  const uint64_t sout = carried(pair, 0);
  ASSERT_EQ(transfer(pair, 5), "");
  EXPECT_LT(carried(pair, 0) - sout, next_to_nothing);
}

/// What a memlock limit does at the receiver.
TEST(RailsKeys, ARailThatThePeersMemoryIsNotKnownOnLeavesAllToTheOther) {
  for (const bool at_sender : {false, true}) {
    Config config;
    SimPair pair(7, {}, config,
                 {.rails = 2, .rdma = true, .one_device = true, .sout_and_sup = true});
    ASSERT_TRUE(pair.connect()) << pair.error();
    auto& nic = *(at_sender ? pair.sender() : pair.receiver()).nics[1];
    nic.verbs().faults[sim::Verb::register_memory] = 1;
    rig::TransferPlan plan;
    plan.seed = 7;
    plan.groups = 20;
    ASSERT_EQ(pair.transfer(plan, seconds(20)), "") << (at_sender ? "sender" : "receiver");
    EXPECT_NE(nic.verbs().failures(sim::Verb::register_memory), 0U) << "nothing was refused";
    EXPECT_GE(carried(pair, 0), pair.bytes_wanted());
  }
}

/// Neither rail takes the chunk, and the turn ends all the same.
TEST(RailsKeys, AChunkThatNoRailTakesWaitsForTheFirstOne) {
  SimPair pair(8, {}, {}, {.rails = 3, .rdma = true, .one_device = true, .sout_and_sup = false});
  ASSERT_TRUE(pair.connect()) << pair.error();
  for (const size_t rail : {1U, 2U}) {
    pair.sender().nics[rail]->verbs().faults[sim::Verb::register_memory] = 1;
  }
  set_rail(pair, 0, dark());
  static_cast<void>(pair.world().run_until([] { return false; }, seconds(2)));
  set_rail(pair, 0, {});
  rig::TransferPlan plan;
  plan.seed = 8;
  plan.groups = 20;
  ASSERT_EQ(pair.transfer(plan, seconds(60)), "");
  EXPECT_GT(pair.sender().nics[1]->verbs().failures(sim::Verb::register_memory) +
                pair.sender().nics[2]->verbs().failures(sim::Verb::register_memory),
            0U)
      << "nothing was refused";
}

TEST_P(Rails, UnequalRailsAddUp) {
  for (const uint64_t part : {1U, 2U, 4U, 10U}) {
    Config config;
    config.ib_split_threshold = 65536;
    SimPair pair = make(10 + part, config, 2, false);
    set_rail(pair, 0, at_rate(50 * mega));
    set_rail(pair, 1, at_rate(50 * mega / part));
    ASSERT_TRUE(pair.connect()) << pair.error();
    rig::TransferPlan plan;
    plan.seed = 10;
    plan.groups = 120;
    plan.grouped = 0;
    plan.large = 1;
    plan.bytes_max = 1 << 20;
    const Instant begin = pair.world().now();
    ASSERT_EQ(pair.transfer(plan, seconds(60)), "");
    const double took = std::chrono::duration<double>(pair.world().now() - begin).count();
    const double sum = 50e6 + 50e6 / static_cast<double>(part);
    const double reached = static_cast<double>(pair.bytes_wanted()) / took / sum;
    EXPECT_GT(reached, 0.92) << "1 to " << part;
  }
}

TEST_P(Rails, ARailThatBecomesSlowLosesItsShareWithinATenthOfASecond) {
  SimPair pair = make(21, {}, 2, false);
  set_rail(pair, 0, at_rate(50 * mega));
  set_rail(pair, 1, at_rate(50 * mega));
  ASSERT_TRUE(pair.connect()) << pair.error();
  Flow flow(pair, 21);
  flow.rate(milliseconds(300));
  EXPECT_GT(flow.rate(milliseconds(300)), 0.9 * 100e6);
  set_rail(pair, 1, at_rate(5 * mega));
  flow.rate(milliseconds(100));
  EXPECT_GT(flow.rate(milliseconds(300)), 0.9 * 55e6);
  EXPECT_EQ(pair.send_channel().counters().paths_down.get(), 0U) << "slow is not dead";
  set_rail(pair, 1, at_rate(50 * mega));
  flow.rate(milliseconds(1000));
  EXPECT_GT(flow.rate(milliseconds(300)), 0.9 * 100e6) << "it is as fast again";
}

TEST_P(Rails, ARailThatStaysSlowIsToldAndGoesOn) {
  SimPair pair = make(31, {}, 2, false);
  set_rail(pair, 0, at_rate(50 * mega));
  set_rail(pair, 1, at_rate(50 * mega));
  ASSERT_TRUE(pair.connect()) << pair.error();
  const auto& counters = pair.send_channel().counters();
  Flow flow(pair, 31);
  flow.rate(seconds(3));
  EXPECT_EQ(counters.stragglers.get(), 0U);
  set_rail(pair, 1, at_rate(5 * mega));
  flow.rate(seconds(4));
  EXPECT_EQ(counters.stragglers.get(), 1U);
  EXPECT_EQ(counters.stragglers_fenced.get(), 0U);
  EXPECT_EQ(counters.paths_down.get(), 0U);
  const uint64_t before = carried(pair, 1);
  flow.rate(seconds(2));
  EXPECT_GT(carried(pair, 1), before + mega) << "it carries what it can";
}

TEST_P(Rails, HowMuchSlowerAStragglerIsCanBeSet) {
  const auto told = [](int64_t factor) {
    Config config;
    config.straggler_factor = factor;
    SimPair pair = make(31, config, 2, false);
    set_rail(pair, 0, at_rate(50 * mega));
    set_rail(pair, 1, at_rate(50 * mega));
    EXPECT_TRUE(pair.connect()) << pair.error();
    Flow flow(pair, 31);
    flow.rate(seconds(3));
    set_rail(pair, 1, at_rate(5 * mega));
    flow.rate(seconds(4));
    return pair.send_channel().counters().stragglers.get();
  };
  EXPECT_EQ(told(4), 1U);
  EXPECT_EQ(told(25), 0U) << "it is ten times slower";
  EXPECT_EQ(told(0), 0U);
}

TEST_P(Rails, AStragglerIsFencedOffAndComesBackByTheRulesOfFailback) {
  Config config;
  config.fence_stragglers = true;
  config.failback_ms = 2000;
  SimPair pair = make(32, config, 2, false);
  set_rail(pair, 0, at_rate(50 * mega));
  set_rail(pair, 1, at_rate(50 * mega));
  ASSERT_TRUE(pair.connect()) << pair.error();
  SimPair alone = make(32, {}, 1, false);
  set_rail(alone, 0, at_rate(50 * mega));
  ASSERT_TRUE(alone.connect()) << alone.error();
  Flow own(alone, 32);
  own.rate(milliseconds(300));
  const double healthy = own.rate(seconds(1));
  const auto& counters = pair.send_channel().counters();
  Flow flow(pair, 32);
  flow.rate(milliseconds(500));
  set_rail(pair, 1, at_rate(2 * mega));
  ASSERT_TRUE(flow.run_until([&] { return counters.stragglers_fenced.get() == 1; }, seconds(6)));
  flow.rate(milliseconds(200));
  const uint64_t before = carried(pair, 1);
  const double rest = flow.rate(seconds(1));
  EXPECT_LT(carried(pair, 1) - before, next_to_nothing) << "it is fenced off";
  EXPECT_GT(rest, 0.95 * healthy) << "and disturbs nobody";
  // As slow as before when it comes back: fenced off again, and for longer.
  ASSERT_TRUE(flow.run_until([&] { return counters.stragglers_fenced.get() == 2; }, seconds(10)));
  set_rail(pair, 1, at_rate(50 * mega));
  flow.rate(seconds(3));
  const uint64_t again = carried(pair, 1);
  flow.rate(milliseconds(500));
  EXPECT_LT(carried(pair, 1) - again, next_to_nothing) << "twice as long";
  flow.rate(seconds(3));
  EXPECT_GT(flow.rate(milliseconds(500)), 0.9 * 100e6) << "it is fast again, and serves";
  EXPECT_EQ(counters.stragglers_fenced.get(), 2U);
}

TEST_P(Rails, AFencedRailServesWhenNothingElseIsLeft) {
  Config config;
  config.fence_stragglers = true;
  config.failback_ms = 600000;
  SimPair pair = make(33, config, 2, false);
  set_rail(pair, 0, at_rate(50 * mega));
  set_rail(pair, 1, at_rate(5 * mega));
  ASSERT_TRUE(pair.connect()) << pair.error();
  const auto& counters = pair.send_channel().counters();
  Flow flow(pair, 33);
  ASSERT_TRUE(flow.run_until([&] { return counters.stragglers_fenced.get() == 1; }, seconds(6)));
  flow.rate(seconds(1));
  set_rail(pair, 0, dark());
  flow.rate(seconds(2));
  EXPECT_GT(flow.rate(seconds(1)), 0.8 * 5e6);
  EXPECT_EQ(pair.send_channel().phase(), Phase::ready) << pair.error();
}

/// For a standby the peer tells no keys while a path of the device's own works, however slow.
TEST(RailsKeys, AFencedRailServesWhereTheStandbyHasNoKeys) {
  Config config;
  config.fence_stragglers = true;
  config.failback_ms = 600000;
  SimPair pair(34, {}, config, {.rails = 3, .rdma = true, .one_device = true});
  for (sim::Process* host : {&pair.sender(), &pair.receiver()}) {
    host->devices.count = 2;  // the third NIC stands by
  }
  set_rail(pair, 0, at_rate(50 * mega));
  set_rail(pair, 1, at_rate(5 * mega));
  set_rail(pair, 2, at_rate(50 * mega));
  ASSERT_TRUE(pair.connect()) << pair.error();
  const auto& counters = pair.send_channel().counters();
  Flow flow(pair, 34);
  ASSERT_TRUE(flow.run_until([&] { return counters.stragglers_fenced.get() == 1; }, seconds(6)));
  flow.rate(seconds(1));
  EXPECT_EQ(counters.traffic_moves.get(), 0U);
  set_rail(pair, 0, dark());
  flow.rate(seconds(2));
  EXPECT_GE(counters.traffic_moves.get(), 2U)
      << "traffic did not go to the standby, and from there";
  EXPECT_GT(flow.rate(seconds(1)), 0.8 * 5e6);
  EXPECT_EQ(pair.send_channel().phase(), Phase::ready) << pair.error();
}

TEST_P(Rails, OneRailCutUnderLoadLeavesTheOtherAndComesBack) {
  SimPair pair = make(22, {}, 2, false);
  set_rail(pair, 0, at_rate(50 * mega));
  set_rail(pair, 1, at_rate(50 * mega));
  ASSERT_TRUE(pair.connect()) << pair.error();
  SimPair alone = make(22, {}, 1, false);
  set_rail(alone, 0, at_rate(50 * mega));
  ASSERT_TRUE(alone.connect()) << alone.error();
  Flow own(alone, 22);
  own.rate(milliseconds(300));
  const double survivor = own.rate(milliseconds(500));
  Flow flow(pair, 22);
  flow.rate(milliseconds(300));
  for (const size_t rail : {1U, 0U}) {
    set_rail(pair, rail, dark());
    flow.rate(milliseconds(500));
    EXPECT_GT(flow.rate(milliseconds(500)), 0.95 * survivor);
    set_rail(pair, rail, at_rate(50 * mega));
    flow.rate(seconds(3));
    EXPECT_GT(flow.rate(milliseconds(300)), 0.9 * 100e6) << "rail " << rail << " is back";
  }
}

TEST_P(Rails, FourRailsOfFourSpeedsAddUp) {
  SimPair pair = make(23, {}, 4, false);
  for (size_t rail = 0; rail < 4; ++rail) {
    set_rail(pair, rail, at_rate((rail + 1) * 10 * mega));
  }
  ASSERT_TRUE(pair.connect()) << pair.error();
  Flow flow(pair, 23);
  flow.rate(milliseconds(300));
  EXPECT_GT(flow.rate(milliseconds(500)), 0.9 * 100e6);
}

/// Receives are open all the time, and what was announced over SOUT takes long.
TEST_P(Rails, NoAnnouncementOvertakesAnother) {
  Config config;
  config.failback_ms = 100;
  SimPair pair = make(30, config);
  sim::Link slow = at_rate(100 * mega);
  slow.delay = milliseconds(30);
  set_rail(pair, 0, slow);
  set_rail(pair, 1, at_rate(100 * mega));
  ASSERT_TRUE(pair.connect()) << pair.error();
  Flow flow(pair, 30, 100'000);
  for (int round = 0; round < 3; ++round) {
    flow.rate(milliseconds(50));
    set_rail(pair, 1, dark());
    flow.rate(milliseconds(800));
    set_rail(pair, 1, at_rate(100 * mega));
    ASSERT_TRUE(flow.run_until(
        [&] { return pair.send_channel().counters().traffic_moves.get() % 2 == 0; }, seconds(10)));
    EXPECT_EQ(pair.send_channel().phase(), Phase::ready) << pair.error();
  }
  EXPECT_GE(pair.send_channel().counters().traffic_moves.get(), 6U);
}

/// What an agent would say.
class FakeHints final : public ha::HintSource {
 public:
  std::optional<uint32_t> parts(Instant) override { return value; }
  std::optional<uint32_t> value;
};

TEST_P(Rails, HintsGiveTheirSharesOfTheBytes) {
  auto hints = std::make_shared<FakeHints>();
  Config config;
  config.mpib_mode = 1;
  SimPair pair = make(24, config, 2, true, hints);
  ASSERT_TRUE(pair.connect()) << pair.error();
  for (const uint32_t hint : {0U, 256U, 512U, 1024U, 0U}) {
    hints->value = hint;
    const uint64_t before = carried(pair, 1);
    ASSERT_EQ(transfer(pair, 24 + hint, 200), "");
    const double share =
        static_cast<double>(carried(pair, 1) - before) / static_cast<double>(pair.bytes_wanted());
    EXPECT_NEAR(share, hint / 1024.0, 0.02) << hint << " parts";
  }
}

/// Of a host with an agent; shares are agreed on, so isolated paths need none.
TEST_P(Rails, TheAgentIsAskedInTheAdvancedModeOnly) {
  for (const int64_t mode : {0, 1}) {
    SCOPED_TRACE(mode);
    const tests::TemporaryFolder folder;
    Config config;
    config.mpib_mode = mode;
    config.agent_dir = folder.path();
    SimPair pair = make(31, config);
    const sim::Ip host = pair.sender().address;
    const int listener =
        pair.world().network().listen_unix(host, folder.path() + "/" + AgentDirectory::socket_name);
    auto made =
        std::make_unique<SimulatedAgent>(folder.path(), listener, SimulatedAgent::Manner::proper);
    const SimulatedAgent& agent = *made;
    auto process = pair.world().add_process(host, Config{});
    ASSERT_TRUE(process);
    ASSERT_TRUE((*process)->engine->worker(0).adopt(std::move(made)));
    ASSERT_TRUE(pair.connect()) << pair.error();
    ASSERT_EQ(transfer(pair, 31), "");
    EXPECT_EQ(agent.streams_seen, mode == 0 ? 0U : 1U);
    EXPECT_EQ(agent.connections.size(), mode == 0 ? 0U : 1U);
  }
}

TEST_P(Rails, BetweenIslandsTheAdvancedModeUsesBothAndSmallMessagesOne) {
  auto hints = std::make_shared<FakeHints>();
  hints->value = 1024;
  Config config;
  config.mpib_mode = 1;
  config.mpib_island_prefix_len = 32;
  SimPair pair = make(25, config, 2, true, hints);
  ASSERT_TRUE(pair.connect()) << pair.error();
  rig::TransferPlan plan;
  plan.large = 0;
  ASSERT_EQ(pair.transfer(plan, seconds(20)), "");
  EXPECT_LT(carried(pair, 1), next_to_nothing);
  plan.large = 1;
  const uint64_t before = carried(pair, 0);
  ASSERT_EQ(pair.transfer(plan, seconds(20)), "");
  EXPECT_GT(carried(pair, 1), pair.bytes_wanted() / 2);
  EXPECT_LT(carried(pair, 0) - before, pair.bytes_wanted() / 2);
}

TEST_P(Rails, WithoutAFreshHintMeasurementsDecide) {
  Config config;
  config.mpib_mode = 1;
  SimPair pair = make(26, config, 2, true, std::make_shared<FakeHints>());
  set_rail(pair, 0, at_rate(50 * mega));
  set_rail(pair, 1, at_rate(25 * mega));
  ASSERT_TRUE(pair.connect()) << pair.error();
  Flow flow(pair, 26);
  flow.rate(milliseconds(300));
  EXPECT_GT(flow.rate(milliseconds(500)), 0.9 * 75e6);
}

/// The share of a rail that is gone goes to the other one, whatever the hint says.
TEST_P(Rails, AHintedRailThatFailsIsReplaced) {
  auto hints = std::make_shared<FakeHints>();
  hints->value = 1024;
  Config config;
  config.mpib_mode = 1;
  SimPair pair = make(27, config, 2, true, hints);
  ASSERT_TRUE(pair.connect()) << pair.error();
  const auto lost = [&] { return pair.world().network().counts().cut; };
  set_rail(pair, 1, dark());
  ASSERT_EQ(transfer(pair, 27), "");
  EXPECT_GT(lost(), 0U) << "the fault did not happen";
  hints->value = 0;
  set_rail(pair, 1, {});
  pass(pair, seconds(5));
  const uint64_t before = lost();
  set_rail(pair, 0, dark());
  ASSERT_EQ(transfer(pair, 28), "");
  EXPECT_GT(lost(), before) << "nor did the other one";
}

TEST_P(Rails, ADeviceThatIsNotThereAtFirstHoldsNobodyUp) {
  SimPair pair = make(28, {}, 2, false);
  set_rail(pair, 1, dark());
  const Instant begin = pair.world().now();
  ASSERT_TRUE(pair.connect()) << pair.error();
  EXPECT_LT(pair.world().now() - begin, seconds(5));
  ASSERT_EQ(transfer(pair, 28), "");
  set_rail(pair, 1, {});
  pass(pair, seconds(5));
  const uint64_t before = carried(pair, 1);
  ASSERT_EQ(transfer(pair, 29, 100), "");
  EXPECT_GT(carried(pair, 1), before + next_to_nothing);
}

TEST_P(Rails, AHostWithOneRailTalksToOneWithTwo) {
  for (const bool sender_has_two : {true, false}) {
    SimPair pair = make(29, {}, 2, sender_has_two);
    (sender_has_two ? pair.receiver() : pair.sender()).devices = {};
    ASSERT_TRUE(pair.connect()) << pair.error();
    ASSERT_EQ(transfer(pair, 29), "");
    EXPECT_LT(carried(pair, 1), next_to_nothing);
  }
}

/// Paths die, or are only believed to, while all rails carry data and every byte is checked.
TEST(SimRails, RailsFailWhileBytesAreChecked) {
  const uint64_t runs = sim_seeds() / 4;
  rig::FailoverTotals totals;
  for (uint64_t seed = 1; seed <= runs; ++seed) {
    rig::FailoverRun run;
    run.seed = 11000000 + seed;
    run.rails = seed % 3 == 0 ? 4 : 2;
    run.shadows = 1;
    run.rdma = seed % 2 != 0;
    run.one_device = true;
    ASSERT_EQ(rig::run_failovers(run, &totals), "") << "seed " << run.seed;
  }
  EXPECT_GT(totals.down, runs);
  EXPECT_GT(totals.back, runs / 2);
  EXPECT_GT(totals.chunks_again, 0U);
  EXPECT_GT(totals.stragglers, 0U) << "no rail was slow for long";
}

}  // namespace
}  // namespace nccl_ha::test
