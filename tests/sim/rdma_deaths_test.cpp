// How devices end: a reset, firmware that has failed, and what is proven of the rest.
#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <string>
#include <utility>

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
  /// `rail`: 0 carries the traffic, 1 stands by.  `memory_first`: so long before, its memory goes.
  std::string run(SimPair& pair, size_t rail, const Death& death, uint64_t seed,
                  Duration memory_first = {}) {
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
    pair.world().network().stop_at(dies_ + memory_first);
    plan.each_round = [&] {
      if (memory_first != Duration{} && pair.world().now() >= dies_) {
        nic_->take_memory();
      }
      if (pair.world().now() >= dies_ + memory_first) {
        nic_->fail_for_good(death);
      }
    };
    std::string outcome = pair.transfer(plan, seconds(60));
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

// Whose descriptor of events tells, or a completion channel.
TEST_P(DeviceDeaths, AKernelOfBeforeTellsInItsOwnWay) {
  const ErrorsOnly quiet;
  for (const bool old_kernel : {true, false}) {
    rig::SimCables cables{.rails = 2, .rdma = true};
    cables.traits.old_kernel = old_kernel;
    SimPair pair(2, {}, mortal_config(), cables);
    // Nothing else proves anything.
    EXPECT_EQ(run(pair, 0, {.writes_for = milliseconds(30), .gone_after = milliseconds(30)}, 2), "")
        << "old: " << old_kernel;
    EXPECT_LT(took_, milliseconds(500)) << "old: " << old_kernel;
  }
}

// Keys are refused for a moment, as if they were wrong, on all paths over that device.
TEST_P(DeviceDeaths, ADeviceThatIsRemovedInOrderLosesItsMemoryFirstAndTheOtherOneGoesOn) {
  const ErrorsOnly quiet;
  unsigned met = 0;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SimPair pair(seed, {}, mortal_config(), {.rails = 2, .rdma = true});
    EXPECT_EQ(run(pair, 0, {.gone_after = milliseconds(30)}, seed, milliseconds(2)), "")
        << "seed " << seed;
    EXPECT_LT(took_, milliseconds(500)) << "seed " << seed;
    met += pair.world().rdma().counts.refused != 0 ? 1 : 0;
  }
  std::printf("%u of 10 met memory that was gone\n", met);
  EXPECT_GE(met, 6U) << "it went unnoticed";
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
    if (GetParam() == Whose::receivers) {
      EXPECT_GT(took_, milliseconds(700)) << "nothing proved anything before";
    } else {
      EXPECT_LT(took_, milliseconds(500)) << "a sender needs no proof";
    }
    late += pair.world().rdma().counts.after_death;
  }
  if (GetParam() == Whose::receivers) {
    EXPECT_GT(late, 50U) << "too little was written after the end";
  }
}

// A sender needs no proof: what the device may still write is memory of the lane's own.
TEST_P(DeviceDeaths, AnEndThatNothingProvesHurtsNoSenderAndIsElseAClearErrorInTime) {
  const ErrorsOnly quiet;
  Config config = mortal_config();
  config.retry_budget_ms = 8000;
  SimPair pair(3, {}, config, {.rails = 2, .rdma = true});
  const std::string outcome =
      run(pair, 0, {.writes_for = seconds(1), .gone_after = seconds(3600)}, 3);
  if (GetParam() == Whose::senders) {
    EXPECT_EQ(outcome, "");
    EXPECT_LT(took_, seconds(1));
    return;
  }
  EXPECT_NE(outcome.find("HA_NCCL_RETRY_BUDGET_MS"), std::string::npos) << outcome;
  EXPECT_LT(took_, milliseconds(9000));
}

// Somebody has asked it before the connection begins.
TEST_P(DeviceDeaths, ANewConnectionGoesRoundADeviceThatFailedEarlier) {
  const ErrorsOnly quiet;
  SimPair pair(6, {}, mortal_config(), {.rails = 2, .rdma = true});
  sim::Process& whose = GetParam() == Whose::senders ? pair.sender() : pair.receiver();
  whose.nics[0]->fail_for_good();
  std::array<std::byte, 64> memory{};
  const fabric::Attachment at{0, whose.provider->devices()[0].kind};
  const auto names = whose.provider->add_memory(at, 1, memory.data(), memory.size(), false);
  ASSERT_TRUE(names) << names.error().message();
  EXPECT_EQ(names->handle, 0U) << "it is not known to have failed";
  const Instant begin = pair.world().now();
  ASSERT_TRUE(pair.connect()) << pair.error();
  EXPECT_LE(pair.world().now() - begin, seconds(1));
  expect_transfers(pair);
  EXPECT_TRUE(whose.provider->remove_memory(*names));
}

// A name that no device knows would end the connection of a peer that writes by it.
TEST_P(DeviceDeaths, AWorkerGetsNoNamesOfADeviceThatFailed) {
  const ErrorsOnly quiet;
  SimPair pair(7, {}, mortal_config(), {.rails = 2, .rdma = true});
  sim::Process& whose = GetParam() == Whose::senders ? pair.sender() : pair.receiver();
  fabric::Provider& provider = *whose.provider;
  std::array<std::byte, 64> memory{};
  const fabric::Attachment dead{0, provider.devices()[0].kind};
  const fabric::Attachment own{1, provider.devices()[1].kind};
  const auto known = provider.add_memory(own, 1, memory.data(), memory.size(), false);
  ASSERT_TRUE(known) << known.error().message();
  whose.nics[0]->fail_for_good();
  const auto names = provider.add_memory(dead, 1, memory.data(), memory.size(), false);
  ASSERT_TRUE(names) << "a caller goes on over the other one: " << names.error().message();
  ASSERT_EQ(names->handle, 0U) << "it is not known to have failed";
  const auto keys = provider.keys_on(dead, 1, own, known->local_key, true);
  ASSERT_FALSE(keys) << keys->remote_key;
  EXPECT_EQ(keys.error().sys, ENODEV) << keys.error().message();
  EXPECT_TRUE(provider.remove_memory(*names));
  EXPECT_TRUE(provider.remove_memory(*known));
}

// Nor does the memory that a caller registers with the other rails of its device.
TEST_P(DeviceDeaths, ARailThatFailedHasNoKeysAndNoNames) {
  const ErrorsOnly quiet;
  SimPair pair(8, {}, mortal_config(), {.rails = 2, .rdma = true});
  sim::Process& whose = GetParam() == Whose::senders ? pair.sender() : pair.receiver();
  fabric::Provider& provider = *whose.provider;
  std::array<std::byte, 64> memory{};
  const fabric::Attachment own{1, provider.devices()[1].kind};
  fabric::RailDevices rails(1);
  rails.devices[1] = 0;
  rails.count = 2;
  for (const bool failed : {false, true}) {
    auto known = provider.add_memory(own, 1, memory.data(), memory.size(), false);
    ASSERT_TRUE(known) << known.error().message();
    if (failed) {
      whose.nics[0]->fail_for_good();
    }
    provider.register_on_rails(rails, 1, *known);
    EXPECT_EQ(known->rail_local_keys[0] == 0, failed);
    EXPECT_EQ(known->rail_remote_keys[0] == 0, failed);
    EXPECT_TRUE(provider.remove_memory(*known));
  }
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

// Of what a path carried its fence has told: for the end of the next one nobody waits.
TEST(DeviceDeath, ALaneThatCarriedSomethingBeforeItsLastFenceEndsNothing) {
  const ErrorsOnly quiet;
  Config config;
  config.retry_budget_ms = 2000;
  SimPair pair(8, {}, config, {.rails = 2, .rdma = true});
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, seconds(1));
  const auto& counters = pair.send_channel().counters();
  expect_transfers(pair);
  ASSERT_TRUE(pair.send_driver().suspect(0));
  ASSERT_TRUE(pair.world().run_until([&] { return counters.paths_back.get() == 1; }, seconds(5)));
  ASSERT_EQ(counters.traffic_moves.get(), 1U);
  expect_transfers(pair);
  pair.receiver().nics[0]->fail_for_good({.writes_for = seconds(1), .gone_after = seconds(3600)});
  pass(pair, seconds(20));
  ASSERT_EQ(counters.paths_down.get(), 2U) << "the fault did not happen";
  EXPECT_EQ(counters.paths_back.get(), 1U) << "something proved its end";
  EXPECT_EQ(pair.send_channel().phase(), Phase::ready);
  expect_transfers(pair);
}

// No verb of the device's returns, and what it had taken from the network it writes later.
TEST_P(DeviceDeaths, WhatAHungDeviceHadGoesOnOverTheOtherOneWithinASecond) {
  const ErrorsOnly quiet;
  // Of a receiver's memory HA_NCCL_IB_HUNG_MS says when that is over, of a sender's nobody.
  const auto late = GetParam() == Whose::senders ? seconds(20) : milliseconds(400);
  uint64_t writes = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SimPair pair(seed, {}, mortal_config(), {.rails = 2, .rdma = true});
    const Death death{.writes_for = late, .hangs = true, .gone_after = seconds(3600)};
    EXPECT_EQ(run(pair, 0, death, seed), "") << "seed " << seed;
    EXPECT_LT(took_, seconds(1)) << "seed " << seed;
    writes += pair.world().rdma().counts.after_death;
  }
  EXPECT_GT(writes, 10U) << "it had taken nothing";
}

// The standby that carried everything hangs; the first rail is dark for good; a third is there.
TEST_P(DeviceDeaths, AStandbyWhoseDeviceHangsGoesOnOverAThirdOne) {
  const ErrorsOnly quiet;
  SimPair pair(9, {}, mortal_config(), {.rails = 3, .rdma = true});
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, seconds(1));
  sim::Process& whose = GetParam() == Whose::senders ? pair.sender() : pair.receiver();
  pair.sender().nics[0]->set_port(false);
  pass(pair, seconds(1));
  const size_t standby =
      pair.world().network().carried(pair.sender().addresses[1], pair.receiver().addresses[1]) >
              pair.world().network().carried(pair.sender().addresses[2],
                                             pair.receiver().addresses[2])
          ? 1
          : 2;
  rig::TransferPlan plan;
  plan.seed = 9;
  plan.groups = 400;
  const Instant dies = pair.world().now() + microseconds(300);
  pair.world().network().stop_at(dies);
  plan.each_round = [&] {
    if (pair.world().now() >= dies) {
      whose.nics[standby]->fail_for_good({.hangs = true, .gone_after = seconds(3600)});
    }
  };
  EXPECT_EQ(pair.transfer(plan, seconds(60)), "");
  ASSERT_TRUE(whose.nics[standby]->failed());
  EXPECT_LT(pair.world().now() - dies, seconds(3));
}

/// The memory of the receive in the middle is not known to any device; the others are done, where
/// they may be.
void expect_end_by_wrong_key(bool failover) {
  const ErrorsOnly quiet;
  Config config = mortal_config();
  config.enable_backup = failover;
  SimPair pair(12, {}, config, {.rails = 2, .rdma = true});
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, milliseconds(500));  // the standby is there
  pair.post_receives(3);
  ASSERT_TRUE(pair.post_send(100000)) << pair.error();
  pass(pair, milliseconds(10));
  const ReceiveRequest* open = nullptr;
  for (uint16_t slot = 0; slot < receives_max; ++slot) {
    const ReceiveRequest& one = pair.receive_channel().slot(slot);
    if (one.state.load() == RequestState::pending && (open == nullptr || one.group < open->group)) {
      open = &one;
    }
  }
  ASSERT_NE(open, nullptr);
  const auto begin = reinterpret_cast<uint64_t>(open->buffers[0].data);
  pair.world().rdma().unknown = std::pair(begin, begin + open->buffers[0].size);
  const Instant wrong = pair.world().now();
  ASSERT_TRUE(pair.post_send(100000)) << pair.error();
  static_cast<void>(pair.post_send(100000));
  EXPECT_TRUE(pair.world().run_until([&] { return pair.send_channel().phase() == Phase::failed; },
                                     seconds(10)));
  const uint64_t refused = pair.world().rdma().counts.refused;
  // Without failover it may be the receiver's queue pair that says so first.
  EXPECT_NE(pair.error().find(failover ? "the peer refused a write" : "refused"), std::string::npos)
      << pair.error();
  EXPECT_LT(pair.world().now() - wrong, seconds(2));
  if (failover) {
    EXPECT_GT(refused, 1U) << "it was not tried again";
    EXPECT_LT(refused, 20U);
  } else {
    EXPECT_GE(refused, 1U);
  }
  EXPECT_TRUE(pair.world().run_until(
      [&] { return pair.receive_channel().phase() == Phase::failed; }, seconds(5)));
}

TEST(DeviceDeath, AWrongKeyIsNoRemovalAndEndsTheConnectionSoon) { expect_end_by_wrong_key(true); }

TEST(DeviceDeath, WithoutFailoverAWrongKeyEndsTheConnectionAtOnce) {
  expect_end_by_wrong_key(false);
}

// What its NIC had not sent yet the sender's may send at any time.
TEST(DeviceDeath, AHungDeviceHasNoTimeAfterWhichItIsBelievedWhereThePeersHangsToo) {
  const ErrorsOnly quiet;
  SimPair pair(3, {}, mortal_config(), {.rails = 2, .rdma = true});
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, milliseconds(10));
  const Duration gone = seconds(4);
  const Death death{.hangs = true, .gone_after = gone};
  const Instant dies = pair.world().now() + microseconds(310);  // when data is under way
  pair.world().network().stop_at(dies);
  rig::TransferPlan plan;
  plan.seed = 3;
  plan.groups = 400;
  plan.each_round = [&] {
    if (pair.world().now() >= dies) {
      pair.sender().nics[0]->fail_for_good(death);
      pair.receiver().nics[0]->fail_for_good(death);
    }
  };
  EXPECT_EQ(pair.transfer(plan, seconds(60)), "");
  ASSERT_TRUE(pair.receiver().nics[0]->failed());
  EXPECT_GT(pair.world().now() - dies, gone) << "before the kernel had taken them away";
}

// What it had acknowledged never reached memory.  A message that is done cannot be sent again.
TEST(DeviceDeath, WhatWasAcknowledgedAndIsLostGoesAgainWhileItsMessageIsOpen) {
  const ErrorsOnly quiet;
  Config config = mortal_config();
  config.ib_qps = 4;  // each carries a chunk
  int forgot = 0;
  int went_on = 0;
  for (uint64_t seed = 1; seed <= 120; ++seed) {
    SimPair pair(seed, {}, config, {.rails = 2, .rdma = true});
    ASSERT_TRUE(pair.connect()) << pair.error();
    pass(pair, milliseconds(10));
    pair.world().rdma().late = 1;
    pair.world().rdma().latest = milliseconds(1);
    rig::TransferPlan plan;
    plan.seed = seed;
    plan.groups = 1;
    plan.grouped = 0;
    plan.large = 1;
    Random random(seed);
    const Instant dies = pair.world().now() + microseconds(5 + random.below(60));
    pair.world().network().stop_at(dies);
    plan.each_round = [&] {
      if (pair.world().now() >= dies) {
        pair.receiver().nics[0]->fail_for_good({.forgets = true});
      }
    };
    const std::string outcome = pair.transfer(plan, seconds(60));
    ASSERT_TRUE(pair.receiver().nics[0]->failed()) << "seed " << seed;
    const bool lost = pair.world().rdma().counts.forgotten != 0;
    const bool done = pair.send_channel().counters().sends_done.get() != 0;
    EXPECT_TRUE(outcome.empty() || done) << "seed " << seed << ": " << outcome;
    forgot += lost ? 1 : 0;
    went_on += lost && outcome.empty() ? 1 : 0;
  }
  EXPECT_GT(forgot, 10) << "there was nothing to forget";
  EXPECT_GT(went_on, 5);
}

INSTANTIATE_TEST_SUITE_P(Hosts, DeviceDeaths, testing::Values(Whose::senders, Whose::receivers),
                         [](const auto& whose) {
                           return whose.param == Whose::senders ? "senders" : "receivers";
                         });

}  // namespace
}  // namespace nccl_ha::test
