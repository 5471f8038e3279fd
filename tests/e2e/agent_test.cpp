// The transport agent as its clients and switches meet it: the built nccl-ha, real sockets.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "actors/agent_client.h"
#include "actors/telemetry_packet.h"
#include "runtime/base/random.h"
#include "runtime/engine/engine.h"
#include "tests/support/agent_process.h"
#include "tests/support/agent_speaker.h"
#include "tests/support/own_time.h"
#include "tests/support/tool_runner.h"
#include "tests/support/until.h"
#include "tools/agent/telemetry_port.h"

namespace nccl_ha::tests {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using test::AgentProcess;
using test::AgentSocket;
using test::flow_to_host;
using test::Seen;
using test::Speaker;
using test::until;
using test::Wire;

uint64_t telemetry_count(const AgentProcess& agent, const char* name) {
  return agent.status()["telemetry"][name].get<uint64_t>();
}

TEST(Agent, RegistersFlowsAndTellsTheirShares) {
  AgentProcess agent(NHA_TOOL_FILE);
  AgentSocket job(agent.socket_path());
  ASSERT_TRUE(job.greet());
  const auto entered = job.enter(1, 2);
  ASSERT_TRUE(entered);
  ASSERT_EQ(entered->type, AgentMessage::entered);
  const Seen seen(agent);
  EXPECT_EQ(seen.of(*entered).hint, (Hint{512, hint_layout::untold}));
  Speaker speaker(agent);
  speaker.say(1, 200, flow_to_host(2).flow);
  EXPECT_TRUE(until([&] { return seen.of(*entered).hint.share < 300; }));
  EXPECT_EQ(seen.of(*entered).hint.flags, 0U);
  const json status = agent.status();
  EXPECT_EQ(status["connections"], 1);
  EXPECT_EQ(status["processes"], 1);
  EXPECT_EQ(status["flows"][0]["destination"], "10.1.0.2");
  ASSERT_TRUE(job.send(encode_agent(AgentMessage::leave, 1)));
  EXPECT_EQ(job.receive()->type, AgentMessage::left);
  EXPECT_EQ(seen.of(*entered).state, HintReading::State::foreign);
  EXPECT_EQ(agent.status()["slots"]["used"], 0);
}

// From the datagram's way to the kernel until another process can read the share, but for the time
// in which a busy machine let neither of them run.
TEST(Agent, ADatagramMovesTheShareWithinTenMilliseconds) {
  AgentProcess agent(NHA_TOOL_FILE);
  AgentSocket job(agent.socket_path());
  ASSERT_TRUE(job.greet());
  const auto entered = job.enter(1, 2);
  const Seen seen(agent);
  Speaker speaker(agent);
  SteadyClock clock;
  std::vector<double> ms;
  for (int i = 0; i < 20; ++i) {
    // Until the last one no longer counts as near in time.
    const Instant later = clock.now() + milliseconds(60);
    ASSERT_TRUE(until([&] { return clock.now() >= later; }));
    const uint32_t before = seen.of(*entered).hint.share;
    const test::OwnTime since_it_was_said({agent.pid(), getpid()});
    speaker.say(i % 2 == 0 ? 1 : 0, 220);
    speaker.say(i % 2 == 0 ? 0 : 1, 0);
    ASSERT_TRUE(until([&] { return seen.of(*entered).hint.share != before; }));
    ms.push_back(since_it_was_said.ms());
  }
  std::sort(ms.begin(), ms.end());
  std::printf("datagram to share: median %.2f ms, longest %.2f ms\n", ms[10], ms.back());
  // But for one that the kernel did not let run.
  EXPECT_LT(ms[18], 10);
}

TEST(Agent, WhatNamesAFlowGoesBeforeWhatIsSaidOfAll) {
  AgentProcess agent(NHA_TOOL_FILE);
  AgentSocket job(agent.socket_path());
  ASSERT_TRUE(job.greet());
  const auto one = job.enter(1, 1);
  const auto other = job.enter(2, 2);
  const ToolRun run =
      run_program(NHA_TOOL_FILE, {"agent", "simulate-switch",
                                  "0s sup 20; 0s sout 20; 0s sup 250 10.0.0.1 10.1.0.2", "--to",
                                  "127.0.0.1:" + std::to_string(agent.telemetry_port()), "--listen",
                                  "127.0.0.1:0", "--keys", agent.keys(), "--linger", "0.2", "-q"});
  EXPECT_EQ(run.status, 0) << run.err;
  const Seen seen(agent);
  EXPECT_EQ(seen.of(*other).hint, (Hint{0, hint_layout::backpressure}));
  EXPECT_EQ(seen.of(*one).hint, (Hint{512, 0}));
}

TEST(Agent, BackpressureStopsARailAndReleasesIt) {
  AgentProcess agent(NHA_TOOL_FILE);
  AgentSocket job(agent.socket_path());
  ASSERT_TRUE(job.greet());
  const auto entered = job.enter(1, 2);
  const Seen seen(agent);
  const ToolRun run = run_program(
      NHA_TOOL_FILE, {"agent", "simulate-switch", "0s sup 0; 300ms sup 250; 600ms sup 0", "--to",
                      "127.0.0.1:" + std::to_string(agent.telemetry_port()), "--listen",
                      "127.0.0.1:0", "--keys", agent.keys(), "--linger", "0.4"});
  EXPECT_EQ(run.status, 0) << run.err;
  const HintReading after = seen.of(*entered);
  EXPECT_EQ(after.hint.flags, 0U);
  EXPECT_GT(after.hint.share, 450U);
  EXPECT_GE(agent.status()["hints"]["backpressure"].get<int>(), 1);
}

TEST(Agent, TenThousandShortLivedClientsLeaveNothingBehind) {
  AgentProcess agent(NHA_TOOL_FILE, "\"slots\": 64");
  Random random(1);
  for (int i = 0; i < 10000; ++i) {
    AgentSocket job(agent.socket_path());
    ASSERT_TRUE(job.connected()) << i;
    switch (random.below(4)) {
      case 0:  // gone before a word
        break;
      case 1: {  // in the middle of a message
        const auto hello = encode(AgentHello{});
        ASSERT_TRUE(job.send(std::span(hello).first(1 + random.below(hello.size() - 1))));
        break;
      }
      case 2:  // gone before the answer
        ASSERT_TRUE(job.greet()) << i;
        ASSERT_TRUE(job.send(encode(1, flow_to_host(static_cast<uint16_t>(random.below(60))))));
        break;
      default: {
        ASSERT_TRUE(job.greet()) << i;
        const auto entered = job.enter(1, static_cast<uint16_t>(random.below(60)));
        ASSERT_TRUE(entered && entered->type == AgentMessage::entered) << i;
      }
    }
  }
  EXPECT_TRUE(until([&] { return agent.status()["slots"]["used"] == 0; }));
  const json status = agent.status();
  EXPECT_EQ(status["connections"], 0);
  EXPECT_EQ(status["processes"], 0);
  EXPECT_GE(status["registrations"]["accepted"].get<uint64_t>(), 10000U);
}

TEST(Agent, SlotsOfProcessesThatAreKilledAreFree) {
  AgentProcess agent(NHA_TOOL_FILE, "\"slots\": 8");
  for (int round = 0; round < 20; ++round) {
    std::array<int, 2> ready{};
    ASSERT_EQ(pipe(ready.data()), 0);
    const pid_t child = fork();
    if (child == 0) {
      AgentSocket job(agent.socket_path());
      bool good = job.greet();
      for (uint16_t to = 0; to < 8; ++to) {
        const auto entered = job.enter(to, to);
        good = good && entered && entered->type == AgentMessage::entered;
      }
      const char word = good ? 'y' : 'n';
      static_cast<void>(!write(ready[1], &word, 1));
      pause();
      _exit(0);
    }
    char word = 0;
    ASSERT_EQ(read(ready[0], &word, 1), 1);
    EXPECT_EQ(word, 'y') << round;
    close(ready[0]);
    close(ready[1]);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    ASSERT_TRUE(until([&] { return agent.status()["slots"]["used"] == 0; })) << round;
  }
  EXPECT_EQ(agent.status()["registrations"]["lost"], 20);
}

TEST(Agent, AFullTableIsAClearAnswer) {
  AgentProcess agent(NHA_TOOL_FILE, "\"slots\": 2, \"connections_per_process\": 3");
  AgentSocket job(agent.socket_path());
  ASSERT_TRUE(job.greet());
  EXPECT_EQ(job.enter(1, 1)->type, AgentMessage::entered);
  EXPECT_EQ(job.enter(2, 2)->type, AgentMessage::entered);
  const auto full = job.enter(3, 3);
  ASSERT_EQ(full->type, AgentMessage::refuse);
  EXPECT_EQ(full->connection, 3U);
  const auto why = decode_agent_refusal(full->payload);
  EXPECT_EQ(why->code, Errc::no_memory);
  EXPECT_NE(why->text.find("all 2 slots"), std::string::npos) << why->text;
  EXPECT_EQ(job.enter(4, 1)->type, AgentMessage::entered) << "a flow that has a slot needs none";
  EXPECT_EQ(job.enter(5, 1)->type, AgentMessage::refuse) << "a process has its limit";
  ASSERT_TRUE(job.send(encode_agent(AgentMessage::leave, 2)));
  EXPECT_EQ(job.receive()->type, AgentMessage::left);
  EXPECT_EQ(job.enter(6, 3)->type, AgentMessage::entered);
  EXPECT_EQ(agent.status()["connections"], 3);
}

TEST(Agent, GarbageOnTheSocketEndsOnlyWhoSentIt) {
  AgentProcess agent(NHA_TOOL_FILE);
  AgentSocket job(agent.socket_path());
  ASSERT_TRUE(job.greet());
  ASSERT_EQ(job.enter(1, 1)->type, AgentMessage::entered);
  Random random(7);
  for (int i = 0; i < 200; ++i) {
    AgentSocket other(agent.socket_path());
    ASSERT_TRUE(other.connected());
    std::vector<std::byte> bytes(1 + random.below(3000));
    for (std::byte& byte : bytes) {
      byte = static_cast<std::byte>(random.next());
    }
    if (i % 2 == 0) {  // behind a header that is right
      const auto good = encode(1, flow_to_host(1));
      std::copy_n(good.begin(), std::min(bytes.size(), size_t{agent_header_bytes}), bytes.begin());
      static_cast<void>(other.greet());
    }
    static_cast<void>(other.send(bytes));
    // Refused with a reason, or the end; a message that is not whole yet may just wait.
    if (i % 2 == 1) {
      const auto answer = other.receive();
      EXPECT_TRUE(!answer || answer->type == AgentMessage::refuse) << i;
    }
  }
  AgentSocket silent_about_itself(agent.socket_path());
  ASSERT_TRUE(silent_about_itself.send(encode(1, flow_to_host(5))));
  EXPECT_EQ(silent_about_itself.receive()->type, AgentMessage::refuse);
  EXPECT_EQ(job.enter(2, 2)->type, AgentMessage::entered);
  EXPECT_TRUE(until([&] { return agent.status()["connections"] == 2; }));
  EXPECT_GE(agent.status()["registrations"]["malformed"].get<int>(), 100);
}

TEST(Agent, ForgedRepeatedOldAndMalformedTelemetryDoesNotCount) {
  AgentProcess agent(NHA_TOOL_FILE);
  AgentSocket job(agent.socket_path());
  ASSERT_TRUE(job.greet());
  const auto entered = job.enter(1, 1);
  const Seen seen(agent);
  Speaker speaker(agent);
  const auto good = speaker.datagram(1, 0);
  // Each byte that is another one; each length.
  for (size_t at = 0; at < good.size(); ++at) {
    auto bad = good;
    bad[at] ^= std::byte{1};
    speaker.wire().send(bad);
  }
  for (size_t length = 1; length < good.size(); length += 3) {
    speaker.wire().send(std::span(good).first(length));
  }
  auto untagged = encode(TelemetryHeader{telemetry_version, TelemetryType::congestion, 1, 1,
                                         tools::time_of_day(), 0, 0},
                         std::span<const CongestionEntry>{}, false);
  speaker.wire().send(untagged);
  EXPECT_TRUE(until([&] { return telemetry_count(agent, "forged") >= 60; }));
  EXPECT_EQ(telemetry_count(agent, "taken"), 0U);
  EXPECT_EQ(seen.of(*entered).hint, (Hint{512, hint_layout::untold}));
  speaker.wire().send(good);
  EXPECT_TRUE(until([&] { return telemetry_count(agent, "taken") == 1; }));
  for (int i = 0; i < 100; ++i) {
    speaker.wire().send(good);
  }
  EXPECT_TRUE(until([&] { return telemetry_count(agent, "repeated") == 100; }));
  EXPECT_EQ(telemetry_count(agent, "taken"), 1U);
  EXPECT_NE(agent.log().find("not authenticated"), std::string::npos) << agent.log();
  EXPECT_NE(agent.log().find("had come before"), std::string::npos) << agent.log();
}

TEST(Agent, TelemetryOfBeforeItsStartDoesNotCount) {
  AgentProcess agent(NHA_TOOL_FILE);
  Speaker speaker(agent);
  const auto old = speaker.datagram(1, 255);
  speaker.wire().send(old);
  ASSERT_TRUE(until([&] { return telemetry_count(agent, "taken") == 1; }));
  agent.signal(SIGKILL);
  EXPECT_EQ(agent.wait(), 128 + SIGKILL);
  agent.start();
  const Wire wire(agent.telemetry_port());
  wire.send(old);
  EXPECT_TRUE(until([&] { return telemetry_count(agent, "out_of_time") == 1; }));
}

TEST(Agent, TelemetryWithoutKeysIsTroubleUntilThereAreSome) {
  const char* none = R"("telemetry": {"listen": "127.0.0.1:0"})";
  AgentProcess agent(NHA_TOOL_FILE, none);
  const auto trouble = [&] { return agent.status()["telemetry"]["trouble"].get<std::string>(); };
  EXPECT_NE(trouble().find("there are no keys"), std::string::npos) << trouble();
  agent.write_settings(none);
  agent.signal(SIGHUP);
  ASSERT_TRUE(until([&] { return agent.status()["reloads"] == 1; }));
  EXPECT_NE(trouble().find("there are no keys"), std::string::npos) << "there are still none";
  agent.write_settings(R"("telemetry": {"listen": "127.0.0.1:0", "keys": ")" + agent.keys() +
                       "\"}");
  agent.signal(SIGHUP);
  ASSERT_TRUE(until([&] { return agent.status()["reloads"] == 2; }));
  EXPECT_EQ(trouble(), "");
}

TEST(Agent, OnlySwitchesOnTheListAreHeard) {
  AgentProcess agent(NHA_TOOL_FILE,
                     R"("telemetry": {"listen": "127.0.0.1:0", "allow": ["10.0.0.0/8"],
    "unauthenticated": true})");
  Speaker speaker(agent);
  speaker.say(1, 255);
  EXPECT_TRUE(until([&] { return telemetry_count(agent, "not_allowed") == 1; }));
  EXPECT_NE(agent.log().find("is not allowed"), std::string::npos) << agent.log();
}

TEST(Agent, AProcessOfAnotherUserIsRefusedWithAReason) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "only root can be somebody else";
  }
  AgentProcess agent(NHA_TOOL_FILE, "\"users\": [4711]");
  std::array<int, 2> result{};
  ASSERT_EQ(pipe(result.data()), 0);
  for (const auto& [user, let_in] : {std::pair{uid_t{4712}, false}, std::pair{uid_t{4711}, true}}) {
    std::filesystem::permissions(std::filesystem::path(agent.directory()).parent_path(),
                                 std::filesystem::perms(0755));
    const pid_t child = fork();
    if (child == 0) {
      char word = 'x';
      if (setuid(user) == 0) {
        AgentSocket job(agent.socket_path());
        word = job.greet() ? 'y' : 'n';
      }
      static_cast<void>(!write(result[1], &word, 1));
      _exit(0);
    }
    waitpid(child, nullptr, 0);
    char word = 0;
    ASSERT_EQ(read(result[0], &word, 1), 1);
    EXPECT_EQ(word, let_in ? 'y' : 'n') << user;
  }
  close(result[0]);
  close(result[1]);
  EXPECT_NE(agent.log().find("user 4712 may not register"), std::string::npos) << agent.log();
}

TEST(Agent, AUserLeavesPlacesAndSlotsForOthers) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "only root can be somebody else";
  }
  AgentProcess agent(NHA_TOOL_FILE, "\"processes\": 8, \"slots\": 8");
  std::filesystem::permissions(std::filesystem::path(agent.directory()).parent_path(),
                               std::filesystem::perms(0755));
  std::array<int, 2> result{};
  std::array<int, 2> end{};
  ASSERT_TRUE(pipe(result.data()) == 0 && pipe(end.data()) == 0);
  const pid_t child = fork();
  if (child == 0) {
    close(end[1]);
    std::array<char, 2> counts{};
    std::vector<std::unique_ptr<AgentSocket>> jobs;
    for (int i = 0; i < 8 && (i != 0 || setuid(4711) == 0); ++i) {
      jobs.push_back(std::make_unique<AgentSocket>(agent.socket_path()));
      counts[0] = static_cast<char>(counts[0] + (jobs.back()->greet() ? 1 : 0));
    }
    for (uint16_t to = 1; to <= 8 && !jobs.empty(); ++to) {
      const auto entered = jobs.front()->enter(to, to);
      const bool in = entered && entered->type == AgentMessage::entered;
      counts[1] = static_cast<char>(counts[1] + (in ? 1 : 0));
    }
    char none = 0;
    static_cast<void>(!write(result[1], counts.data(), counts.size()) || read(end[0], &none, 1));
    _exit(0);
  }
  std::array<char, 2> counts{};
  ASSERT_EQ(read(result[0], counts.data(), counts.size()), 2);
  EXPECT_EQ(counts, (std::array<char, 2>{4, 4})) << "half of either";
  AgentSocket other(agent.socket_path());
  EXPECT_TRUE(other.greet());
  const auto entered = other.enter(1, 100);
  EXPECT_TRUE(entered && entered->type == AgentMessage::entered);
  for (const int fd : {result[0], result[1], end[0], end[1]}) {
    close(fd);
  }
  waitpid(child, nullptr, 0);
  EXPECT_NE(agent.log().find("kept for other users"), std::string::npos) << agent.log();
}

TEST(Agent, AStreamIsToldTheStatusOnce) {
  AgentProcess agent(NHA_TOOL_FILE);
  AgentSocket job(agent.socket_path());
  const auto question = encode_agent(AgentMessage::ask_status, 0);
  std::vector<std::byte> many;
  for (int i = 0; i < 500; ++i) {
    many.insert(many.end(), question.begin(), question.end());
  }
  ASSERT_TRUE(job.send(many));
  int ends = 0;
  while (const auto answer = job.receive()) {
    ends += answer->type == AgentMessage::status_end ? 1 : 0;
  }
  EXPECT_EQ(ends, 1);
}

TEST(Agent, SighupReadsSettingsAndBadOnesChangeNothing) {
  AgentProcess agent(NHA_TOOL_FILE);
  AgentSocket job(agent.socket_path());
  ASSERT_TRUE(job.greet());
  const auto entered = job.enter(1, 1);
  agent.write_settings(R"("policy": {"floor": 400, "ceiling": 600}, "slots": 9)");
  agent.signal(SIGHUP);
  ASSERT_TRUE(agent.hears("RELOADING=1"));
  ASSERT_TRUE(agent.hears("READY=1"));
  const Seen seen(agent);
  Speaker speaker(agent);
  const auto settle = [&] {
    for (int i = 0; i < 50; ++i) {
      speaker.say(1, 230);
    }
    return seen.of(*entered).hint.share == 400;
  };
  EXPECT_TRUE(until(settle));
  EXPECT_NE(agent.log().find("a restart is needed for a change of slots"), std::string::npos)
      << agent.log();
  // What was not taken is named again, as it still is not in force.
  agent.write_settings(R"("slots": 9, "connections_per_process": 1)");
  agent.signal(SIGHUP);
  ASSERT_TRUE(agent.hears("READY=1"));
  EXPECT_EQ(count(agent.log(), "a restart is needed for a change of slots"), 2U) << agent.log();
  EXPECT_EQ(job.enter(2, 2)->type, AgentMessage::refuse) << "connections_per_process is taken";
  agent.write_settings(R"("policy": {"flor": 1})");
  agent.signal(SIGHUP);
  ASSERT_TRUE(agent.hears("READY=1"));
  EXPECT_NE(agent.log().find("policy.flor: there is no such setting"), std::string::npos)
      << agent.log();
  EXPECT_EQ(agent.status()["reloads"], 2);
}

TEST(Agent, SigtermEndsInGoodOrderAndASecondAgentIsRefused) {
  AgentProcess agent(NHA_TOOL_FILE);
  const ToolRun second = run_program(NHA_TOOL_FILE, {"agent", "--settings", agent.settings_path()});
  EXPECT_EQ(second.status, 2);
  EXPECT_NE(second.err.find("another agent serves in"), std::string::npos) << second.err;
  agent.signal(SIGTERM);
  EXPECT_TRUE(agent.hears("STOPPING=1"));
  EXPECT_EQ(agent.wait(), 0);
  const ToolRun status =
      run_program(NHA_TOOL_FILE, {"agent", "status", "--dir", agent.directory()});
  EXPECT_EQ(status.status, 2);
  EXPECT_NE(status.err.find("does not run"), std::string::npos) << status.err;
}

TEST(Agent, SigtermWaitsForThoseWhoAreRegistered) {
  AgentProcess agent(NHA_TOOL_FILE, "\"drain_ms\": 600000");
  auto job = std::make_unique<AgentSocket>(agent.socket_path());
  ASSERT_TRUE(job->greet());
  agent.signal(SIGTERM);
  ASSERT_TRUE(agent.hears("STOPPING=1"));
  EXPECT_EQ(job->enter(1, 1)->type, AgentMessage::entered);
  job.reset();
  EXPECT_EQ(agent.wait(), 0);
}

/// A job's side of it, as the plugin has it.
class JobActor final : public Actor {
 public:
  explicit JobActor(size_t flows) : flows_(flows) {}
  const char* name() const override { return "job"; }
  void start(Context& context) override {
    context_ = &context;
    client_ = AgentClient::of(context);
    for (size_t i = 0; i < flows_; ++i) {
      held_.push_back(client_->enter(flow_to_host(static_cast<uint16_t>(i))));
    }
    timer_.bind([](void* self) { static_cast<JobActor*>(self)->look(); }, this);
    look();
  }
  void on(const Message&) override {}
  void stop() override {
    context_->timers().cancel(timer_);
    held_.clear();
    client_.reset();
  }

  std::atomic<size_t> shares{0};  ///< flows of which the agent says something
  std::atomic<uint64_t> attachments{0};
  std::atomic<uint64_t> looks{0};

 private:
  void look() {
    SteadyClock clock;
    size_t now = 0;
    for (const auto& one : held_) {
      now += one->share(clock.now()) ? 1 : 0;
    }
    shares.store(now, std::memory_order_relaxed);
    attachments.store(client_->attachments(), std::memory_order_relaxed);
    looks.fetch_add(1, std::memory_order_relaxed);
    context_->timers().arm(timer_, context_->now() + milliseconds(1));
  }

  const size_t flows_;
  Context* context_ = nullptr;
  std::shared_ptr<AgentClient> client_;
  std::vector<std::unique_ptr<AgentClient::Registration>> held_;
  Timer timer_;
};

// Whatever the agent does, the job's thread goes on, and every agent hears of all its flows.
TEST(Agent, AJobOutlivesAgentsThatAreKilled) {
  AgentProcess agent(NHA_TOOL_FILE);
  Config config;
  config.agent_dir = agent.directory();
  config.counters_dir = "";
  auto engine = Engine::start(config);
  ASSERT_TRUE(engine);
  constexpr size_t flows = 50;
  auto made = std::make_unique<JobActor>(flows);
  JobActor& job = *made;
  ASSERT_TRUE((*engine)->worker(0).adopt(std::move(made)));
  for (uint64_t round = 1; round <= 5; ++round) {
    ASSERT_TRUE(until([&] { return job.attachments.load() == round; })) << round;
    ASSERT_TRUE(until([&] { return agent.status()["connections"] == flows; })) << round;
    Speaker speaker(agent);
    ASSERT_TRUE(until([&] {
      speaker.say(0, static_cast<uint8_t>(10 * round));
      return job.shares.load() == flows;
    })) << round;
    const uint64_t looked = job.looks.load();
    agent.signal(round % 2 == 0 ? SIGKILL : SIGTERM);
    static_cast<void>(agent.wait());
    EXPECT_TRUE(until([&] { return job.looks.load() > looked + 5; }));
    if (round == 3) {
      // An agent that stays away: the job's own policy decides.
      EXPECT_TRUE(until([&] { return job.shares.load() == 0; }));
    }
    agent.start();
  }
}

// A share is gone on with by the next agent.
TEST(Agent, ARestartKeepsShares) {
  AgentProcess agent(NHA_TOOL_FILE);
  auto job = std::make_unique<AgentSocket>(agent.socket_path());
  ASSERT_TRUE(job->greet());
  auto entered = job->enter(1, 1);
  Speaker speaker(agent);
  {
    const Seen seen(agent);
    ASSERT_TRUE(until([&] {
      speaker.say(1, 200);
      return seen.of(*entered).hint.share < 150;
    }));
  }
  agent.signal(SIGKILL);
  static_cast<void>(agent.wait());
  agent.start();
  job = std::make_unique<AgentSocket>(agent.socket_path());
  ASSERT_TRUE(job->greet());
  entered = job->enter(1, 1);
  const Seen seen(agent);
  EXPECT_LT(seen.of(*entered).hint.share, 300U);
}

}  // namespace
}  // namespace nccl_ha::tests
