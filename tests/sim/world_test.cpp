// The real actors on virtual time: connections, transfers, faults, and that a seed repeats exactly.
#include "tests/rig/sim/world.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <list>

#include "actors/connection/connection.h"
#include "tests/rig/runs/pair.h"

namespace nccl_ha::test {
namespace {

using rig::SimLink;
using rig::SimPair;
using rig::Traffic;
using rig::TransferPlan;
using sim::ip;
using std::chrono::seconds;

TEST(SimWorld, ConnectsAndMovesBytesOfEverySize) {
  SimPair pair(1, {});
  ASSERT_TRUE(pair.connect()) << pair.error();
  TransferPlan plan;
  plan.groups = 60;
  plan.seed = 7;
  EXPECT_EQ(pair.transfer(plan, seconds(20)), "");
}

TEST(SimWorld, ManySeedsWithLossDuplicationAndReordering) {
  const auto begin = std::chrono::steady_clock::now();
  Duration simulated{};
  uint64_t dropped = 0;
  uint64_t duplicated = 0;
  uint64_t reordered = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    sim::Link bad;
    bad.drop = 0.05;
    bad.duplicate = 0.05;
    bad.reorder = 0.05;
    SimPair pair(seed, bad);
    ASSERT_TRUE(pair.connect()) << "seed " << seed << ": " << pair.error();
    TransferPlan plan;
    plan.groups = 20;
    plan.seed = seed;
    ASSERT_EQ(pair.transfer(plan, seconds(60)), "") << "seed " << seed;
    const auto& counts = pair.world().network().counts();
    dropped += counts.dropped;
    duplicated += counts.duplicated;
    reordered += counts.reordered;
    simulated += pair.world().now().time_since_epoch();
  }
  EXPECT_GT(dropped, 100U);
  EXPECT_GT(duplicated, 100U);
  EXPECT_GT(reordered, 100U);
  const std::chrono::duration<double> real = std::chrono::steady_clock::now() - begin;
  RecordProperty("virtual_seconds_per_second",
                 std::to_string(std::chrono::duration<double>(simulated).count() / real.count()));
}

/// Everything two equal runs must have in common.
std::string fingerprint(uint64_t seed) {
  sim::Link bad;
  bad.drop = 0.03;
  bad.reorder = 0.1;
  SimPair pair(seed, bad);
  if (!pair.connect()) {
    return pair.error();
  }
  TransferPlan plan;
  plan.groups = 15;
  plan.seed = 3;
  const std::string outcome = pair.transfer(plan, seconds(60));
  const auto& network = pair.world().network();
  return fmt::format("{} trace {:x} rounds {} at {} packets {} dropped {}", outcome,
                     network.trace(), pair.world().rounds(),
                     pair.world().now().time_since_epoch().count(), network.counts().packets,
                     network.counts().dropped);
}

TEST(SimWorld, ASeedRepeatsExactlyAndAnotherDiffers) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    EXPECT_EQ(fingerprint(seed), fingerprint(seed)) << "seed " << seed;
    EXPECT_NE(fingerprint(seed), fingerprint(seed + 100)) << "seed " << seed;
  }
}

TEST(SimWorld, SeveralWorkersPerProcess) {
  Config config;
  config.progress_threads = 3;
  SimPair pair(5, {}, config);
  ASSERT_TRUE(pair.connect()) << pair.error();
  ASSERT_EQ(pair.sender().engine->worker_count(), 3U);
  TransferPlan plan;
  plan.groups = 10;
  EXPECT_EQ(pair.transfer(plan, seconds(20)), "");
}

struct Ending final : StreamOwner {
  void on_stream_open(Stream&) override {}
  void on_stream_data(Stream&, std::span<const std::byte>) override {}
  void on_stream_closed(Stream&, const Error&) override { ended = true; }
  bool ended = false;
};

struct Resident final : Actor {
  const char* name() const override { return "resident"; }
  void start(Context&) override {}
  void on(const Message&) override {}
};

/// Whoever calls one worker does nothing for another one.
TEST(SimWorld, AWorkerThatNobodyTurnsHearsOfNoStream) {
  Config config;
  config.progress_threads = 2;
  config.use_progress_thread = false;
  sim::World world(3);
  sim::Process& process = **world.add_process(ip(10, 0, 0, 1), config);
  ASSERT_TRUE(world.add_process(ip(10, 0, 0, 2), config));
  world.starve(process, 0, seconds(2));  // its fallback thread, which looks after those with actors
  ASSERT_TRUE(process.engine->worker(1).context().add_actor(std::make_unique<Resident>()));
  Ending ending;
  const sockaddr_storage nobody = sim::Endpoint{ip(10, 0, 0, 2), 9}.to_sockaddr();
  const auto stream = process.engine->worker(1).context().streams().connect_tcp(
      reinterpret_cast<const sockaddr*>(&nobody), nullptr, &ending);
  ASSERT_TRUE(stream);
  const auto calls_the_other = [&] {
    process.engine->worker(0).quick_turn();
    return ending.ended;
  };
  EXPECT_FALSE(world.run_until(calls_the_other, seconds(1)));
  EXPECT_TRUE(world.run_until(calls_the_other, seconds(2)));
}

/// Callers that may help turn nothing while they have nothing to ask for.
TEST(SimWorld, AWorkerWhoseThreadDoesNotRunWaitsForACallerThatAsks) {
  sim::World world(4);
  world.callers_help = 1e-9;  // its thread looks as if it did not run when it does not
  sim::Process& process = **world.add_process(ip(10, 0, 0, 1), {});
  ASSERT_TRUE(world.add_process(ip(10, 0, 0, 2), {}));
  world.starve(process, 0, seconds(2));
  Worker& worker = process.engine->worker(0);
  Ending ending;
  const sockaddr_storage nobody = sim::Endpoint{ip(10, 0, 0, 2), 9}.to_sockaddr();
  const auto stream = worker.context().streams().connect_tcp(
      reinterpret_cast<const sockaddr*>(&nobody), nullptr, &ending);
  ASSERT_TRUE(stream);
  bool expired = false;
  Timer timer;
  timer.bind([](void* self) { *static_cast<bool*>(self) = true; }, &expired);
  worker.context().timers().arm(timer, world.now() + std::chrono::milliseconds(10));
  EXPECT_FALSE(world.run_until([&] { return ending.ended || expired; }, seconds(1)));
  EXPECT_EQ(world.livelock(), "");
  Engine::Caller caller;
  const auto asks = [&] {
    static_cast<void>(process.engine->turn(*process.engine->slot_of(worker), caller));
    return ending.ended && expired;
  };
  EXPECT_TRUE(world.run_until(asks, std::chrono::milliseconds(100)));
  EXPECT_GT(worker.statistics().taken_over, 0U);
  worker.context().timers().cancel(timer);
}

struct Poor final : Actor {
  const char* name() const override { return "poor"; }
  void start(Context&) override {}
  void on(const Message&) override { throw std::bad_alloc(); }
};

/// Where memory runs out in the middle of something, every connection of that worker ends, on both
/// sides and with its reason, and the process goes on.
TEST(SimWorld, MemoryThatRunsOutEndsConnectionsAndNotTheProcess) {
  SimPair pair(6, {});
  ASSERT_TRUE(pair.connect()) << pair.error();
  pair.post_receives(4);
  ASSERT_TRUE(pair.post_send(1 << 20)) << pair.error();
  Engine& engine = *pair.sender().engine;
  for (size_t i = 0; i < engine.worker_count(); ++i) {
    Context& context = engine.worker(i).context();
    const ActorId poor = *context.add_actor(std::make_unique<Poor>());
    context.send_self(Message{poor});
  }
  EXPECT_TRUE(pair.world().run_until(
      [&] {
        return pair.send_channel().phase() == Phase::failed &&
               pair.receive_channel().phase() == Phase::failed;
      },
      seconds(15)));
  EXPECT_EQ(pair.send_channel().failure().code, Errc::no_memory);
  EXPECT_NE(pair.receive_channel().failure().what.find("out of memory"), std::string::npos)
      << pair.receive_channel().failure().what;
  EXPECT_GT(engine.worker(0).context().counters()->out_of_memory.get(), 0U);
}

/// A path that fails fails its connection.
Config without_backup() {
  Config config;
  config.enable_backup = false;
  return config;
}

TEST(SimWorld, ADeadPeerIsAnErrorWithinTheLimit) {
  SimPair pair(9, {}, without_backup());
  ASSERT_TRUE(pair.connect()) << pair.error();
  pair.post_receives(4);
  ASSERT_TRUE(pair.post_send(1 << 20)) << pair.error();
  pair.world().power_off(pair.receiver());
  // Datagrams give up after HA_NCCL_DGRAM_DEAD_MS.
  EXPECT_TRUE(pair.world().run_until([&] { return pair.send_channel().phase() == Phase::failed; },
                                     seconds(15)));
  EXPECT_GT(pair.world().network().counts().cut, 0U) << "the fault did not happen";
  EXPECT_FALSE(pair.send_channel().failure().what.empty());
}

TEST(SimWorld, APartitionFailsBothSidesWithinTheLimit) {
  SimPair pair(10, {}, without_backup());
  ASSERT_TRUE(pair.connect()) << pair.error();
  pair.post_receives(4);
  ASSERT_TRUE(pair.post_send(1 << 20)) << pair.error();
  sim::Link cut;
  cut.cut = true;
  pair.set_links(cut, cut);
  EXPECT_TRUE(pair.world().run_until(
      [&] {
        return pair.send_channel().phase() == Phase::failed &&
               pair.receive_channel().phase() == Phase::failed;
      },
      seconds(15)));
  EXPECT_GT(pair.world().network().counts().cut, 0U);
}

TEST(SimWorld, ACutThatHealsInTimeCostsNothingButTime) {
  SimPair pair(11, {});
  ASSERT_TRUE(pair.connect()) << pair.error();
  TransferPlan plan;
  plan.groups = 40;
  bool healed = false;
  const Instant cut_at = pair.world().now() + std::chrono::microseconds(100);
  plan.each_round = [&] {
    const bool dark = pair.world().now() >= cut_at && pair.world().now() < cut_at + seconds(3);
    sim::Link link;
    link.cut = dark;
    pair.set_links(link, link);
    healed = healed || pair.world().now() >= cut_at + seconds(3);
  };
  EXPECT_EQ(pair.transfer(plan, seconds(30)), "");
  EXPECT_TRUE(healed);
  EXPECT_GT(pair.world().network().counts().cut, 0U);
}

TEST(SimWorld, APacketWakesTheThreadThatSleepsWhileNobodyCalls) {
  Config config;
  config.use_progress_thread = false;
  config.heartbeat_ms = 0;  // nothing else would wake it
  SimPair pair(14, {}, config);
  ASSERT_TRUE(pair.connect()) << pair.error();
  static_cast<void>(pair.world().run_until([] { return false; }, seconds(1)));
  ASSERT_TRUE(pair.sender().fallback_sleeps);
  pair.post_receives(1);
  EXPECT_TRUE(pair.world().run_until([&] { return pair.send_channel().match(0) != nullptr; },
                                     std::chrono::milliseconds(1)))
      << "the clear-to-send lies in the socket";
}

TEST(SimWorld, NobodyListeningIsAnError) {
  SimPair pair(12, {});
  pair.dial(ip(10, 0, 0, 2), 4242);
  EXPECT_TRUE(pair.world().run_until([&] { return pair.send_channel().phase() == Phase::failed; },
                                     seconds(5)));
  EXPECT_NE(pair.send_channel().failure().what.find("refused"), std::string::npos)
      << pair.send_channel().failure().what;
}

TEST(SimWorld, AnUnreachableHostIsAnErrorWithinTheTimeout) {
  Config config;
  config.connect_timeout_ms = 3000;
  SimPair pair(13, {}, config);
  sim::Link cut;
  cut.cut = true;
  pair.world().network().set_link(pair.sender().address, pair.receiver().address, cut);
  EXPECT_FALSE(pair.connect());
  EXPECT_EQ(pair.send_channel().failure().code, Errc::timed_out);
  EXPECT_LT(pair.world().now().time_since_epoch(), seconds(5));
}

TEST(SimWorld, ThreeHostsTalkAtOnce) {
  sim::World world(21);
  std::vector<std::unique_ptr<SimLink>> links;
  std::vector<sim::Process*> hosts;
  for (uint8_t i = 1; i <= 3; ++i) {
    auto process = world.add_process(ip(10, 0, 0, i), {});
    ASSERT_TRUE(process);
    hosts.push_back(*process);
  }
  for (size_t i = 0; i < 3; ++i) {
    links.push_back(std::make_unique<SimLink>(world, *hosts[i], *hosts[(i + 1) % 3]));
  }
  for (auto& link : links) {
    ASSERT_TRUE(link->wait_ready()) << link->error();
  }
  std::vector<std::unique_ptr<Traffic>> all;
  for (size_t i = 0; i < 3; ++i) {
    TransferPlan plan;
    plan.seed = i;
    plan.groups = 20;
    all.push_back(std::make_unique<Traffic>(*links[i], plan));
  }
  EXPECT_TRUE(world.run_until(
      [&] {
        bool done = true;
        for (auto& traffic : all) {
          done = traffic->step() && done;
        }
        return done;
      },
      seconds(30)));
  for (auto& traffic : all) {
    EXPECT_EQ(traffic->outcome(), "");
  }
}

}  // namespace
}  // namespace nccl_ha::test
