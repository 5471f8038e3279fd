// How devices end: a reset, firmware that has failed, and what is proven of the rest.
#include <gtest/gtest.h>

#include <string>

#include "tests/rig/runs/failover_run.h"
#include "tests/support/sim_pair.h"

namespace nccl_ha::test {
namespace {

using rig::SimPair;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Death = sim::RdmaNic::Death;

Config mortal_config() {
  Config config = rig::failover_config(2);
  config.heartbeat_ms = 20;
  return config;
}

enum class Whose : uint8_t { senders, receivers };

/// Moves bytes while a device fails in the midst of them.
class DeviceDeaths : public testing::TestWithParam<Whose> {
 protected:
  /// `rail`: 0 carries the traffic, 1 stands by.
  std::string run(SimPair& pair, size_t rail, const Death& death, uint64_t seed,
                  Duration limit = seconds(60)) {
    if (!pair.connect()) {
      return pair.error();
    }
    pass(pair, milliseconds(10));  // the standby is there
    sim::Process& whose = GetParam() == Whose::senders ? pair.sender() : pair.receiver();
    nic_ = whose.nics[rail];
    rig::TransferPlan plan;
    plan.seed = seed;
    plan.groups = 400;
    Random random(seed);
    dies_ = pair.world().now() + microseconds(100 + random.below(500));
    pair.world().network().stop_at(dies_);
    plan.each_round = [&] {
      if (pair.world().now() >= dies_) {
        nic_->fail_for_good(death);
      }
    };
    std::string outcome = pair.transfer(plan, limit);
    EXPECT_TRUE(nic_->failed()) << "the transfer was over before";
    took_ = pair.world().now() - dies_;
    return outcome;
  }
  sim::RdmaNic* nic_ = nullptr;
  Instant dies_{};
  Duration took_{};
};

TEST_P(DeviceDeaths, AfterAResetTheOtherDeviceGoesOn) {
  const ErrorsOnly quiet;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SimPair pair(seed, {}, mortal_config(), {.rails = 2, .rdma = true});
    EXPECT_EQ(run(pair, 0, {.gone_after = milliseconds(30)}, seed), "") << "seed " << seed;
    EXPECT_LT(took_, milliseconds(500)) << "seed " << seed;
  }
}

// What a device took from the network lands after its driver has said that all is ended.
TEST_P(DeviceDeaths, NothingThatFailedFirmwareWritesHitsNewData) {
  const ErrorsOnly quiet;
  uint64_t late = 0;
  for (uint64_t seed = 1; seed <= 15; ++seed) {
    SimPair pair(seed, {}, mortal_config(), {.rails = 2, .rdma = true});
    EXPECT_EQ(
        run(pair, 0, {.writes_for = milliseconds(600), .gone_after = milliseconds(700)}, seed), "")
        << "seed " << seed;
    EXPECT_GT(took_, milliseconds(700)) << "nothing proved anything before";
    late += pair.world().rdma().counts.after_death;
  }
  if (GetParam() == Whose::receivers) {
    EXPECT_GT(late, 50U) << "too little was written after the end";
  }
}

TEST_P(DeviceDeaths, AnEndThatNothingProvesIsAClearErrorInTime) {
  const ErrorsOnly quiet;
  Config config = mortal_config();
  config.retry_budget_ms = 8000;
  SimPair pair(3, {}, config, {.rails = 2, .rdma = true});
  const std::string outcome =
      run(pair, 0, {.writes_for = seconds(1), .gone_after = seconds(3600)}, 3);
  EXPECT_NE(outcome.find("HA_NCCL_RETRY_BUDGET_MS"), std::string::npos) << outcome;
  EXPECT_LT(took_, milliseconds(9000));
}

// A standby's device is no reason to end what does without it.
TEST_P(DeviceDeaths, AnEndOfAStandbyThatNothingProvesEndsNothing) {
  const ErrorsOnly quiet;
  Config config = mortal_config();
  config.retry_budget_ms = 2000;
  SimPair pair(4, {}, config, {.rails = 2, .rdma = true});
  EXPECT_EQ(run(pair, 1, {.writes_for = seconds(1), .gone_after = seconds(3600)}, 4), "");
  pass(pair, seconds(20));
  rig::TransferPlan plan;
  plan.seed = 5;
  EXPECT_EQ(pair.transfer(plan, seconds(60)), "");
}

// What it had acknowledged never reached memory.  A message that is done cannot be sent again.
TEST(DeviceDeath, WhatWasAcknowledgedAndIsLostGoesAgainWhileItsMessageIsOpen) {
  const ErrorsOnly quiet;
  int survived = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Config config = mortal_config();
    config.ib_split_threshold = 4096;  // many chunks
    SimPair pair(seed, {}, config, {.rails = 2, .rdma = true});
    pair.world().rdma().late = 0.5;
    pair.world().rdma().latest = milliseconds(1);
    ASSERT_TRUE(pair.connect()) << pair.error();
    pass(pair, milliseconds(10));
    rig::TransferPlan plan;
    plan.seed = seed;
    plan.groups = 2;
    plan.grouped = 0;
    plan.large = 1;
    const Instant dies = pair.world().now() + microseconds(40);
    pair.world().network().stop_at(dies);
    plan.each_round = [&] {
      if (pair.world().now() >= dies) {
        pair.receiver().nics[0]->fail_for_good({.forgets = true});
      }
    };
    survived += pair.transfer(plan, seconds(60)).empty() ? 1 : 0;
    EXPECT_TRUE(pair.receiver().nics[0]->failed()) << "seed " << seed;
  }
  EXPECT_GT(survived, 15) << "it was given up for chunks that could go again";
}

INSTANTIATE_TEST_SUITE_P(Hosts, DeviceDeaths, testing::Values(Whose::senders, Whose::receivers),
                         [](const auto& whose) {
                           return whose.param == Whose::senders ? "senders" : "receivers";
                         });

}  // namespace
}  // namespace nccl_ha::test
