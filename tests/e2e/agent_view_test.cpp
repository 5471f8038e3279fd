// What the built nccl-ha agent shows and tells: its web server, its reports to the switch.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "actors/telemetry_packet.h"
#include "runtime/telemetry/counter_file.h"
#include "tests/support/agent_process.h"
#include "tests/support/counter_process.h"
#include "tests/support/own_time.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tool_runner.h"
#include "tests/support/until.h"
#include "tools/agent/keys.h"
#include "tools/trace/sources.h"

namespace nccl_ha::tests {
namespace {

using test::AgentProcess;
using test::AgentSocket;

int connect_to_page(const AgentProcess& agent) {
  const std::string page = agent.status()["page"].get<std::string>();
  const size_t colon = page.rfind(':');
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(page.substr(colon + 1))));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  return fd;
}

/// One request, answered to its end.
std::string http(const AgentProcess& agent, const std::string& request) {
  const int fd = connect_to_page(agent);
  const timeval limit{10, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  EXPECT_EQ(send(fd, request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  std::string answer;
  std::array<char, 65536> bytes;
  ssize_t got = 0;
  while ((got = recv(fd, bytes.data(), bytes.size(), 0)) > 0) {
    answer.append(bytes.data(), static_cast<size_t>(got));
  }
  close(fd);
  return answer;
}

std::string http_get(const AgentProcess& agent, const std::string& path) {
  return http(agent, "GET " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
}

TEST(AgentPage, ServesItsPageMetricsAndStatus) {
  AgentProcess agent(NHA_TOOL_FILE, R"("rails": [{"interface": "lo"}])");
  AgentSocket job(agent.socket_path());
  ASSERT_TRUE(job.greet());
  ASSERT_EQ(job.enter(1, 2)->type, AgentMessage::entered);
  const std::string page = http_get(agent, "/");
  EXPECT_TRUE(page.starts_with("HTTP/1.1 200 OK")) << page.substr(0, 200);
  EXPECT_NE(page.find("Transport agent"), std::string::npos);
  EXPECT_EQ(page.find("http://"), page.find("http://www.w3.org/2000/svg"))
      << "it loads nothing from elsewhere";
  const std::string metrics = http_get(agent, "/metrics");
  EXPECT_NE(metrics.find("# TYPE nccl_ha_agent_flow_share gauge"), std::string::npos) << metrics;
  EXPECT_NE(
      metrics.find("nccl_ha_agent_flow_share{source=\"10.0.0.1\",destination=\"10.1.0.2\"} 0.5"),
      std::string::npos)
      << metrics;
  EXPECT_EQ(count(metrics, "# TYPE nccl_ha_agent_flow_congestion "), 1U);
  EXPECT_NE(metrics.find("nccl_ha_agent_connections 1"), std::string::npos) << metrics;
  const std::string status = http_get(agent, "/status.json?x=1");
  EXPECT_EQ(nlohmann::json::parse(status.substr(status.find("\r\n\r\n") + 4))["connections"], 1);
}

TEST(AgentPage, ItsWebServerRefusesWhatIsNoRequestForIt) {
  AgentProcess agent(NHA_TOOL_FILE);
  EXPECT_TRUE(http_get(agent, "/other").starts_with("HTTP/1.1 404"));
  EXPECT_TRUE(
      http(agent, "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").starts_with("HTTP/1.1 405"));
  EXPECT_TRUE(
      http(agent, "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n").starts_with("HTTP/1.1 403"));
  EXPECT_TRUE(http(agent, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 403"));
  EXPECT_TRUE(http(agent, "garbage\r\n\r\n").starts_with("HTTP/1.1 400"));
  EXPECT_TRUE(http(agent, std::string(9000, 'x')).starts_with("HTTP/1.1 431"));
  EXPECT_TRUE(http_get(agent, "/").starts_with("HTTP/1.1 200"));
}

TEST(AgentPage, WhoAsksForNothingGivesItsPlaceToWhoComesNext) {
  AgentProcess agent(NHA_TOOL_FILE);
  std::vector<int> slow;
  for (int i = 0; i < 40; ++i) {
    slow.push_back(connect_to_page(agent));
    EXPECT_EQ(send(slow.back(), "GET", 3, MSG_NOSIGNAL), 3);
  }
  EXPECT_TRUE(http_get(agent, "/").starts_with("HTTP/1.1 200"));
  for (const int fd : slow) {
    close(fd);
  }
}

// As root: the counters of a process of another user.
TEST(AgentPage, TellsTheCountersOfItsOwnUserUnlessASettingSaysOtherwise) {
  const bool root = geteuid() == 0;
  const TemporaryFolder folder("/dev/shm");
  const std::string path(folder.path());
  const auto own = CounterFile::create({path, 8, 1, 16});
  ASSERT_NE(own, nullptr);
  const test::CounterProcess other(path, root ? uid_t{65534} : geteuid());
  ASSERT_TRUE(other.ready());
  setenv("HA_NCCL_COUNTERS_DIR", path.c_str(), 1);
  AgentProcess agent(NHA_TOOL_FILE);
  unsetenv("HA_NCCL_COUNTERS_DIR");
  const auto told = [&] {
    const std::string answer = http_get(agent, "/counters");
    const std::string body = answer.substr(answer.find("\r\n\r\n") + 4);
    const auto dumps = tools::parse_bundle(std::as_bytes(std::span(body)));
    return dumps ? dumps->size() : 0;
  };
  EXPECT_EQ(told(), root ? 2U : 3U) << "this process, the agent, and the other if it is alike";
  agent.write_settings(R"("counters_of_all_users": true)");
  agent.signal(SIGHUP);
  EXPECT_TRUE(test::until([&] { return told() == 3; }));
}

/// Cuts a user's file to nothing and makes it whole again until `end` is closed; how often.
uint32_t cut_short(const std::string& path, uid_t user, int end) {
  if (user != geteuid() && setuid(user) != 0) {
    return 0;
  }
  const std::string whole = content_of(path);
  const int file = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  uint32_t cuts = 0;
  for (pollfd over{end, POLLIN, 0}; poll(&over, 1, 0) == 0; ++cuts) {
    if (ftruncate(file, 0) != 0 ||
        pwrite(file, whole.data(), whole.size(), 0) != static_cast<ssize_t>(whole.size())) {
      return 0;
    }
  }
  return cuts;
}

TEST(AgentPage, WhoCutsHisCountersShortStopsNeitherItNorStat) {
  const uid_t user = geteuid() == 0 ? 65534 : geteuid();
  const TemporaryFolder folder("/dev/shm");
  const test::CounterProcess victim(folder.path(), user);
  ASSERT_TRUE(victim.ready());
  const std::string pid = std::to_string(victim.pid());
  int end[2] = {-1, -1};
  int result[2] = {-1, -1};
  ASSERT_TRUE(pipe2(end, O_CLOEXEC) == 0 && pipe2(result, O_CLOEXEC) == 0);
  const pid_t owner = fork();
  if (owner == 0) {
    close(end[1]);
    const uint32_t cuts =
        cut_short(folder.path() + "/nccl-ha-" + pid + "-0.counters", user, end[0]);
    _exit(write(result[1], &cuts, sizeof cuts) == sizeof cuts ? 0 : 1);
  }
  setenv("HA_NCCL_COUNTERS_DIR", folder.path().c_str(), 1);
  AgentProcess agent(NHA_TOOL_FILE, R"("counters_of_all_users": true)");
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(http_get(agent, "/counters").starts_with("HTTP/1.1 200")) << i;
  }
  for (int i = 0; i < 3; ++i) {
    const ToolRun stat = run_program(NHA_TOOL_FILE, {"stat", "--json", "--interval", "0.05"});
    EXPECT_LE(stat.status, 2) << "a signal: " << stat.err;
    EXPECT_LE(run_program(NHA_TOOL_FILE, {"info", "--pid", pid, "--json"}).status, 2);
  }
  unsetenv("HA_NCCL_COUNTERS_DIR");
  close(end[1]);
  uint32_t cuts = 0;
  EXPECT_EQ(read(result[0], &cuts, sizeof cuts), static_cast<ssize_t>(sizeof cuts));
  EXPECT_GE(cuts, 100U) << "the attack never was";
  waitpid(owner, nullptr, 0);
  for (const int fd : {end[0], result[0], result[1]}) {
    close(fd);
  }
}

// What a switch hears: flows that begin and end, and what NICs do, signed.
TEST(AgentReports, TheSwitchIsToldOfFlowsAndNics) {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof at;
  ASSERT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&at), length), 0);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&at), &length), 0);
  const timeval limit{10, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  AgentProcess agent(NHA_TOOL_FILE, R"("rails": [{"interface": "lo"}],
    "reports": {"every_ms": 20, "to": "127.0.0.1:)" +
                                        std::to_string(ntohs(at.sin_port)) + "\"}");
  const auto keys = tools::TelemetryKeys::read(agent.keys());
  ASSERT_TRUE(keys);
  uint64_t last_number = 0;
  const auto hear = [&](TelemetryType type) {
    std::array<std::byte, 2048> bytes;
    for (int i = 0; i < 1000; ++i) {
      const ssize_t got = recv(fd, bytes.data(), bytes.size(), 0);
      if (got <= 0) {
        return std::vector<std::byte>();
      }
      const auto datagram = std::span(std::as_const(bytes)).first(static_cast<size_t>(got));
      const auto frame = parse_telemetry(datagram);
      EXPECT_TRUE(frame && keys->verify(frame->header.key, frame->covered, frame->tag));
      EXPECT_GT(frame->header.number, last_number);
      last_number = frame->header.number;
      if (frame->header.type == type) {
        return std::vector<std::byte>(datagram.begin(), datagram.end());
      }
    }
    return std::vector<std::byte>();
  };
  const auto report = hear(TelemetryType::nic_report);
  const auto nics = decode_nic_reports(*parse_telemetry(report));
  ASSERT_TRUE(nics);
  EXPECT_EQ((*nics)[0].address.bytes[0], 127);
  EXPECT_GE((*nics)[0].interval_us, 15000U);
  auto job = std::make_unique<AgentSocket>(agent.socket_path());
  ASSERT_TRUE(job->greet());
  ASSERT_EQ(job->enter(1, 2)->type, AgentMessage::entered);
  const auto begun = hear(TelemetryType::flow_begun);
  EXPECT_EQ(decode_flow_notices(*parse_telemetry(begun))->at(0).flow, test::flow_to_host(2).flow);
  // A registration is there within ten milliseconds, but for those that the kernel did not let run.
  std::vector<double> ms;
  for (uint16_t host = 3; host < 23; ++host) {
    const test::OwnTime since_it_was_asked({agent.pid(), getpid()});
    ASSERT_EQ(job->enter(host, host)->type, AgentMessage::entered);
    const auto heard = hear(TelemetryType::flow_begun);
    ms.push_back(since_it_was_asked.ms());
    EXPECT_EQ(decode_flow_notices(*parse_telemetry(heard))->at(0).flow,
              test::flow_to_host(host).flow);
  }
  std::sort(ms.begin(), ms.end());
  std::printf("registration at the switch: median %.2f ms, longest %.2f ms\n", ms[10], ms.back());
  EXPECT_LT(ms[18], 10);
  job.reset();
  const auto ended = hear(TelemetryType::flow_ended);
  EXPECT_EQ(decode_flow_notices(*parse_telemetry(ended))->size(), 21U);
  close(fd);
}

}  // namespace
}  // namespace nccl_ha::tests
