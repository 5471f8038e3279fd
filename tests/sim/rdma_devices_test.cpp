// Kinds of RDMA devices, and when what they write is seen in memory.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <functional>

#include "runtime/base/log.h"
#include "tests/rig/runs/failover_run.h"
#include "tests/rig/sim/rdma_objects.h"
#include "tests/support/sim_pair.h"

namespace nccl_ha::test {
namespace {

using rig::SimCables;
using rig::SimPair;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

Config device_config() {
  Config config = rig::failover_config(2);
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
  rig::TransferPlan plan;
  plan.seed = seed;
  plan.groups = 20;
  Random random(seed);
  const Instant cut = pair.world().now() + microseconds(100 + random.below(500));
  const Instant healed = cut + milliseconds(700);
  pair.world().network().stop_at(cut);
  pair.world().network().stop_at(healed);
  Instant suspect = healed + milliseconds(random.below(100));
  pair.world().network().stop_at(suspect);
  plan.each_round = [&] {
    sim::Link dark;
    dark.cut = pair.world().now() >= cut && pair.world().now() < healed;
    pair.set_links(dark, dark, 0);
    if (pair.world().now() >= suspect) {
      suspect = Instant::max();
      static_cast<void>(pair.receive_driver().suspect(0));
    }
  };
  plan.released = [&] { return pair.world().now() < healed ? 12 : 20; };
  EXPECT_EQ(pair.transfer(plan, seconds(60)), "");
  EXPECT_GT(pair.world().network().counts().cut, 0U) << "nothing was cut";
  EXPECT_EQ(pair.world().violation(), "");
}

/// Of that NIC, those of connections that can send.
std::vector<const sim::RdmaQueuePair*> connected(const sim::RdmaNic& nic) {
  std::vector<const sim::RdmaQueuePair*> all = nic.queue_pairs();
  std::erase_if(all, [](const sim::RdmaQueuePair* pair) {
    return pair->qp_type != IBV_QPT_RC || pair->state != IBV_QPS_RTS;
  });
  return all;
}

TEST(SimRdmaDevices, SettingsReachTheQueuePairs) {
  Config config = device_config();
  config.ib_traffic_class = 104;
  config.ib_service_level = 3;
  config.ib_pkey = 1;
  config.ib_timeout = 15;
  config.ib_retry_count = 5;
  SimPair pair(3, {}, config, {.rails = 2, .rdma = true});
  ASSERT_TRUE(pair.connect()) << pair.error();
  for (const sim::Process* host : {&pair.sender(), &pair.receiver()}) {
    const auto pairs = connected(*host->nics[0]);
    ASSERT_GE(pairs.size(), 1U);
    for (const sim::RdmaQueuePair* one : pairs) {
      EXPECT_EQ(one->asked.ah_attr.grh.traffic_class, 104);
      EXPECT_EQ(one->asked.ah_attr.sl, 3);
      EXPECT_EQ(one->asked.pkey_index, 1);
      EXPECT_EQ(one->asked.timeout, 15);
      EXPECT_EQ(one->asked.retry_cnt, 5);
      EXPECT_EQ(one->asked.rnr_retry, 7) << "for ever: a peer that is slow to post is not dead";
      EXPECT_EQ(one->asked.min_rnr_timer, 12) << "0.64 ms; 0 is the longest, 655 ms";
    }
  }
}

TEST(SimRdmaDevices, MemoryIsRegisteredForRelaxedOrderingUnlessThatIsOff) {
  for (const int64_t setting : {0, 1, 2}) {
    Config config = device_config();
    config.ib_relaxed_ordering = setting;
    SimPair pair(3, {}, config, {.rails = 2, .rdma = true});
    ASSERT_TRUE(pair.connect()) << pair.error();
    for (const sim::Process* host : {&pair.sender(), &pair.receiver()}) {
      const sim::RdmaNic::Objects made = host->nics[0]->objects();
      ASSERT_GE(made.regions, 1U);
      EXPECT_EQ(made.relaxed, setting == 0 ? 0 : made.regions) << setting;
    }
  }
}

TEST(SimRdmaDevices, TheQueuePairOfFlushesIsInThePartitionToo) {
  Config config = device_config();
  config.ib_pkey = 1;
  config.ib_flush = 1;
  SimPair pair(3, {}, config, {.rails = 2, .rdma = true});
  ASSERT_TRUE(pair.connect()) << pair.error();
  auto pairs = connected(*pair.receiver().nics[0]);
  EXPECT_GE(pairs.size(), 2U);
  for (const sim::RdmaQueuePair* one : pairs) {
    EXPECT_EQ(one->asked.pkey_index, 1) << (one->to_pair == one->qp_num ? "of flushes" : "of data");
  }
  EXPECT_NE(std::erase_if(pairs, [](const auto* one) { return one->to_pair == one->qp_num; }), 0U)
      << "nothing flushes";
}

TEST(SimRdmaDevices, SoutAndSupHaveTheirNumbersOfQueuePairs) {
  for (const auto& [sout, sup] : {std::pair<size_t, size_t>{2, 4}, {1, 3}}) {
    SCOPED_TRACE(sout);
    Config config;
    config.mpib_mode = 1;
    config.mpib_sout_qp = static_cast<int64_t>(sout);
    config.mpib_sup_qp = static_cast<int64_t>(sup);
    SimPair pair(4, {}, config,
                 {.rails = 2, .rdma = true, .one_device = true, .sout_and_sup = true});
    ASSERT_TRUE(pair.connect()) << pair.error();
    const auto there = [&] {
      return connected(*pair.sender().nics[0]).size() == sout &&
             connected(*pair.sender().nics[1]).size() == sup;
    };
    EXPECT_TRUE(pair.world().run_until(there, seconds(5)))
        << connected(*pair.sender().nics[0]).size() << " and "
        << connected(*pair.sender().nics[1]).size();
  }
}

TEST(SimRdmaDevices, PortsOfInfiniBandHaveLidsAndNoGid) {
  const ErrorsOnly errors_only;
  SimCables cables{.rails = 2, .rdma = true};
  cables.traits.infiniband = true;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SimPair pair(seed, {}, device_config(), cables);
    move_bytes(pair, seed);
    EXPECT_GT(pair.send_channel().counters().traffic_moves.get(), 0U) << "seed " << seed;
  }
}

TEST(SimRdmaDevices, TwoPortsOfOneDeviceAreTwoRails) {
  const ErrorsOnly errors_only;
  SimCables cables{.rails = 2, .rdma = true};
  cables.traits.ports = 2;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SimPair pair(seed, {}, device_config(), cables);
    ASSERT_EQ(pair.sender().nics[0], pair.sender().nics[1]);
    move_bytes(pair, seed);
    EXPECT_GT(pair.send_channel().counters().traffic_moves.get(), 0U) << "seed " << seed;
  }
}

TEST(SimRdmaDevices, APortOfADeviceGoesDownAlone) {
  SimCables cables{.rails = 2, .rdma = true};
  cables.traits.ports = 2;
  SimPair pair(3, {}, {}, cables);
  ASSERT_TRUE(pair.connect()) << pair.error();
  const auto& moves = pair.send_channel().counters().traffic_moves;
  // Until the other port's path stands by.
  static_cast<void>(pair.world().run_until([] { return false; }, seconds(1)));
  pair.sender().nics[0]->set_port(false, pair.sender().addresses[0]);
  ASSERT_TRUE(pair.world().run_until([&] { return moves.get() == 1; }, milliseconds(100)));
  pair.post_receives(1);
  ASSERT_TRUE(pair.post_send(1 << 20)) << pair.error();
  const auto& slot = pair.receive_channel().slot(0);
  EXPECT_TRUE(
      pair.world().run_until([&] { return slot.state.load() == RequestState::done; }, seconds(1)));
}

TEST(SimRdmaDevices, MessagesLargerThanThePortTakesGoInParts) {
  const ErrorsOnly errors_only;
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
  const ErrorsOnly errors_only;
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

/// Two connections share the queue pairs, and each is made anew at its own time.
TEST(SimRdmaDevices, QueuePairsOfDatagramsThatBreakAreMadeAnew) {
  for (const bool sender : {false, true}) {
    SCOPED_TRACE(sender);
    Config config = device_config();
    config.fabric = "ud";
    config.dgram_paths = 1;
    config.progress_threads = 1;
    SimPair pair(7, {}, config, {.rails = 1, .rdma = true});
    ASSERT_TRUE(pair.connect()) << pair.error();
    rig::SimLink other(pair.world(), pair.sender(), pair.receiver());
    ASSERT_TRUE(other.wait_ready()) << other.error();
    (sender ? pair.sender() : pair.receiver()).nics[0]->break_datagrams();
    auto& first = pair.send_channel().counters();
    auto& second = other.sender().counters();
    EXPECT_TRUE(pair.world().run_until(
        [&] { return first.paths_back.get() == 1 && second.paths_back.get() == 1; }, seconds(10)));
    EXPECT_EQ(first.paths_down.get(), 1U);
    EXPECT_EQ(second.paths_down.get(), 1U);
    rig::TransferPlan plan;
    plan.groups = 10;
    EXPECT_EQ(pair.transfer(plan, seconds(10)), "");
  }
}

/// Two connections share the queue pairs of datagrams.  One is idle, and so keeps them while the
/// other one finds out that nothing gets through any more, and is made anew.
void expect_datagrams_back(const std::function<void(sim::RdmaNic&)>& change) {
  Config config = device_config();
  config.fabric = "ud";
  config.dgram_paths = 1;
  config.progress_threads = 1;
  config.heartbeat_ms = 0;
  SimPair pair(7, {}, config, {.rails = 1, .rdma = true});
  ASSERT_TRUE(pair.connect()) << pair.error();
  rig::SimLink other(pair.world(), pair.sender(), pair.receiver());
  ASSERT_TRUE(other.wait_ready()) << other.error();
  pass(pair, seconds(2));
  const uint64_t lost = pair.world().rdma().counts.lost;
  change(*pair.sender().nics[0]);
  rig::TransferPlan plan;
  plan.groups = 10;
  EXPECT_EQ(pair.transfer(plan, seconds(20)), "");
  EXPECT_GT(pair.world().rdma().counts.lost, lost) << "the fault did not happen";
  EXPECT_GE(pair.send_channel().counters().paths_down.get(), 1U);
  EXPECT_GE(pair.send_channel().counters().paths_back.get(), 1U);
  EXPECT_EQ(other.sender().counters().paths_down.get(), 0U) << "nobody kept the queue pairs";
  EXPECT_EQ(pair.world().violation(), "");
}

TEST(SimRdmaDevices, PathsOfDatagramsAreMadeByTheAddressesOfTheMoment) {
  expect_datagrams_back([](sim::RdmaNic& nic) { nic.move_gid(); });
}

TEST(SimRdmaDevices, APathOfDatagramsThatIsMadeAnewFindsThePeersNewMac) {
  expect_datagrams_back([](sim::RdmaNic& nic) { nic.move_neighbours(); });
}

TEST(SimRdmaDevices, WhatIsWrittenIsSeenPieceByPiece) {
  const ErrorsOnly errors_only;
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

/// A receiver with memory of a GPU, in which what a NIC wrote is seen later than it arrived.
class GpuPair {
 public:
  static constexpr size_t bytes = 5000;
  explicit GpuPair(uint64_t seed) : pair(seed, {}, {}, cables()) {
    if (!pair.connect()) {
      return;
    }
    auto added = pair.receiver().provider->add_dmabuf(pair.receive_channel().attachment(),
                                                      pair.receive_channel().domain(),
                                                      target_.data(), bytes, 0, descriptor_.get());
    region_ = added ? *added : fabric::Registration{};
    connected = added.ok();
  }
  ~GpuPair() { static_cast<void>(pair.receiver().provider->remove_memory(region_)); }
  GpuPair(const GpuPair&) = delete;
  GpuPair& operator=(const GpuPair&) = delete;

  void set_landing(size_t nic, Duration landing) {
    pair.receiver().nics[nic]->verbs().faults.gpu_landing = landing;
  }
  /// Each control verb of that NIC that is asked for from now on waits so long for the one before.
  void hold_up(size_t nic, Duration time) {
    pair.receiver().conducted[nic].lock()->conductor().add(
        fabric::verbs::Conductor::Rank::stop, [this, time] { pair.world().rdma().waited += time; });
  }
  /// Sends zeros to where ones were; null: that failed.
  ReceiveRequest* begin_receive() {
    ReceiveRequest* receive = pair.receive_channel().acquire();
    receive->count = 1;
    receive->buffers[0] = {target_.data(), bytes, region_.remote_key, 0};
    std::fill(target_.begin(), target_.end(), std::byte{1});
    pair.receive_channel().submit(*receive);
    pair.receive_driver().submit();
    return pair.post_send(bytes) ? receive : nullptr;
  }
  bool receive() {
    const ReceiveRequest* receive = begin_receive();
    return receive != nullptr && wait(*receive, seconds(1));
  }
  ReceiveRequest& submit_flush() {
    ReceiveRequest* flush = pair.receive_channel().acquire_flush();
    flush->buffers[0] = {target_.data(), 0, region_.remote_key, 0};
    pair.receive_channel().submit(*flush);
    pair.receive_driver().submit();
    return *flush;
  }
  bool wait(const ReceiveRequest& request, Duration limit) {
    return pair.world().run_until([&] { return request.state.load() == RequestState::done; },
                                  limit);
  }
  bool whole() const {
    return std::all_of(target_.begin(), target_.end(),
                       [](std::byte b) { return b == std::byte{}; });
  }

 private:
  static SimCables cables() {
    SimCables made{.rails = 2, .rdma = true};
    made.traits.gpu = true;
    return made;
  }
  const Descriptor descriptor_;
  std::vector<std::byte> target_ = std::vector<std::byte>(bytes);
  fabric::Registration region_;

 public:
  SimPair pair;
  bool connected = false;
};

TEST(SimRdmaDevices, GpuMemoryIsSeenBehindAFlush) {
  int early = 0;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    GpuPair gpu(seed);
    ASSERT_TRUE(gpu.connected) << gpu.pair.error();
    gpu.set_landing(0, milliseconds(1));
    ASSERT_TRUE(gpu.receive()) << gpu.pair.error();
    early += gpu.whole() ? 0 : 1;
    ASSERT_TRUE(gpu.wait(gpu.submit_flush(), milliseconds(1)));
    EXPECT_TRUE(gpu.whole()) << "seed " << seed;
  }
  EXPECT_GT(early, 20) << "nobody would have noticed a flush that was left out";
}

/// The other NIC carries the data, while the connection's own one is there again.
TEST(SimRdmaDevices, AFlushAsksEachNicThatBringsData) {
  const ErrorsOnly errors_only;
  int early = 0;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    GpuPair gpu(seed);
    ASSERT_TRUE(gpu.connected) << gpu.pair.error();
    pass(gpu.pair, seconds(1));
    const auto& failovers = gpu.pair.send_channel().counters();
    ASSERT_TRUE(gpu.pair.send_driver().suspect(0));
    ASSERT_TRUE(
        gpu.pair.world().run_until([&] { return failovers.paths_back.get() == 1; }, seconds(5)));
    ASSERT_EQ(failovers.traffic_moves.get(), 1U);
    pass(gpu.pair, milliseconds(20));  // until flushes need not wait for what failed
    gpu.set_landing(1, milliseconds(1));
    ASSERT_TRUE(gpu.receive()) << gpu.pair.error();
    early += gpu.whole() ? 0 : 1;
    ASSERT_TRUE(gpu.wait(gpu.submit_flush(), milliseconds(1)));
    EXPECT_TRUE(gpu.whole()) << "seed " << seed;
  }
  EXPECT_GT(early, 5) << "nobody would have noticed a NIC that was left out";
}

/// The NIC that brought the data has failed and cannot be asked; what it had under way takes time.
TEST(SimRdmaDevices, AFlushWaitsForWhatANicThatFailedHadUnderWay) {
  const ErrorsOnly errors_only;
  int early = 0;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    GpuPair gpu(seed);
    ASSERT_TRUE(gpu.connected) << gpu.pair.error();
    pass(gpu.pair, seconds(1));
    gpu.set_landing(0, milliseconds(1));
    ASSERT_TRUE(gpu.receive()) << gpu.pair.error();
    const auto& failovers = gpu.pair.receive_channel().counters();
    ASSERT_TRUE(gpu.pair.receive_driver().suspect(0));
    ASSERT_TRUE(gpu.pair.world().run_until([&] { return failovers.paths_down.get() == 1; },
                                           milliseconds(1)));
    early += gpu.whole() ? 0 : 1;
    ASSERT_TRUE(gpu.wait(gpu.submit_flush(), seconds(1)));
    EXPECT_TRUE(gpu.whole()) << "seed " << seed;
  }
  EXPECT_GT(early, 5) << "nobody would have noticed a flush that did not wait";
}

/// Its queue pair takes what was under way to it until the device gets to stopping it, long after
/// nothing more is expected of its lane.
TEST(SimRdmaDevices, AFlushWaitsForWhatCameOverALaneThatWasTakenDownBefore) {
  const ErrorsOnly errors_only;
  int early = 0;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    GpuPair gpu(seed);
    ASSERT_TRUE(gpu.connected) << gpu.pair.error();
    pass(gpu.pair, seconds(1));
    gpu.set_landing(0, milliseconds(1));
    sim::Link slow;
    slow.delay = milliseconds(15);
    gpu.pair.set_links(slow, slow, 0);
    const ReceiveRequest* receive = gpu.begin_receive();
    ASSERT_NE(receive, nullptr) << gpu.pair.error();
    gpu.hold_up(0, milliseconds(40));
    ASSERT_TRUE(gpu.pair.receive_driver().suspect(0));
    const auto& failovers = gpu.pair.receive_channel().counters();
    ASSERT_TRUE(gpu.pair.world().run_until([&] { return failovers.paths_down.get() == 1; },
                                           milliseconds(1)));
    const Instant down = gpu.pair.world().now();
    ASSERT_EQ(receive->state.load(), RequestState::pending);
    ASSERT_TRUE(gpu.wait(*receive, milliseconds(25))) << "it did not come over that lane";
    ASSERT_GT(gpu.pair.world().now() - down, milliseconds(10)) << "a flush would wait as it is";
    early += gpu.whole() ? 0 : 1;
    ASSERT_TRUE(gpu.wait(gpu.submit_flush(), seconds(1)));
    EXPECT_TRUE(gpu.whole()) << "seed " << seed;
  }
  EXPECT_GT(early, 5) << "nobody would have noticed a flush that did not wait";
}

/// A message of 4 MiB of a connection whose chunks take more writes than a queue has room for.
class LargeMessage {
 public:
  explicit LargeMessage(SimPair& pair) : pair_(pair) {
    const auto target = reinterpret_cast<uint64_t>(target_.data());
    pair.world().rdma().counted[target] = target + target_.size();
    receive_ = pair.receive_channel().acquire();
    receive_->count = 1;
    receive_->buffers[0] = {target_.data(), static_cast<uint32_t>(target_.size()), to_->remote_key,
                            0};
    pair.receive_channel().submit(*receive_);
    pair.receive_driver().submit();
  }
  ~LargeMessage() {
    pair_.world().rdma().counted.erase(reinterpret_cast<uint64_t>(target_.data()));
  }
  LargeMessage(const LargeMessage&) = delete;
  LargeMessage& operator=(const LargeMessage&) = delete;
  /// False: its place is not known yet.
  bool send() {
    const CtsEntry* place = pair_.send_channel().match(0);
    if (place == nullptr ||
        pair_.send_channel().submit(*place, source_.data(), static_cast<uint32_t>(source_.size()),
                                    from_->local_key) == nullptr) {
      return false;
    }
    pair_.send_driver().submit();
    return true;
  }
  bool arrives(Duration limit) {
    return pair_.world().run_until([&] { return receive_->state.load() == RequestState::done; },
                                   limit) &&
           target_ == source_;
  }
  static SimCables cables() {
    SimCables cables{.rails = 2, .rdma = true};
    cables.traits.message_max = 8192;
    return cables;
  }

 private:
  SimPair& pair_;
  std::vector<std::byte> source_ = std::vector<std::byte>(4 << 20, std::byte{7});
  std::vector<std::byte> target_ = std::vector<std::byte>(4 << 20);
  const fabric::Registration* from_ = pair_.link().register_send(source_.data(), source_.size());
  const fabric::Registration* to_ = pair_.link().register_receive(target_.data(), target_.size());
  ReceiveRequest* receive_ = nullptr;
};

/// It ends on the path where it began: what is under way there might come later than what tells of
/// all of it.
TEST(SimRdmaDevices, TrafficGoesBackBetweenChunks) {
  Config config;
  config.enable_failback = true;
  config.failback_ms = 100;
  SimPair pair(71, {}, config, LargeMessage::cables());
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, seconds(1));
  const auto& failovers = pair.send_channel().counters();
  ASSERT_TRUE(pair.send_driver().suspect(0));
  ASSERT_TRUE(pair.world().run_until([&] { return failovers.paths_back.get() == 1; }, seconds(5)));
  const Instant due = pair.world().now() + milliseconds(config.failback_ms);
  ASSERT_EQ(failovers.traffic_moves.get(), 1U);
  sim::Link slow;
  slow.delay = milliseconds(5);
  pair.set_links(slow, slow, 1);
  LargeMessage message(pair);
  pass(pair, due - milliseconds(2) - pair.world().now());
  ASSERT_TRUE(message.send());
  pass(pair, milliseconds(4));
  EXPECT_EQ(failovers.traffic_moves.get(), 1U);
  ASSERT_TRUE(message.arrives(seconds(5)));
  EXPECT_GT(pair.world().now(), due) << "it was not under way when traffic was to go back";
  EXPECT_TRUE(
      pair.world().run_until([&] { return failovers.traffic_moves.get() == 2; }, seconds(1)));
}

/// The rest of it follows where its first part went.
TEST(SimRdmaDevices, AChunkThatIsHalfPostedGoesOnWhereAnotherPathFails) {
  SimPair pair(72, {}, {}, LargeMessage::cables());
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, seconds(1));
  const auto& missing = pair.send_channel().counters().paths_missing;
  ASSERT_EQ(missing.get(), 0U);
  sim::Link slow;
  slow.delay = milliseconds(5);
  pair.set_links(slow, slow, 0);
  LargeMessage message(pair);
  pass(pair, milliseconds(10));
  ASSERT_TRUE(message.send());
  const size_t& half_posted = pair.world().rdma().half_posted;
  ASSERT_TRUE(pair.world().run_until([&] { return half_posted != 0; }, milliseconds(10)));
  ASSERT_TRUE(pair.send_driver().suspect(1)) << "the one that stands by";
  ASSERT_TRUE(pair.world().run_until([&] { return missing.get() == 1; }, milliseconds(1)));
  EXPECT_NE(half_posted, 0U) << "it was whole by then";
  EXPECT_TRUE(message.arrives(seconds(5)));
}

}  // namespace
}  // namespace nccl_ha::test
