// Failover on virtual time: paths that die, or are only believed to, while everything else goes
// wrong too; and every byte is checked, also after its receive was done.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/support/sim_pair.h"

namespace nccl_ha::test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

struct Totals {
  uint64_t down = 0;
  uint64_t back = 0;
  uint64_t again = 0;
  uint64_t kept = 0;
  uint64_t cut = 0;

  void add(SimPair& pair) {
    for (Channel* channel : {static_cast<Channel*>(&pair.send_channel()),
                             static_cast<Channel*>(&pair.receive_channel())}) {
      down += channel->failovers.down.load();
      back += channel->failovers.back.load();
      again += channel->failovers.chunks_again.load();
      kept += channel->failovers.chunks_kept.load();
    }
    cut += pair.world().network().counts().cut;
  }
};

/// Does something to a pair now and then, as its seed says.
class Chaos {
 public:
  Chaos(SimPair& pair, uint64_t seed, size_t paths, const sim::Link& usual)
      : pair_(pair), random_(seed), paths_(paths), usual_(usual) {
    next_ = pair_.world().now() + microseconds(random_.below(500));
  }
  double doubts = 0;  ///< of what happens, the part that is a false verdict
  int left = 10;      ///< that many things happen

  void step() {
    const Instant now = pair_.world().now();
    if (healed_at_ && now >= *healed_at_) {
      set_links(usual_, usual_);
      healed_at_.reset();
    }
    if (now < next_ || left == 0) {
      return;
    }
    --left;
    next_ = now + microseconds(random_.below(random_.chance(0.5) ? 500 : 20000));
    if (random_.chance(doubts)) {
      Channel& side = random_.chance(0.5) ? static_cast<Channel&>(pair_.send_channel())
                                          : static_cast<Channel&>(pair_.receive_channel());
      static_cast<void>(side.tell_doubt(static_cast<uint32_t>(random_.below(paths_))));
      return;
    }
    sim::Link dark = usual_;
    dark.cut = true;
    const uint64_t which = random_.below(3);
    set_links(which == 1 ? usual_ : dark, which == 2 ? usual_ : dark);
    healed_at_ = now + milliseconds(random_.below(3000));
  }

 private:
  void set_links(const sim::Link& there, const sim::Link& back) {
    auto& network = pair_.world().network();
    network.set_link(pair_.sender().address, pair_.receiver().address, there);
    network.set_link(pair_.receiver().address, pair_.sender().address, back);
  }
  SimPair& pair_;
  Random random_;
  size_t paths_;
  sim::Link usual_;
  Instant next_{};
  std::optional<Instant> healed_at_;
};

Config quick_config(int64_t paths) {
  Config config;
  config.dgram_dead_ms = 200;
  config.dgram_paths = paths;
  config.ib_split_threshold = 4096;
  return config;
}

/// One run; empty when all was right.
std::string run(uint64_t seed, double doubts, Totals* totals) {
  Random random(seed);
  const auto paths = static_cast<int64_t>(1 + random.below(4));
  sim::Link usual;
  usual.drop = random.chance(0.5) ? 0.02 : 0;
  usual.duplicate = random.chance(0.5) ? 0.02 : 0;
  usual.reorder = random.chance(0.5) ? 0.05 : 0;
  SimPair pair(seed, usual, quick_config(paths));
  if (!pair.connect()) {
    return "connect: " + pair.error();
  }
  Chaos chaos(pair, seed, static_cast<size_t>(paths), usual);
  chaos.doubts = doubts;
  TransferPlan plan;
  plan.groups = 40;
  plan.seed = seed;
  plan.each_round = [&] { chaos.step(); };
  const std::string outcome = pair.transfer(plan, seconds(120));
  totals->add(pair);
  return outcome;
}

uint64_t seeds(uint64_t usual) {
  const char* wanted = std::getenv("NHA_SIM_SEEDS");
  return wanted == nullptr ? usual : std::strtoull(wanted, nullptr, 10);
}

TEST(SimFailover, PathsBelievedDeadWhileTheyLive) {
  Totals totals;
  for (uint64_t seed = 1; seed <= seeds(150); ++seed) {
    ASSERT_EQ(run(seed, 1.0, &totals), "") << "seed " << seed;
  }
  EXPECT_GT(totals.down, 100U);
  EXPECT_GT(totals.back, 100U);
  EXPECT_GT(totals.again, 0U) << "nothing was ever lost";
  EXPECT_GT(totals.kept, 0U) << "no acknowledgement was ever lost";
}

TEST(SimFailover, CutsInEitherDirectionAndFalseVerdicts) {
  Totals totals;
  for (uint64_t seed = 1; seed <= seeds(150); ++seed) {
    ASSERT_EQ(run(1000 + seed, 0.5, &totals), "") << "seed " << 1000 + seed;
  }
  EXPECT_GT(totals.down, 100U);
  EXPECT_GT(totals.back, 100U);
  EXPECT_GT(totals.cut, 100U);
}

TEST(SimFailover, APeerThatDiesEndsEverythingWithinTheBudget) {
  Config config = quick_config(2);
  config.retry_budget_ms = 5000;
  SimPair pair(9, {}, config);
  ASSERT_TRUE(pair.connect()) << pair.error();
  pair.post_receives(4);
  ASSERT_TRUE(pair.post_send(1 << 20)) << pair.error();
  pair.world().kill(pair.receiver());
  const Instant killed = pair.world().now();
  ASSERT_TRUE(pair.world().run_until([&] { return pair.send_channel().phase() == Phase::failed; },
                                     seconds(6)));
  EXPECT_GE(pair.world().now() - killed, seconds(5)) << "it gave up before its time";
  EXPECT_GT(pair.world().network().counts().cut, 0U) << "the fault did not happen";
  EXPECT_NE(pair.send_channel().failure().what.find("HA_NCCL_RETRY_BUDGET_MS"), std::string::npos)
      << pair.send_channel().failure().what;
}

TEST(SimFailover, APartitionLongerThanTheBudgetFailsBothSidesForGood) {
  Config config = quick_config(1);
  config.retry_budget_ms = 2000;
  SimPair pair(10, {}, config);
  ASSERT_TRUE(pair.connect()) << pair.error();
  pair.post_receives(4);
  ASSERT_TRUE(pair.post_send(1 << 20)) << pair.error();
  sim::Link cut;
  cut.cut = true;
  pair.world().network().set_link(pair.sender().address, pair.receiver().address, cut);
  pair.world().network().set_link(pair.receiver().address, pair.sender().address, cut);
  ASSERT_TRUE(pair.world().run_until([&] { return pair.send_channel().phase() == Phase::failed; },
                                     seconds(4)));
  pair.world().network().set_link(pair.sender().address, pair.receiver().address, {});
  pair.world().network().set_link(pair.receiver().address, pair.sender().address, {});
  EXPECT_TRUE(pair.world().run_until(
      [&] { return pair.receive_channel().phase() == Phase::failed; }, seconds(60)))
      << "one side goes on with a connection that the other has given up";
  EXPECT_EQ(pair.send_channel().phase(), Phase::failed);
}

}  // namespace
}  // namespace nccl_ha::test
