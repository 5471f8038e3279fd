// RDMA devices that fail call by call, or use the freedoms that they have.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cctype>
#include <cerrno>
#include <functional>

#include "runtime/base/log.h"
#include "tests/rig/runs/failover_run.h"
#include "tests/support/sim_pair.h"
#include "tests/support/sim_seeds.h"

namespace nccl_ha::test {
namespace {

using rig::SimPair;
using sim::Verb;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// What came of a run.
enum class Outcome { survived, refused, ended };

/// Both sides of a connection that failed must know, and say why.
void expect_end_on_both_sides(SimPair& pair, const Config& config, const std::string& what) {
  pair.world().run_until(
      [&] {
        return pair.send_channel().phase() == Phase::failed &&
               pair.receive_channel().phase() == Phase::failed;
      },
      end_bound(config));
  EXPECT_EQ(pair.send_channel().phase(), Phase::failed) << what;
  EXPECT_EQ(pair.receive_channel().phase(), Phase::failed) << what;
  EXPECT_NE(pair.error(), "no error") << what;
}

/// Moves bytes over two rails while the first is cut and healed; `hurt` is called before the
/// connection is made.
Outcome run(uint64_t seed, const Config& config, const std::string& what, uint64_t* failed,
            const std::function<void(SimPair&)>& hurt) {
  SimPair pair(seed, {}, config, {.rails = 2, .rdma = true});
  hurt(pair);
  const bool connected = pair.connect();
  *failed = pair.world().rdma().counts.calls_failed;
  if (!connected) {
    EXPECT_NE(pair.error(), "no error") << what << ": nobody knows why there is no connection";
    return Outcome::refused;
  }
  rig::TransferPlan plan;
  plan.seed = seed;
  plan.groups = 12;
  const Instant cut = pair.world().now() + microseconds(300);
  const Instant healed = cut + milliseconds(800);
  pair.world().network().stop_at(cut);
  pair.world().network().stop_at(healed);
  plan.each_round = [&] {
    sim::Link dark;
    dark.cut = pair.world().now() >= cut && pair.world().now() < healed;
    pair.set_links(dark, dark, 0);
  };
  plan.released = [&] { return pair.world().now() < healed + seconds(1) ? 10 : 12; };
  pair.world().network().stop_at(healed + seconds(1));
  const std::string outcome =
      pair.transfer(plan, healed + seconds(1) - pair.world().now() + end_bound(config));
  *failed = pair.world().rdma().counts.calls_failed;
  EXPECT_EQ(pair.world().violation(), "") << what;
  if (outcome.empty()) {
    return Outcome::survived;
  }
  EXPECT_TRUE(outcome.starts_with("failed: ")) << what << ": " << outcome;
  expect_end_on_both_sides(pair, config, what);
  return Outcome::ended;
}

Config failback_config() {
  Config config = rig::failover_config(2);
  config.heartbeat_ms = 20;
  config.failback_ms = 100;
  config.enable_failback = true;
  return config;
}

/// The first calls of each kind, on each of the four devices, fail one by one.
class EveryCall : public testing::TestWithParam<size_t> {};

TEST_P(EveryCall, MayFailOnce) {
  const ErrorsOnly errors_only;
  const auto verb = static_cast<Verb>(GetParam());
  int survived = 0;
  int happened = 0;
  for (size_t device = 0; device < 4; ++device) {
    for (uint64_t nth = 1; nth <= sim_alike(12); ++nth) {
      const bool sends = device % 2 == 0;
      const std::string what = fmt::format("{} number {} of the {} on rail {}", sim::to_text(verb),
                                           nth, sends ? "sender" : "receiver", device / 2);
      uint64_t failed = 0;
      const Outcome outcome = run(nth, failback_config(), what, &failed, [&](SimPair& pair) {
        sim::Process& host = sends ? pair.sender() : pair.receiver();
        host.nics[device / 2]->verbs().force(verb, nth, EIO);
      });
      happened += failed != 0 ? 1 : 0;
      survived += failed != 0 && outcome == Outcome::survived ? 1 : 0;
      if (failed == 0) {
        EXPECT_EQ(outcome, Outcome::survived) << what;
      }
    }
  }
  EXPECT_GT(happened, 0) << sim::to_text(verb) << " never failed";
  EXPECT_GE(2 * survived, happened) << sim::to_text(verb);
}

// Registrations and descriptors belong to whoever registers.
INSTANTIATE_TEST_SUITE_P(
    SimRdmaFaults, EveryCall,
    testing::Values(size_t(Verb::create_channel), size_t(Verb::create_queue),
                    size_t(Verb::create_pair), size_t(Verb::to_init),
                    size_t(Verb::to_ready_to_receive), size_t(Verb::to_ready_to_send),
                    size_t(Verb::to_error), size_t(Verb::destroy_pair), size_t(Verb::make_route),
                    size_t(Verb::post_send), size_t(Verb::post_receive), size_t(Verb::poll)),
    [](const auto& param) {
      std::string name = sim::to_text(static_cast<Verb>(param.param));
      std::erase_if(name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; });
      return name;
    });

/// Twenty runs with one fault on all devices; what all NICs counted.
sim::RdmaNic::Counts run_all(const std::string& what,
                             const std::function<void(sim::DeviceFaults&)>& set) {
  const ErrorsOnly errors_only;
  sim::RdmaNic::Counts sum;
  for (uint64_t seed = 1; seed <= sim_alike(20); ++seed) {
    SimPair pair(seed, {}, failback_config(), {.rails = 2, .rdma = true});
    for (sim::Process* host : {&pair.sender(), &pair.receiver()}) {
      for (sim::RdmaNic* nic : host->nics) {
        set(nic->verbs().faults);
      }
    }
    if (!pair.connect()) {
      ADD_FAILURE() << what << ", seed " << seed << ": " << pair.error();
      break;
    }
    rig::TransferPlan plan;
    plan.seed = seed;
    Random random(seed);
    Instant next = pair.world().now();
    plan.each_round = [&] {
      if (pair.world().now() < next) {
        return;
      }
      // A verdict on a living path: the peer's packets go on while this side ends the path.
      next = pair.world().now() + microseconds(50 + random.below(1000));
      pair.world().network().stop_at(next);
      Driver& side = random.chance(0.2) ? pair.send_driver() : pair.receive_driver();
      static_cast<void>(side.suspect(static_cast<uint32_t>(random.below(3))));
    };
    EXPECT_EQ(pair.transfer(plan, end_bound(failback_config())), "") << what << ", seed " << seed;
    const sim::RdmaNic::Counts& counts = pair.world().rdma().counts;
    EXPECT_EQ(pair.world().violation(), "") << what << ", seed " << seed;
    sum.lagging += counts.lagging;
    sum.kept += counts.kept;
    sum.calls_failed += counts.calls_failed;
  }
  return sum;
}

TEST(SimRdmaFaults, QueuePairsGoOnTakingRequestsAfterTheCallThatEndsThem) {
  const auto counts =
      run_all("lag", [](sim::DeviceFaults& faults) { faults.error_lag = milliseconds(1); });
  EXPECT_GT(counts.lagging, 10U);
}

TEST(SimRdmaFaults, QueuePairsInErrorKeepWhatTheyHold) {
  const auto counts = run_all("keeps", [](sim::DeviceFaults& faults) {
    faults.keeps_work = 1;
    faults.error_lag = microseconds(100);
    faults.destroy_takes_completions = true;
  });
  EXPECT_GT(counts.kept, 100U);
}

/// A clear-to-send comes when its path was given up; where the sender has suspicions, while its
/// queue pair goes into error.  The completion of the one that is written anew, with the key of the
/// path that takes over, comes later still.
void meet_a_late_clear_to_send(uint64_t seed, bool at_sender, uint64_t* late) {
  Config config = rig::failover_config(1);
  config.heartbeat_ms = 0;
  SimPair pair(seed, {}, config, {.rails = 2, .rdma = true});
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, seconds(1));  // until the other rail's path stands by
  pair.sender().nics[0]->verbs().faults.error_lag = milliseconds(4);
  sim::Link slow;
  slow.delay = milliseconds(1);
  pair.set_links({}, slow);
  pair.world().rdma().late = 1;
  pair.world().rdma().latest = milliseconds(3);
  pair.post_receives(1);
  pass(pair, microseconds(100));
  ASSERT_EQ(pair.send_channel().match(0), nullptr) << "the clear-to-send is not under way any more";
  ASSERT_TRUE(at_sender ? pair.send_driver().suspect(0) : pair.receive_driver().suspect(0));
  pass(pair, microseconds(1500));
  *late += pair.world().rdma().counts.lagging;
  pair.world().rdma().late = 0;
  sim::Link dark;  // nothing is left but the other rail
  dark.cut = true;
  pair.set_links(dark, dark);
  ASSERT_TRUE(pair.post_send(1 << 20)) << pair.error();
  const auto& slot = pair.receive_channel().slot(0);
  EXPECT_TRUE(
      pair.world().run_until([&] { return slot.state.load() == RequestState::done; }, seconds(5)))
      << pair.error();
}

TEST(SimRdmaFaults, ALateClearToSendLandsOnNoneThatWasWrittenAnew) {
  const ErrorsOnly errors_only;
  for (const bool at_sender : {false, true}) {
    uint64_t late = 0;
    for (uint64_t seed = 1; seed <= 30 && !HasFatalFailure(); ++seed) {
      SCOPED_TRACE(
          fmt::format("seed {} the {} has suspicions", seed, at_sender ? "sender" : "receiver"));
      meet_a_late_clear_to_send(seed, at_sender, &late);
    }
    if (at_sender) {
      EXPECT_GT(late, 10U) << "no clear-to-send met a queue pair that goes into error";
    }
  }
}

}  // namespace
}  // namespace nccl_ha::test
