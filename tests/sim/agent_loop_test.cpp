// The transport agent's control loop closed over the plugin itself: traffic loads two rails, a
// switch tells how loaded they are, the agent's board decides, and the sender splits by what its
// table says.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <iterator>
#include <memory>
#include <string>

#include "actors/telemetry_packet.h"
#include "ha/replay_window.h"
#include "runtime/telemetry/hint_table.h"
#include "tests/support/sim_pair.h"
#include "tests/support/sim_seeds.h"
#include "tests/support/temporary_folder.h"
#include "tools/agent/flow_board.h"

namespace nccl_ha::test {
namespace {

using rig::SimPair;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint64_t fast = 50'000'000;
constexpr Duration sample_every = milliseconds(1);
/// How much of a sample counts at once: messages come in bursts of some milliseconds.
constexpr double load_part = 0.05;
constexpr Duration tick_every = milliseconds(5);
constexpr Duration heartbeat_silence = milliseconds(100);
/// Of a rail that carries all it can; backpressure begins above.
constexpr double full_level = 200;

const ha::Flow the_flow{{4, {10, 0, 0, 1}}, {4, {10, 0, 0, 2}}};

struct Trouble {
  const char* name;
  Duration delay{};
  double jitter = 0;  ///< of the delay, as a part of it: datagrams overtake each other
  double lost = 0;
  double twice = 0;  ///< of the datagrams come again, later
  double noise = 0;  ///< of a level, uniform to both sides
  double lies = 0;   ///< of the levels: something else entirely, 255 included
};

/// An agent with its table, as far as it decides.
class Agent final : public ha::HintSource {
 public:
  explicit Agent(Instant now) : window_({}, 0) {
    const auto directory = AgentDirectory::make(folder_.path());
    EXPECT_TRUE(directory) << directory.error().message();
    auto writer = HintWriter::create(*directory, {.slots = 4}, now);
    EXPECT_TRUE(writer) << writer.error().message();
    board_ = std::make_unique<tools::FlowBoard>(std::move(*writer), 4, ha::SharePolicy::Options{},
                                                nullptr);
    const auto place = board_->enter(1, 1, {the_flow, "a", "b", {"sout", "sup"}}, now);
    EXPECT_TRUE(place) << place.error().message();
    place_ = *place;
    auto table = HintTable::open(folder_.path(), board_->generation());
    EXPECT_TRUE(table) << table.error().message();
    table_ = *table;
  }

  void on_datagram(const std::vector<std::byte>& datagram, Instant now) {
    const auto frame = parse_telemetry(datagram);
    ASSERT_TRUE(frame);
    const auto entries = decode_congestion(*frame);
    ASSERT_TRUE(entries);
    if (window_.take(frame->header.sender, frame->header.number, frame->header.stamp,
                     now.time_since_epoch().count()) == ha::ReplayWindow::Verdict::fresh) {
      board_->on_congestion(*entries, now);
      ++taken_;
    } else {
      ++repeated_;
    }
  }
  void tick(Instant now) {
    board_->give_heartbeat(now);
    board_->tick(now);
  }
  void on_local(const tools::FlowBoard::LocalEnds& ends, Instant now) {
    board_->on_local(ends, now);
  }
  std::optional<uint32_t> parts(Instant now) override {
    const HintReading reading = table_->read(place_.slot, place_.flow, now, heartbeat_silence);
    return reading.fresh() && (reading.hint.flags & hint_layout::untold) == 0
               ? std::optional(reading.hint.share)
               : std::nullopt;
  }
  uint64_t taken() const { return taken_; }
  uint64_t repeated() const { return repeated_; }

 private:
  tests::TemporaryFolder folder_;
  ha::ReplayWindow window_;
  std::unique_ptr<tools::FlowBoard> board_;
  FlowPlace place_;
  std::shared_ptr<const HintTable> table_;
  uint64_t taken_ = 0;
  uint64_t repeated_ = 0;
};

/// The sender's hints before its world, and with it the agent's clock, exists.
class LateHints final : public ha::HintSource {
 public:
  std::optional<uint32_t> parts(Instant now) override {
    return agent == nullptr ? std::nullopt : agent->parts(now);
  }
  Agent* agent = nullptr;
};

/// Everything on one virtual clock.
class Loop {
 public:
  Loop(uint64_t seed, bool rdma, const Trouble& trouble, uint64_t second_rate)
      : trouble_(trouble), random_(seed), pair_(seed, {}, advanced(), cables(rdma, hints_)) {
    const std::array<uint64_t, 2> rates{fast, second_rate};
    for (size_t rail = 0; rail < 2; ++rail) {
      sim::Link link;
      link.rate = rates[rail];
      pair_.set_links(link, link, rail);
      rates_[rail] = rates[rail];
    }
  }
  bool begin() {
    if (!pair_.connect()) {
      return false;
    }
    agent_ = std::make_unique<Agent>(pair_.world().now());
    hints_->agent = agent_.get();
    rig::TransferPlan plan;
    plan.seed = 2;  // an even one: the sender waits for receives, of which many are posted
    plan.groups = 1'000'000;
    plan.grouped = 0;
    plan.large = 1;
    plan.bytes_max = 1 << 20;
    plan.late_write_window = 16;
    traffic_ = std::make_unique<rig::Traffic>(pair_.link(), plan);
    sample();
    tick();
    return true;
  }
  struct Outcome {
    double mean = 0;
    double deviation = 0;
    double told = 0;  ///< the part of the moments at which a hint held
    double rate = 0;  ///< bytes received per second
  };
  /// Lets `time` pass and says what the shares were meanwhile, every millisecond.
  Outcome run(Duration time) {
    Outcome outcome;
    double sum = 0;
    double squares = 0;
    int moments = 0;
    int told = 0;
    const uint64_t before = received();
    const Instant from = pair_.world().now();
    while (pair_.world().now() < from + time && !traffic_->is_wrong()) {
      pair_.world().run_until([&] { return traffic_->step(); }, milliseconds(1));
      ++moments;
      if (const auto parts = agent_->parts(pair_.world().now())) {
        ++told;
        sum += *parts;
        squares += static_cast<double>(*parts) * *parts;
      }
    }
    EXPECT_FALSE(traffic_->is_wrong()) << traffic_->outcome();
    outcome.told = static_cast<double>(told) / moments;
    outcome.mean = told == 0 ? 0 : sum / told;
    outcome.deviation =
        told == 0 ? 0 : std::sqrt(std::max(0.0, squares / told - outcome.mean * outcome.mean));
    outcome.rate = static_cast<double>(received() - before) /
                   std::chrono::duration<double>(pair_.world().now() - from).count();
    return outcome;
  }
  /// The switch says no more; the agent lives on.
  void silence_switch() { silent_ = true; }
  const Agent& agent() const { return *agent_; }
  /// The host's own NICs are measured every 100 ms, as by default.
  Outcome run_with(const std::array<uint8_t, 2>& levels, int measurements) {
    constexpr int64_t mbps = 400;
    Outcome last;
    for (int i = 0; i < measurements; ++i) {
      agent_->on_local({{{levels[0], mbps}, {levels[1], mbps}}}, pair_.world().now());
      last = run(milliseconds(100));
    }
    return last;
  }
  uint64_t paths_down() { return pair_.send_channel().counters().paths_down.get(); }

 private:
  static Config advanced() {
    Config config;
    config.mpib_mode = 1;
    config.ib_split_threshold = 65536;
    return config;
  }
  static rig::SimCables cables(bool rdma, const std::shared_ptr<LateHints>& hints) {
    return {.rails = 2, .rdma = rdma, .one_device = true, .sout_and_sup = true, .hints = hints};
  }
  uint64_t received() { return pair_.receive_channel().counters().bytes_received.get(); }
  uint64_t carried(size_t rail) {
    return pair_.world().network().carried(pair_.sender().addresses[rail],
                                           pair_.receiver().addresses[rail]);
  }

  void sample() {
    sim::Network& network = pair_.world().network();
    const Instant now = network.now();
    std::vector<CongestionEntry> entries;
    for (size_t rail = 0; rail < 2; ++rail) {
      const uint64_t sent = carried(rail);
      const double could =
          static_cast<double>(rates_[rail]) * std::chrono::duration<double>(sample_every).count();
      const double load = static_cast<double>(sent - sent_before_[rail]) / could;
      sent_before_[rail] = sent;
      load_[rail] += load_part * (load - load_[rail]);
      double level = full_level * std::clamp(2 * load_[rail] - 1, 0.0, 1.0) +
                     trouble_.noise * (2 * random_.unit() - 1);
      level = random_.chance(trouble_.lies) ? 256 * random_.unit() : level;
      entries.push_back({the_flow, static_cast<uint8_t>(rail),
                         static_cast<uint8_t>(std::clamp(level, 0.0, 255.0)), std::nullopt});
    }
    TelemetryHeader header;
    header.type = TelemetryType::congestion;
    header.sender = 7;
    header.number = ++number_;
    header.stamp = now.time_since_epoch().count();
    header.entries = static_cast<uint8_t>(entries.size());
    const auto datagram = encode(header, entries, false);
    if (!silent_ && !random_.chance(trouble_.lost)) {
      deliver(datagram);
      if (random_.chance(trouble_.twice)) {
        deliver(datagram);
      }
    }
    network.call_at(now + sample_every, [this] { sample(); });
  }
  void deliver(const std::vector<std::byte>& datagram) {
    const auto late = static_cast<int64_t>(static_cast<double>(trouble_.delay.count()) *
                                           (1 + trouble_.jitter * random_.unit()));
    sim::Network& network = pair_.world().network();
    network.call_at(network.now() + Duration(late), [this, datagram] {
      agent_->on_datagram(datagram, pair_.world().network().now());
    });
  }
  void tick() {
    sim::Network& network = pair_.world().network();
    agent_->tick(network.now());
    network.call_at(network.now() + tick_every, [this] { tick(); });
  }

  const Trouble trouble_;
  Random random_;
  std::shared_ptr<LateHints> hints_ = std::make_shared<LateHints>();
  std::unique_ptr<Agent> agent_;  // the world's events speak of it
  SimPair pair_;
  std::unique_ptr<rig::Traffic> traffic_;
  std::array<uint64_t, 2> rates_{};
  std::array<uint64_t, 2> sent_before_{};
  std::array<double, 2> load_{};  ///< as the switch has smoothed it
  uint64_t number_ = 0;
  bool silent_ = false;
};

/// The bounds that docs/agent.md states.
// Of a share's standard deviation, in parts per 1024: that of all runs, and of any one.  A second
// says little: of 72 runs with other seeds two were above 40 in one, and none above 54.
constexpr double deviation_mean = 25;
constexpr double deviation_max = 64;
constexpr double rate_least = 0.7;  ///< of what both rails carry

class AgentLoop : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Fabrics, AgentLoop, testing::Bool(), [](const auto& one) {
  return std::string(one.param ? "rdma" : "datagrams");
});

TEST_P(AgentLoop, SharesDoNotOscillate) {
  constexpr Trouble troubles[] = {
      {"none", milliseconds(1)},
      {"late", milliseconds(10), 0.5},
      {"lost and twice", milliseconds(2), 0.5, 0.5, 0.3},
      {"noisy", milliseconds(2), 0, 0, 0, 40},
      {"lying now and then", milliseconds(2), 0, 0, 0, 0, 0.02},
      {"all of it", milliseconds(5), 1, 0.3, 0.1, 30, 0.01},
  };
  constexpr std::array<uint64_t, 3> parts{2, 1, 4};
  double deviations = 0;
  uint64_t runs = 0;
  for (size_t i = 0; i < std::size(troubles); ++i) {
    const Trouble& trouble = troubles[i];
    // Where few are run, they are some of those that are run elsewhere, of each part.
    for (size_t more = 0; more < sim_alike(parts.size()); ++more) {
      const size_t at = (i + more) % parts.size();
      const uint64_t part = parts[at];
      const uint64_t seed = 101 + i * parts.size() + at;
      Loop loop(seed, GetParam(), trouble, fast / part);
      ASSERT_TRUE(loop.begin());
      loop.run(milliseconds(1000));
      const auto outcome = loop.run(milliseconds(3000));
      const double sum = static_cast<double>(fast) * (1 + 1.0 / static_cast<double>(part));
      std::printf("%-20s 1 to %u: share %4.0f, deviation %4.1f, rate %.2f of both rails'\n",
                  trouble.name, static_cast<unsigned>(part), outcome.mean, outcome.deviation,
                  outcome.rate / sum);
      deviations += outcome.deviation;
      ++runs;
      EXPECT_EQ(outcome.told, 1) << trouble.name << ", seed " << seed;
      EXPECT_LE(outcome.deviation, deviation_max) << trouble.name << ", seed " << seed;
      EXPECT_GE(outcome.rate, rate_least * sum) << trouble.name << ", seed " << seed;
      EXPECT_EQ(loop.paths_down(), 0U) << "a slow rail was taken for a dead one: " << trouble.name;
      EXPECT_GT(loop.agent().taken(), 900U);
      EXPECT_EQ(loop.agent().repeated() > 0, trouble.twice > 0) << trouble.name;
    }
  }
  EXPECT_LE(deviations / static_cast<double>(runs), deviation_mean);
}

/// What was said last holds for a while, loses its weight, and then the sender measures for itself.
TEST_P(AgentLoop, WhatASilentSwitchSaidGivesWayToTheOwnPolicy) {
  Loop loop(200, GetParam(), {"none", milliseconds(1)}, fast / 4);
  ASSERT_TRUE(loop.begin());
  loop.run(milliseconds(800));
  ASSERT_EQ(loop.run(milliseconds(200)).told, 1);
  loop.silence_switch();
  const auto meanwhile = loop.run(milliseconds(400));
  EXPECT_EQ(meanwhile.told, 1) << "it is given up before its time";
  loop.run(milliseconds(300));
  const auto after = loop.run(milliseconds(500));
  EXPECT_EQ(after.told, 0);
  EXPECT_GE(after.rate, 0.9 * (fast + fast / 4.0));
}

/// Pauses or lost packets at SOUT's NIC, and no switch that says anything.
TEST_P(AgentLoop, CongestionOfTheOwnNicSteersWithoutASwitch) {
  Loop loop(300, GetParam(), {"none"}, fast);
  loop.silence_switch();
  ASSERT_TRUE(loop.begin());
  EXPECT_EQ(loop.run_with({128, 0}, 5).told, 0) << "a link that is full is no congestion";
  EXPECT_EQ(loop.run_with({224, 0}, 1).told, 0) << "one measurement says nothing";
  const auto congested = loop.run_with({224, 0}, 5);
  EXPECT_EQ(congested.told, 1);
  EXPECT_GT(congested.mean, 900) << "SUP gets nearly all";
  EXPECT_EQ(loop.run_with({0, 0}, 8).told, 0) << "then the sender measures for itself again";
}

/// A switch that tells queues, and no level.
TEST(AgentQueues, ThatASwitchTellsAreLevels) {
  ManualClock clock;
  Agent agent(clock.now());
  clock.advance(seconds(1));
  const auto tell = [&](std::optional<uint32_t> queue) {
    TelemetryHeader header;
    header.type = TelemetryType::congestion;
    header.sender = 7;
    header.number = agent.taken() + 1;
    header.stamp = clock.now().time_since_epoch().count();
    header.entries = 2;
    agent.on_datagram(
        encode(header, std::vector<CongestionEntry>{{the_flow, 0, 0, queue}, {the_flow, 1, 0, 0}},
               false),
        clock.now());
  };
  const auto share_after = [&](std::optional<uint32_t> queue) {
    for (int i = 0; i < 500; ++i) {
      clock.advance(milliseconds(1));
      tell(queue);
      agent.tick(clock.now());
    }
    return agent.parts(clock.now()).value_or(0);
  };
  EXPECT_EQ(share_after(1'000'000), 512U)
      << "of a rail whose speed is not known a queue says nothing";
  agent.on_local({{{0, 1000}, {0, 1000}}}, clock.now());
  EXPECT_GT(share_after(1'000'000), 900U);
  EXPECT_NEAR(share_after(std::nullopt), 512, 4);
}

}  // namespace
}  // namespace nccl_ha::test
