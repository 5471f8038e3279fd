#include <gtest/gtest.h>

#include <cstdlib>

#include "actors/agent_client.h"
#include "runtime/telemetry/agent_directory.h"
#include "tests/rig/sim/world.h"
#include "tests/support/log_lines.h"
#include "tests/support/simulated_agent.h"
#include "tests/support/temporary_folder.h"

namespace nccl_ha {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::SimulatedAgent;
using Manner = SimulatedAgent::Manner;

/// Holds the registrations of a process, as its connections do.
class Registering final : public Actor {
 public:
  const char* name() const override { return "registering"; }
  void start(Context& context) override { client = AgentClient::of(context); }
  void on(const Message&) override {}
  void stop() override {
    held.clear();
    client.reset();
  }
  void enter(uint8_t to) {
    FlowAnnouncement announcement;
    announcement.flow.source = {4, {10, 0, 0, 1}};
    announcement.flow.destination = {4, {10, 0, 0, to}};
    held.push_back(client->enter(std::move(announcement)));
  }

  std::shared_ptr<AgentClient> client;
  std::vector<std::unique_ptr<AgentClient::Registration>> held;
};

class AgentClientTest : public testing::Test {
 protected:
  void SetUp() override {
    config_.agent_dir = directory_;
    auto job = world_.add_process(host, config_);
    ASSERT_TRUE(job);
    auto registering = std::make_unique<Registering>();
    job_ = registering.get();
    ASSERT_TRUE((*job)->engine->worker(0).adopt(std::move(registering)));
    ASSERT_TRUE(world_.run_until([&] { return job_->client != nullptr; }, seconds(1)));
  }

  void start_agent(Manner manner = Manner::proper) {
    auto process = world_.add_process(host, Config{});
    ASSERT_TRUE(process);
    process_ = *process;
    const int listener =
        world_.network().listen_unix(host, directory_ + "/" + AgentDirectory::socket_name);
    auto agent = std::make_unique<SimulatedAgent>(directory_, listener, manner, heartbeat_);
    agent_ = agent.get();
    ASSERT_TRUE(process_->engine->worker(0).adopt(std::move(agent)));
    ASSERT_TRUE(world_.run_until([&] { return agent_->writer != nullptr; }, seconds(1)));
  }
  void kill_agent() {
    agent_->end();
    world_.kill_process(*process_);
    agent_ = nullptr;
  }
  void pass(Duration time) {
    static_cast<void>(world_.run_until([] { return false; }, time));
  }
  bool registered() const {
    return std::all_of(job_->held.begin(), job_->held.end(),
                       [](const auto& one) { return one->registered(); });
  }
  std::optional<uint32_t> share(size_t which = 0) { return job_->held[which]->share(world_.now()); }
  /// The agent lives on meanwhile.
  std::optional<uint32_t> kept_share(size_t which = 0) {
    agent_->writer->give_heartbeat(world_.now());
    return share(which);
  }

  static constexpr sim::Ip host = sim::ip(10, 0, 0, 1);
  tests::TemporaryFolder temporary_;
  const std::string directory_{temporary_.path()};
  sim::World world_{7};
  Duration heartbeat_ = milliseconds(20);
  Config config_;
  Registering* job_ = nullptr;
  sim::Process* process_ = nullptr;
  SimulatedAgent* agent_ = nullptr;
};

TEST_F(AgentClientTest, AConnectionGetsTheShareOfItsFlow) {
  start_agent();
  job_->enter(2);
  EXPECT_EQ(share(), std::nullopt) << "nothing waits for the agent";
  ASSERT_TRUE(world_.run_until([&] { return registered(); }, milliseconds(50)));
  EXPECT_EQ(share(), 256U);
  EXPECT_EQ(agent_->connections.size(), 1U);
  job_->enter(3);
  ASSERT_TRUE(world_.run_until([&] { return registered(); }, milliseconds(50)));
  EXPECT_EQ(agent_->streams_seen, 1U);
  job_->held.erase(job_->held.begin());
  ASSERT_TRUE(world_.run_until([&] { return agent_->left == 1; }, milliseconds(50)));
  EXPECT_EQ(agent_->connections.size(), 1U);
  job_->held.clear();
  ASSERT_TRUE(world_.run_until([&] { return agent_->streams_ended == 1; }, milliseconds(50)));
}

class PatientAgentClientTest : public AgentClientTest {
 protected:
  PatientAgentClientTest() { config_.agent_silence_ms = 3000; }
};

TEST_F(PatientAgentClientTest, WhatASilentAgentSaidLastHoldsForAsLongAsIsSet) {
  start_agent();
  job_->enter(2);
  ASSERT_TRUE(world_.run_until([&] { return registered(); }, milliseconds(50)));
  kill_agent();
  pass(milliseconds(2800));
  EXPECT_EQ(share(), 256U);
  pass(milliseconds(300));
  EXPECT_EQ(share(), std::nullopt);
}

TEST_F(AgentClientTest, WithoutAnAgentNothingIsSaidAndOneThatComesIsFound) {
  job_->enter(2);
  pass(seconds(30));
  EXPECT_EQ(share(), std::nullopt);
  start_agent();
  ASSERT_TRUE(world_.run_until([&] { return registered(); }, milliseconds(1100)));
  EXPECT_EQ(kept_share(), 256U);
}

TEST_F(AgentClientTest, AnAgentThatComesBackIsToldOfAllConnections) {
  start_agent();
  for (uint8_t to = 2; to < 12; ++to) {
    job_->enter(to);
  }
  ASSERT_TRUE(world_.run_until([&] { return registered(); }, seconds(1)));
  const uint64_t before = agent_->writer->generation();
  kill_agent();
  pass(milliseconds(100));
  EXPECT_EQ(share(), 256U) << "what it said last holds for a moment";
  pass(milliseconds(500));
  EXPECT_EQ(share(), std::nullopt);
  start_agent();
  EXPECT_NE(agent_->writer->generation(), before);
  ASSERT_TRUE(
      world_.run_until([&] { return agent_->connections.size() == 10; }, milliseconds(1100)));
  pass(milliseconds(10));
  for (size_t i = 0; i < 10; ++i) {
    EXPECT_EQ(kept_share(i), 256U);
  }
  EXPECT_EQ(job_->client->attachments(), 2U);
}

TEST_F(AgentClientTest, ARefusedConnectionAsksAgainLater) {
  const test::LogLines log;
  start_agent(Manner::refuses);
  job_->enter(2);
  pass(seconds(1));
  EXPECT_EQ(share(), std::nullopt);
  EXPECT_EQ(log.count("all slots are taken"), 1U) << log.text();
  agent_->set_manner(Manner::proper);
  ASSERT_TRUE(world_.run_until([&] { return registered(); }, seconds(10)));
  EXPECT_EQ(kept_share(), 256U);
  EXPECT_EQ(agent_->streams_seen, 1U);
}

TEST_F(AgentClientTest, WhoeverIsNoProperAgentIsLeftAndTriedAgainWithBackoff) {
  for (const Manner manner : {Manner::turns_out, Manner::other_flow, Manner::garbage, Manner::mute,
                              Manner::other_table, Manner::newer}) {
    start_agent(manner);
    job_->enter(2);
    pass(seconds(20));
    EXPECT_EQ(share(), std::nullopt) << static_cast<int>(manner);
    EXPECT_GE(agent_->streams_seen, 3U) << static_cast<int>(manner);
    EXPECT_LE(agent_->streams_seen, 40U) << static_cast<int>(manner);
    agent_->set_manner(Manner::proper);
    ASSERT_TRUE(world_.run_until([&] { return registered(); }, seconds(12)))
        << static_cast<int>(manner);
    job_->held.clear();
    kill_agent();
    pass(seconds(1));
  }
}

TEST_F(AgentClientTest, ADirectoryThatOthersMayWriteToIsNotUsed) {
  const test::LogLines log;
  start_agent();
  std::filesystem::permissions(directory_, std::filesystem::perms::all);
  job_->enter(2);
  pass(seconds(10));
  EXPECT_EQ(agent_->streams_seen, 0U);
  EXPECT_EQ(log.count("others may write to it"), 1U) << log.text();
}

TEST_F(AgentClientTest, AnAgentThatStandsStillIsNotBelieved) {
  start_agent();
  job_->enter(2);
  ASSERT_TRUE(world_.run_until([&] { return registered(); }, seconds(1)));
  pass(milliseconds(600));
  EXPECT_EQ(share(), std::nullopt);
  agent_->writer->give_heartbeat(world_.now());
  EXPECT_EQ(share(), 256U);
  EXPECT_EQ(job_->client->attachments(), 1U);
}

TEST_F(AgentClientTest, WhatNoTelemetrySpeaksOfIsLeftToTheConnection) {
  start_agent();
  job_->enter(2);
  ASSERT_TRUE(world_.run_until([&] { return registered(); }, seconds(1)));
  FlowAnnouncement one = agent_->connections.begin()->second;
  const auto slot = static_cast<uint32_t>(agent_->connections.begin()->first);
  agent_->writer->write(slot, ha::flow_hash(one.flow), {512, hint_layout::untold}, world_.now());
  EXPECT_EQ(share(), std::nullopt);
  agent_->writer->write(slot, ha::flow_hash(one.flow), {0, hint_layout::backpressure},
                        world_.now());
  EXPECT_EQ(share(), 0U);
}

TEST_F(AgentClientTest, ThousandsAreToldInPortions) {
  constexpr size_t many = 9000;
  for (size_t i = 0; i < many; ++i) {
    job_->enter(static_cast<uint8_t>(i));
  }
  start_agent();
  ASSERT_TRUE(world_.run_until([&] { return registered(); }, seconds(20)));
  EXPECT_EQ(agent_->streams_seen, 1U) << "no stream was given up";
  EXPECT_EQ(agent_->connections.size(), many);
  // Half of them leave while the next agent is told of the others.
  kill_agent();
  start_agent();
  ASSERT_TRUE(world_.run_until([&] { return agent_->connections.size() > 100; }, seconds(2)));
  job_->held.resize(many / 2);
  ASSERT_TRUE(
      world_.run_until([&] { return agent_->connections.size() == many / 2; }, seconds(20)));
  pass(milliseconds(100));
  EXPECT_TRUE(registered());
  EXPECT_EQ(agent_->connections.size(), many / 2);
  EXPECT_EQ(agent_->streams_seen, 1U);
}

/// Announcements go on with each answer, also with those that nobody waits for any more.
TEST_F(AgentClientTest, WhoLeavesBeforeItsAnswerHoldsUpNobody) {
  start_agent();
  job_->enter(1);
  ASSERT_TRUE(world_.run_until([&] { return registered(); }, seconds(1)));
  for (int i = 0; i < 300; ++i) {
    job_->enter(2);
    ASSERT_FALSE(registered()) << "it was answered before";
    job_->held.pop_back();
    pass(milliseconds(1));
  }
  EXPECT_EQ(agent_->left, 300U);
  job_->enter(3);
  EXPECT_TRUE(world_.run_until([&] { return registered(); }, seconds(1)));
}

TEST_F(AgentClientTest, ThousandsThatWereRefusedAskAgain) {
  start_agent(Manner::refuses);
  for (size_t i = 0; i < 1000; ++i) {
    job_->enter(static_cast<uint8_t>(i));
  }
  pass(seconds(1));
  EXPECT_TRUE(agent_->connections.empty());
  agent_->set_manner(Manner::proper);
  ASSERT_TRUE(world_.run_until([&] { return registered(); }, seconds(20)));
  EXPECT_EQ(agent_->streams_seen, 1U);
}

TEST_F(AgentClientTest, AnAgentThatBeatsSlowlyIsNotSilent) {
  heartbeat_ = seconds(1);
  start_agent();
  job_->enter(2);
  ASSERT_TRUE(world_.run_until([&] { return registered(); }, seconds(1)));
  agent_->writer->give_heartbeat(world_.now());
  pass(milliseconds(3900));
  EXPECT_EQ(share(), 256U);
  pass(milliseconds(200));
  EXPECT_EQ(share(), std::nullopt);
}

TEST_F(AgentClientTest, ManyConnectionsComeAndGo) {
  start_agent();
  Random random(3);
  for (int step = 0; step < 3000; ++step) {
    if (job_->held.size() < 20 && random.chance(0.5)) {
      job_->enter(static_cast<uint8_t>(2 + random.below(40)));
    } else if (!job_->held.empty()) {
      job_->held.erase(job_->held.begin() +
                       static_cast<ptrdiff_t>(random.below(job_->held.size())));
    }
    if (random.chance(0.3)) {
      pass(Duration(random.below(2'000'000)));
    }
  }
  pass(seconds(6));
  EXPECT_TRUE(registered());
  EXPECT_EQ(agent_->connections.size(), job_->held.size());
  EXPECT_GT(agent_->left, 100U);
}

}  // namespace
}  // namespace nccl_ha
