// Kinds of RDMA devices, and when what they write is seen in memory.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>

#include "runtime/log.h"
#include "tests/support/sim_pair.h"
#include "tools/sim/failover_run.h"

namespace nccl_ha::test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using tools::SimCables;
using tools::SimPair;

Config device_config() {
  Config config = tools::failover_config(2);
  config.heartbeat_ms = 20;
  config.failback_ms = 100;
  return config;
}

void set_faults(SimPair& pair, const sim::DeviceFaults& faults) {
  for (sim::Process* host : {&pair.sender(), &pair.receiver()}) {
    for (sim::RdmaNic* nic : host->nics) {
      nic->verbs().faults = faults;
    }
  }
}

/// Moves bytes while the first rail is cut for a while, and paths are distrusted.
void move_bytes(SimPair& pair, uint64_t seed) {
  ASSERT_TRUE(pair.connect()) << pair.error();
  tools::TransferPlan plan;
  plan.seed = seed;
  plan.groups = 20;
  Random random(seed);
  const Instant cut = pair.world().now() + microseconds(100 + random.below(500));
  const Instant healed = cut + milliseconds(700);
  pair.world().network().stop_at(cut);
  pair.world().network().stop_at(healed);
  Instant doubt = healed + milliseconds(random.below(100));
  pair.world().network().stop_at(doubt);
  plan.each_round = [&] {
    sim::Link dark;
    dark.cut = pair.world().now() >= cut && pair.world().now() < healed;
    pair.set_links(dark, dark, 0);
    if (pair.world().now() >= doubt) {
      doubt = Instant::max();
      static_cast<void>(pair.receive_channel().tell_doubt(0));
    }
  };
  plan.released = [&] { return pair.world().now() < healed ? 12 : 20; };
  EXPECT_EQ(pair.transfer(plan, seconds(60)), "");
  EXPECT_GT(pair.world().network().counts().cut, 0U) << "nothing was cut";
  EXPECT_EQ(pair.world().rdma().violation, "");
}

TEST(SimRdmaDevices, PortsOfInfiniBandHaveLidsAndNoGid) {
  const Quiet quiet;
  SimCables cables{.rails = 2, .rdma = true};
  cables.traits.infiniband = true;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SimPair pair(seed, {}, device_config(), cables);
    move_bytes(pair, seed);
    EXPECT_GT(pair.send_channel().failovers.moves.load(), 0U) << "seed " << seed;
  }
}

TEST(SimRdmaDevices, TwoPortsOfOneDeviceAreTwoRails) {
  const Quiet quiet;
  SimCables cables{.rails = 2, .rdma = true};
  cables.traits.ports = 2;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SimPair pair(seed, {}, device_config(), cables);
    ASSERT_EQ(pair.sender().nics[0], pair.sender().nics[1]);
    move_bytes(pair, seed);
    EXPECT_GT(pair.send_channel().failovers.moves.load(), 0U) << "seed " << seed;
  }
}

TEST(SimRdmaDevices, APortOfADeviceGoesDownAlone) {
  SimCables cables{.rails = 2, .rdma = true};
  cables.traits.ports = 2;
  SimPair pair(3, {}, {}, cables);
  ASSERT_TRUE(pair.connect()) << pair.error();
  const auto& moves = pair.send_channel().failovers.moves;
  // Until the other port's path stands by.
  static_cast<void>(pair.world().run_until([] { return false; }, seconds(1)));
  pair.sender().nics[0]->set_port(false, pair.sender().addresses[0]);
  ASSERT_TRUE(pair.world().run_until([&] { return moves.load() == 1; }, milliseconds(100)));
  pair.post_receives(1);
  ASSERT_TRUE(pair.post_send(1 << 20)) << pair.error();
  const auto& slot = pair.receive_channel().slot(0);
  EXPECT_TRUE(
      pair.world().run_until([&] { return slot.state.load() == RequestState::done; }, seconds(1)));
}

TEST(SimRdmaDevices, MessagesLargerThanThePortTakesGoInParts) {
  const Quiet quiet;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SimCables cables{.rails = 2, .rdma = true};
    cables.traits.message_max = 8192U << seed % 3;
    cables.traits.mtu = seed % 2 == 0 ? 1024 : 4096;
    cables.traits.inline_max = static_cast<uint32_t>(64 * (seed % 4));
    SimPair pair(seed, {}, device_config(), cables);
    move_bytes(pair, seed);
  }
}

TEST(SimRdmaDevices, DatagramsOfRdmaDevicesCarryTheEngine) {
  const Quiet quiet;
  uint64_t lost = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Config config = device_config();
    config.fabric = "ud";
    SimCables cables{.rails = 2, .rdma = true};
    cables.traits.infiniband = seed % 2 == 0;
    sim::Link bad;
    bad.drop = 0.01;
    bad.duplicate = 0.01;
    bad.reorder = 0.02;
    SimPair pair(seed, bad, config, cables);
    move_bytes(pair, seed);
    const auto& counts = pair.world().network().counts();
    EXPECT_EQ(counts.packets, 0U) << "it went over UDP";
    lost += counts.dropped;
  }
  EXPECT_GT(lost, 20U);
}

TEST(SimRdmaDevices, WhatIsWrittenIsSeenPieceByPiece) {
  const Quiet quiet;
  uint64_t pieces = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SimPair pair(seed, {}, device_config(), {.rails = 2, .rdma = true});
    sim::DeviceFaults faults;
    faults.in_pieces = 0.7;
    faults.landing = microseconds(seed % 2 == 0 ? 2 : 60);
    faults.relaxed = seed % 4 < 2;
    faults.error_lag = microseconds(50);
    set_faults(pair, faults);
    move_bytes(pair, seed);
    for (const sim::RdmaNic* nic : pair.receiver().nics) {
      pieces += nic->memory().in_pieces;
    }
  }
  EXPECT_GT(pieces, 1000U);
}

/// A descriptor that stands for GPU memory; a simulated device only wants one.
class Descriptor {
 public:
  Descriptor() : fd_(sim::Network::make_event()) {}
  ~Descriptor() { close(fd_); }
  int get() const { return fd_; }

 private:
  int fd_;
};

TEST(SimRdmaDevices, GpuMemoryIsSeenBehindAFlush) {
  int early = 0;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SimCables cables{.rails = 2, .rdma = true};
    cables.traits.gpu = true;
    SimPair pair(seed, {}, {}, cables);
    sim::DeviceFaults faults;
    faults.gpu_landing = milliseconds(1);
    set_faults(pair, faults);
    ASSERT_TRUE(pair.connect()) << pair.error();
    const Descriptor descriptor;
    std::vector<std::byte> target(5000);
    auto& receiver = pair.receive_channel();
    auto region = pair.receiver().provider->add_dmabuf(receiver.attachment(), target.data(),
                                                       target.size(), 0, descriptor.get());
    ASSERT_TRUE(region) << region.error().message();
    ReceiveRequest* receive = receiver.acquire();
    receive->count = 1;
    receive->buffers[0] = {target.data(), static_cast<uint32_t>(target.size()), region->remote_key,
                           0};
    receiver.submit(*receive);
    ASSERT_TRUE(pair.post_send(target.size())) << pair.error();  // of zeros
    std::fill(target.begin(), target.end(), std::byte{1});
    const auto done = [](const ReceiveRequest* request) {
      return [request] { return request->state.load() == RequestState::done; };
    };
    ASSERT_TRUE(pair.world().run_until(done(receive), seconds(1)));
    const auto whole = [&] {
      return std::all_of(target.begin(), target.end(),
                         [](std::byte b) { return b == std::byte{0}; });
    };
    early += whole() ? 0 : 1;
    ReceiveRequest* flush = receiver.acquire_flush();
    ASSERT_NE(flush, nullptr);
    flush->buffers[0] = {target.data(), 0, region->remote_key, 0};
    receiver.submit(*flush);
    ASSERT_TRUE(pair.world().run_until(done(flush), milliseconds(1)));
    EXPECT_TRUE(whole()) << "seed " << seed;
    static_cast<void>(pair.receiver().provider->remove_memory(*region));
  }
  EXPECT_GT(early, 20) << "nobody would have noticed a flush that was left out";
}

}  // namespace
}  // namespace nccl_ha::test
