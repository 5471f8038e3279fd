// Real agents and switches beside traffic: what the kernel counts on each rail.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/random.h"
#include "runtime/telemetry/hint_layout.h"
#include "tests/support/agent_lab.h"
#include "tests/support/agent_process.h"
#include "tests/support/until.h"

namespace nccl_ha::tests {
namespace {

using std::chrono::milliseconds;
using test::AgentSocket;
using test::flow_to_host;
using test::until;

constexpr uint64_t settling = 24'000'000;  ///< more than is under way when a hint changes
constexpr uint64_t measured = 120'000'000;
/// Goes on until the lab ends.
constexpr const char* endless = "pt2pt --reuse -c 0 -b 8M -e 8M -w 0 -I 1000000 --timeout 100";

std::string both(int share) {
  return R"("policy": {"floor": )" + std::to_string(share) + R"(, "ceiling": )" +
         std::to_string(share) + "}";
}

/// Keeps a switch talking beside the test.
class Switch {
 public:
  Switch(const AgentLab& lab, const std::string& script)
      : played_(std::async(std::launch::async, [&lab, script] { return lab.play(script); })) {}
  ToolRun end() { return played_.get(); }

 private:
  std::future<ToolRun> played_;
};

TEST(AgentInLab, HintsAreTheSharesOfBytesOnTheWire) {
  AgentLab lab(NHA_TOOL_FILE, "pt2pt --reuse -b 8M -e 8M -w 0 -I 120 --timeout 90");
  ASSERT_TRUE(lab.up());
  ASSERT_TRUE(lab.slow_down("800mbit"));
  Switch talking(lab, "20s sup 0");
  for (const int hint : {0, 256, 512, 1024}) {
    ASSERT_TRUE(lab.settle(both(hint)));
    ASSERT_TRUE(until([&] { return lab.share() == hint; })) << hint << ": " << lab.share();
    lab.sent_in(settling);
    const RailBytes sent = lab.sent_in(measured);
    ASSERT_GE(sent.sout + sent.sup, measured) << "the traffic has ended";
    EXPECT_NEAR(share_of(sent), hint / 1024.0, 0.02)
        << "hint " << hint << ": " << sent.sout << " bytes over SOUT, " << sent.sup << " over SUP";
    std::printf("hint %4d: %.4f of the bytes over SUP\n", hint, share_of(sent));
  }
  const ToolRun ended = lab.lab().wait();
  EXPECT_EQ(ended.status, 0) << ended.out << ended.err;
  EXPECT_EQ(count(ended.out, "Out of bounds values : 0 OK"), 1U) << ended.out;
}

/// A step that a switch has played; nothing: it never did.
std::optional<Instant> time_of(const ToolRun& played, const std::string& step) {
  const size_t clock = played.out.find(" is ");
  const size_t at = played.out.rfind('\n', played.out.find(step));
  if (clock == std::string::npos || at == std::string::npos) {
    return std::nullopt;
  }
  const Instant begun{Duration(std::stoll(played.out.substr(clock + 4)))};
  return begun + Duration(static_cast<int64_t>(std::stod(played.out.substr(at)) * 1e9));
}

TEST(AgentInLab, CongestionOnSupShiftsTrafficWithinTenMilliseconds) {
  AgentLab lab(NHA_TOOL_FILE, endless);
  std::vector<double> ms;
  for (int round = 0; round < 5; ++round) {
    ASSERT_TRUE(lab.up());
    RailWatch seen(lab);
    const ToolRun played = lab.play("0.5s sup 225");
    seen.end();
    const auto said = time_of(played, "rail 1 level 225");
    ASSERT_TRUE(said) << played.out << played.err;
    EXPECT_NEAR(seen.share(*said, milliseconds(-100), Duration{}), 0.5, 0.05);
    ms.push_back(seen.ms_until(*said, [](double share) { return share < 0.4; }));
    lab.end_agent(SIGKILL, true);
  }
  std::sort(ms.begin(), ms.end());
  std::printf("the share of SUP is below 0.4 %.2f to %.2f ms after the datagram, 5 times\n",
              ms.front(), ms.back());
  EXPECT_GT(ms.front(), 0) << "it never was";
  EXPECT_LT(ms.back(), 10);
}

TEST(AgentInLab, BackpressureEmptiesARailAndReleasesIt) {
  AgentLab lab(NHA_TOOL_FILE, endless);
  ASSERT_TRUE(lab.up());
  RailWatch seen(lab);
  const ToolRun played =
      lab.play("400ms sup 250; 800ms sup 0; 1300ms sout 250; 1700ms sout 0; 2100ms sout 0");
  seen.end();
  const auto said = time_of(played, "rail 1 level 250");
  ASSERT_TRUE(said) << played.out << played.err;
  EXPECT_GT(seen.share(*said, milliseconds(-200), Duration{}), 0.4);
  const double stopped = seen.ms_until(*said, [](double share) { return share < 0.02; });
  std::printf("SUP is empty after %.2f ms\n", stopped);
  EXPECT_GE(stopped, 0);
  EXPECT_LT(stopped, 50);
  EXPECT_LT(seen.share(*said, milliseconds(50), milliseconds(400)), 0.01);
  EXPECT_GT(seen.share(*said, milliseconds(700), milliseconds(900)), 0.4) << "it was released";
  EXPECT_GT(seen.share(*said, milliseconds(950), milliseconds(1300)), 0.99) << "SOUT is pressed";
  EXPECT_LT(seen.share(*said, milliseconds(1600), milliseconds(1750)), 0.6) << "and released";
  EXPECT_GE(lab.status()["hints"]["backpressure"].get<int>(), 2);
}

/// Every byte is checked; lasts about ten seconds on rails of 800 Mb/s.
constexpr const char* checked = "pt2pt --reuse -b 8M -e 8M -w 0 -I 250 --timeout 90";
constexpr Duration pause_max = milliseconds(250);

/// As if the agent that was stopped had been in the middle of a write to that slot.
void begin_a_write(const AgentLab& lab, uint32_t slot) {
  const int fd = open((lab.folder() + "/0/hints").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  const size_t at = sizeof(hint_layout::FileHeader) + slot * sizeof(hint_layout::Slot);
  void* base =
      mmap(nullptr, at + sizeof(hint_layout::Slot), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  ASSERT_NE(base, MAP_FAILED);
  reinterpret_cast<hint_layout::Slot*>(static_cast<std::byte*>(base) + at)->sequence.fetch_add(1);
  munmap(base, at + sizeof(hint_layout::Slot));
}

TEST(AgentInLab, AgentsKilledInTheMiddleOfAWriteStopNoTraffic) {
  AgentLab lab(NHA_TOOL_FILE, checked);
  ASSERT_TRUE(lab.up());
  ASSERT_TRUE(lab.slow_down("800mbit"));
  RailWatch watch(lab);
  for (int round = 0; round < 4; ++round) {
    Switch talking(lab, "300ms sup 100");
    ASSERT_TRUE(until([&] {
      const auto now = lab.status();
      return now.is_object() && !now["flows"].empty() && !now["flows"][0]["untold"].get<bool>();
    })) << round;
    const auto slot = lab.status()["flows"][0]["slot"].get<uint32_t>();
    ASSERT_EQ(kill(lab.agent_process(), SIGSTOP), 0);
    begin_a_write(lab, slot);
    const RailBytes beside = lab.sent_in(settling);  // while the slot stays half written
    EXPECT_GE(beside.sout + beside.sup, settling) << round;
    talking.end();
    lab.end_agent(SIGKILL, false);
    ASSERT_TRUE(lab.up()) << "the job registers with the next agent";
    EXPECT_EQ(lab.status()["slots"]["used"], 1);
  }
  watch.end();
  EXPECT_LT(watch.longest_pause(), pause_max);
  const ToolRun ended = lab.lab().wait();
  EXPECT_EQ(ended.status, 0) << ended.out << ended.err;
  EXPECT_EQ(count(ended.out, "Out of bounds values : 0 OK"), 1U) << ended.out;
}

/// Clients that come and go, each with another fault.
void crowd(const std::string& socket, int clients) {
  Random random(1);
  for (int i = 0; i < clients; ++i) {
    AgentSocket one(socket);
    ASSERT_TRUE(one.connected()) << i;
    switch (random.below(4)) {
      case 0:  // gone before a word
        break;
      case 1: {
        std::vector<std::byte> garbage(1 + random.below(200));
        for (std::byte& byte : garbage) {
          byte = static_cast<std::byte>(random.next());
        }
        static_cast<void>(one.send(garbage));
        break;
      }
      case 2:  // gone before the answer
        ASSERT_TRUE(one.greet()) << i;
        static_cast<void>(one.send(encode(1, flow_to_host(static_cast<uint16_t>(i)))));
        break;
      default:
        ASSERT_TRUE(one.greet()) << i;
        ASSERT_TRUE(one.enter(1, static_cast<uint16_t>(i))) << i;
    }
  }
}

/// Sent to the agent's port from its own host.
constexpr const char* garbage_and_repetitions = R"(
import os, socket, subprocess, sys
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for i in range(300):
    out.sendto(os.urandom(1 + 4 * i), ("127.0.0.1", 7471))
heard = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
heard.bind(("127.0.0.1", 0))
switch = ["nccl-ha", "agent", "simulate-switch", "0s sup 0", "--linger", "0.2"]
switch += ["--listen", "127.0.0.1:0", "--keys"]
to = "127.0.0.1:%d" % heard.getsockname()[1]
subprocess.check_call(switch + [sys.argv[1], "--to", to])
datagram = heard.recv(2000)
for i in range(50):
    out.sendto(datagram, ("127.0.0.1", 7471))
subprocess.check_call(switch + [sys.argv[2]])
)";

TEST(AgentInLab, HostileNeighboursStopNoTrafficAndLeaveNoSlot) {
  AgentLab lab(NHA_TOOL_FILE, checked);
  ASSERT_TRUE(lab.up());
  ASSERT_TRUE(lab.slow_down("800mbit"));
  ASSERT_TRUE(lab.settle("\"slots\": 16"));
  lab.end_agent(SIGKILL, false);
  ASSERT_TRUE(lab.up());
  RailWatch watch(lab);
  Switch talking(lab, "3s sup 0");
  const std::string socket = lab.folder() + "/0/agent.sock";
  crowd(socket, 2000);
  {
    AgentSocket greedy(socket);
    ASSERT_TRUE(greedy.greet());
    int refused = 0;
    for (uint16_t i = 0; i < 20; ++i) {
      const auto answer = greedy.enter(i, i);
      ASSERT_TRUE(answer) << i;
      if (answer->type == AgentMessage::refuse) {
        ++refused;
        EXPECT_NE(decode_agent_refusal(answer->payload)->text.find("all 16 slots"),
                  std::string::npos);
      }
    }
    EXPECT_GE(refused, 4) << "one slot is the job's, perhaps another one is not free yet";
  }
  ASSERT_EQ(run_program(NHA_TOOL_FILE, {"agent", "make-key", lab.folder() + "/wrong"}).status, 0);
  const ToolRun garbage =
      lab.lab().ask({"enter", "h1", "--", "python3", "-c", garbage_and_repetitions,
                     lab.folder() + "/keys", lab.folder() + "/wrong"});
  EXPECT_EQ(garbage.status, 0) << garbage.err;
  EXPECT_TRUE(until([&] { return lab.status()["slots"]["used"] == 1; })) << lab.status().dump(1);
  const auto status = lab.status();
  EXPECT_GE(status["telemetry"]["malformed"].get<int>(), 200) << status["telemetry"];
  EXPECT_EQ(status["telemetry"]["repeated"].get<int>(), 49) << status["telemetry"];
  EXPECT_GE(status["telemetry"]["forged"].get<int>(), 50) << status["telemetry"];
  EXPECT_GE(status["registrations"]["malformed"].get<int>(), 100);
  EXPECT_EQ(status["processes"], 1);
  talking.end();
  watch.end();
  EXPECT_LT(watch.longest_pause(), pause_max);
  const ToolRun ended = lab.lab().wait();
  EXPECT_EQ(ended.status, 0) << ended.out << ended.err;
  EXPECT_EQ(count(ended.out, "Out of bounds values : 0 OK"), 1U) << ended.out;
  for (const char* said :
       {"had come before", "not authenticated by a key", "are no telemetry of version",
        "no message of a plugin to its agent", "all 16 slots"}) {
    EXPECT_GE(count(ended.out, said), 1U) << said << "\n" << ended.out;
  }
}

}  // namespace
}  // namespace nccl_ha::tests
