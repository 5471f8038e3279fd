// RDMA devices that come back after a reset: another one in their place, which paths use.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <functional>
#include <string>
#include <vector>

#include "tests/rig/runs/failover_run.h"
#include "tests/support/sim_pair.h"

namespace nccl_ha::test {
namespace {

using rig::SimPair;
using std::chrono::milliseconds;
using std::chrono::seconds;

enum class ResetHosts : uint8_t { senders, receivers, both };

/// Devices of one host or of both are reset, and come back.
class DeviceReturns : public testing::TestWithParam<ResetHosts> {
 protected:
  static Config settings(int64_t shadows = 1) {
    Config config = rig::failover_config(2);
    config.heartbeat_ms = 20;
    config.shadow_paths = shadows;
    return config;
  }
  static std::vector<sim::Process*> hosts(SimPair& pair) {
    switch (GetParam()) {
      case ResetHosts::senders:
        return {&pair.sender()};
      case ResetHosts::receivers:
        return {&pair.receiver()};
      case ResetHosts::both:
        break;
    }
    return {&pair.sender(), &pair.receiver()};
  }
  static void reset(SimPair& pair, size_t device) {
    for (const sim::Process* process : hosts(pair)) {
      process->nics[device]->fail_for_good({.gone_after = milliseconds(30)});
    }
  }
  static void bring_back(SimPair& pair, size_t device) {
    for (sim::Process* process : hosts(pair)) {
      pair.world().bring_back(*process, device);
    }
  }
  /// Empty: every byte was right.  `meanwhile`: soon after the first of them have gone.
  static std::string transfer(SimPair& pair, uint64_t seed, const std::function<void()>& meanwhile,
                              bool memory_returns = false) {
    rig::TransferPlan plan;
    plan.seed = seed;
    plan.groups = 200;
    plan.memory_returns = memory_returns;
    const Instant at = pair.world().now() + std::chrono::microseconds(300);
    bool happened = false;
    pair.world().network().stop_at(at);
    plan.each_round = [&] {
      if (!happened && pair.world().now() >= at) {
        happened = true;
        meanwhile();
      }
    };
    const std::string outcome = pair.transfer(plan, seconds(60));
    EXPECT_TRUE(happened) << "the transfer was over before";
    return outcome;
  }
  static uint64_t carried(SimPair& pair, size_t device) {
    const sim::Network& network = pair.world().network();
    uint64_t bytes = 0;
    for (const sim::Ip to : pair.receiver().addresses) {
      bytes += network.carried(pair.sender().addresses[device], to);
    }
    for (const sim::Ip from : pair.sender().addresses) {
      bytes += network.carried(from, pair.receiver().addresses[device]);
    }
    return bytes;
  }
  /// Of all RDMA devices that the process has open.
  static size_t opened(const sim::Process& process) {
    return static_cast<size_t>(std::ranges::count_if(
        process.conducted, [](const auto& device) { return !device.expired(); }));
  }
};

TEST_P(DeviceReturns, ALaterDeathOfTheOtherDeviceIsSurvived) {
  const ErrorsOnly quiet;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SimPair pair(seed, {}, settings(), {.rails = 2, .rdma = true});
    ASSERT_TRUE(pair.connect()) << pair.error();
    pass(pair, milliseconds(100));
    EXPECT_EQ(transfer(pair, seed, [&] { reset(pair, 0); }), "") << "seed " << seed;
    pass(pair, seconds(3));
    bring_back(pair, 0);
    pass(pair, seconds(3));
    const uint64_t before = carried(pair, 0);
    Instant died{};
    EXPECT_EQ(transfer(pair, seed + 100,
                       [&] {
                         reset(pair, 1);
                         died = pair.world().now();
                       }),
              "")
        << "seed " << seed;
    EXPECT_LT(pair.world().now() - died, seconds(5)) << "seed " << seed;
    EXPECT_GT(carried(pair, 0), before + 1'000'000) << "seed " << seed;
    EXPECT_EQ(pair.send_channel().phase(), Phase::ready);
  }
}

// With room for two, what has come back stands by.
TEST_P(DeviceReturns, ADeviceThatIsBackStandsByWhereTwoMay) {
  const ErrorsOnly quiet;
  SimPair pair(3, {}, settings(2), {.rails = 2, .rdma = true});
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, milliseconds(100));
  EXPECT_EQ(transfer(pair, 3, [&] { reset(pair, 0); }), "");
  pass(pair, seconds(3));
  bring_back(pair, 0);
  pass(pair, seconds(3));
  Instant died{};
  EXPECT_EQ(transfer(pair, 4,
                     [&] {
                       reset(pair, 1);
                       died = pair.world().now();
                     }),
            "");
  EXPECT_LT(pair.world().now() - died, milliseconds(600));
}

// Datagrams come first where nothing else works, and make room for what has come back.
TEST_P(DeviceReturns, ADeviceThatIsBackComesBeforeDatagrams) {
  const ErrorsOnly quiet;
  SimPair pair(8, {}, settings(), {.rails = 2, .rdma = true, .spare = true});
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, milliseconds(100));
  EXPECT_EQ(transfer(pair, 3, [&] { reset(pair, 0); }), "");
  pass(pair, seconds(3));
  EXPECT_EQ(transfer(pair, 4, [&] { reset(pair, 1); }), "");
  const uint64_t slow = carried(pair, 2);
  EXPECT_EQ(transfer(pair, 5, [] {}), "");
  EXPECT_GT(carried(pair, 2), slow + 1'000'000) << "datagrams do not carry it";
  bring_back(pair, 0);
  pass(pair, seconds(60));
  const uint64_t before = carried(pair, 0);
  EXPECT_EQ(transfer(pair, 6, [] {}), "");
  EXPECT_GT(carried(pair, 0), before + 1'000'000);
  EXPECT_EQ(pair.send_channel().phase(), Phase::ready);
}

// Its descriptors tell, which no actor has read.
TEST_P(DeviceReturns, AResetBeforeTheFirstConnectionIsFoundOutByThat) {
  const ErrorsOnly quiet;
  SimPair pair(9, {}, settings(), {.rails = 2, .rdma = true});
  reset(pair, 0);
  pass(pair, seconds(1));
  ASSERT_TRUE(pair.connect()) << pair.error();
  bring_back(pair, 0);
  pass(pair, seconds(3));
  EXPECT_EQ(transfer(pair, 9, [&] { reset(pair, 1); }), "");
}

TEST_P(DeviceReturns, TheOnlyDeviceOfAHostIsAwaited) {
  const ErrorsOnly quiet;
  SimPair pair(4, {}, settings(), {.rails = 1, .rdma = true});
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, milliseconds(100));
  const Instant dies = pair.world().now() + milliseconds(1);
  bool back = false;
  rig::TransferPlan plan;
  plan.groups = 400;
  plan.each_round = [&] {
    const Instant now = pair.world().now();
    if (now >= dies && !hosts(pair).front()->nics[0]->failed() && !back) {
      reset(pair, 0);
      pair.world().network().stop_at(dies + seconds(2));
    } else if (now >= dies + seconds(2) && !back) {
      back = true;
      bring_back(pair, 0);
    }
  };
  EXPECT_EQ(pair.transfer(plan, seconds(60)), "");
  EXPECT_TRUE(back) << "it went on before";
}

TEST_P(DeviceReturns, BothInTurnTenTimesLeaveNothingBehind) {
  const ErrorsOnly quiet;
  SimPair pair(5, {}, settings(), {.rails = 2, .rdma = true});
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, milliseconds(100));
  using Held = std::array<size_t, 4>;
  const std::array<const char*, 4> what{"devices", "actors", "queue pairs", "regions"};
  std::array<Held, 2> early{};  // the most of the first rounds, of each host
  for (unsigned round = 0; round < 10; ++round) {
    const size_t device = round % 2;
    ASSERT_EQ(transfer(
                  pair, round + 1, [&] { reset(pair, device); }, true),
              "")
        << "round " << round;
    pass(pair, seconds(3));
    bring_back(pair, device);
    pass(pair, seconds(5));
    for (sim::Process* process : hosts(pair)) {
      Held held{opened(*process), actors(*process), 0, 0};
      for (const sim::RdmaNic* nic : process->nics) {
        held[2] += nic->objects().pairs;
        held[3] += nic->objects().regions;
      }
      Held& most = early[process == &pair.sender() ? 0 : 1];
      for (size_t i = 0; i < held.size(); ++i) {
        if (round < 4) {
          most[i] = std::max(most[i], held[i]);
        } else {
          EXPECT_LE(held[i], most[i]) << what[i] << " in round " << round;
        }
      }
    }
  }
  EXPECT_EQ(pair.send_channel().phase(), Phase::ready);
}

// With registrations that are good for all connections of a device (regIsGlobal).  Where it is busy
// with something NCCL is told to ask again.
TEST_P(DeviceReturns, ANewConnectionBeginsThereAndTakesMemoryThatWasRegisteredBefore) {
  const ErrorsOnly quiet;
  using Table = rig::SimPlugin::Table;
  std::vector<std::byte> source(60000, std::byte{7});
  std::vector<std::byte> target(60000);
  SimPair pair(7, {}, settings(), {.rails = 2, .rdma = true});
  ASSERT_TRUE(pair.connect()) << pair.error();
  auto* from =
      const_cast<fabric::Registration*>(pair.link().register_send(source.data(), source.size()));
  auto* to =
      const_cast<fabric::Registration*>(pair.link().register_receive(target.data(), target.size()));
  reset(pair, 0);
  pass(pair, seconds(3));
  bring_back(pair, 0);
  pass(pair, seconds(3));
  rig::SimLink later(pair.world(), pair.sender(), pair.receiver());
  ASSERT_TRUE(later.wait_ready()) << later.error();
  const bool other_keys = later.sender().attachment().incarnation != 0 ||
                          later.receiver().attachment().incarnation != 0;
  EXPECT_TRUE(other_keys);
  const uint64_t before = carried(pair, 0);
  for (const sim::Process* process : hosts(pair)) {
    process->nics[0]->verbs().force(sim::Verb::register_memory, 1, EBUSY);
  }
  size_t refused = 0;
  const auto ask = [&](const auto& call) {
    void* request = nullptr;
    EXPECT_EQ(call(&request), abi::NcclResult::success);
    if (request == nullptr) {
      ++refused;
      EXPECT_EQ(call(&request), abi::NcclResult::success);
    }
    return request;
  };
  void* data = target.data();
  size_t size = target.size();
  int tag = 0;
  void* memory = to;
  void* receive = ask([&](void** request) {
    return later.to_plugin().call(&Table::irecv, later.receive_comm(), 1, &data, &size, &tag,
                                  &memory, nullptr, request);
  });
  ASSERT_NE(receive, nullptr);
  ASSERT_TRUE(
      pair.world().run_until([&] { return later.sender().match(0) != nullptr; }, seconds(5)));
  void* send = ask([&](void** request) {
    return later.from_plugin().call(&Table::isend, later.send_comm(), source.data(), source.size(),
                                    0, static_cast<void*>(from), nullptr, request);
  });
  ASSERT_NE(send, nullptr);
  EXPECT_EQ(refused, hosts(pair).size());
  int done = 0;
  EXPECT_TRUE(pair.world().run_until(
      [&] {
        return later.to_plugin().call(&Table::test, receive, &done, nullptr) !=
                   abi::NcclResult::success ||
               done != 0;
      },
      seconds(5)));
  EXPECT_EQ(done, 1) << later.error();
  EXPECT_EQ(target, source);
  EXPECT_GT(carried(pair, 0), before + source.size()) << "it went another way";
  expect_transfers(pair);
}

TEST_P(DeviceReturns, KeysOfOneIncarnationAreRefusedByAnother) {
  const ErrorsOnly quiet;
  SimPair pair(6, {}, settings(), {.rails = 2, .rdma = true});
  ASSERT_TRUE(pair.connect()) << pair.error();
  fabric::Provider& provider = *hosts(pair).front()->provider;
  const fabric::FabricKind kind = provider.devices()[0].kind;
  const fabric::Attachment before = provider.live_at(0, kind);
  std::array<std::byte, 64> memory{};
  const auto known = provider.add_memory(before, 1, memory.data(), memory.size(), false);
  ASSERT_TRUE(known) << known.error().message();
  reset(pair, 0);
  pass(pair, seconds(3));
  bring_back(pair, 0);
  pass(pair, seconds(3));
  const fabric::Attachment now = provider.live_at(0, kind);
  EXPECT_NE(now.opened(), before.opened());
  EXPECT_NE(provider.place_number(now, nullptr), provider.place_number(before, nullptr));
  EXPECT_FALSE(provider.own_memory(before, 1, nullptr, 0)) << "what is over makes no paths";
  // Something else has the number that it had before.
  std::vector<std::byte> other(4096);
  for (size_t length = 1; length < other.size(); ++length) {
    const auto made = provider.add_memory(now, 1, other.data(), length, false);
    ASSERT_TRUE(made) << made.error().message();
    if (made->local_key >= known->local_key) {
      break;
    }
  }
  const auto keys = provider.keys_on(now, 1, before, known->local_key, true);
  ASSERT_TRUE(keys) << keys.error().message();
  EXPECT_NE(keys->handle, known->handle);
  EXPECT_NE(keys->handle, 0U);
  EXPECT_FALSE(fabric::Provider::fits(*known, now));
  const auto adapted = provider.adapt(*known, now);
  ASSERT_TRUE(adapted) << adapted.error().message();
  EXPECT_EQ(adapted->local_key, keys->local_key);
  // A connection from before has the other device only, and may be given memory of one from after.
  const auto late = provider.add_memory(now, 1, memory.data() + 8, 8, false);
  ASSERT_TRUE(late) << late.error().message();
  const auto names = provider.adapt(*late, before);
  ASSERT_TRUE(names) << names.error().message();
  EXPECT_TRUE(provider.keys_on(provider.live_at(1, kind), 1, before, names->local_key, true));
  EXPECT_TRUE(provider.remove_memory(*late));
  EXPECT_TRUE(provider.remove_memory(*known));
}

INSTANTIATE_TEST_SUITE_P(Hosts, DeviceReturns,
                         testing::Values(ResetHosts::senders, ResetHosts::receivers,
                                         ResetHosts::both),
                         [](const auto& hosts) {
                           return hosts.param == ResetHosts::senders     ? "senders"
                                  : hosts.param == ResetHosts::receivers ? "receivers"
                                                                         : "both";
                         });

}  // namespace
}  // namespace nccl_ha::test
