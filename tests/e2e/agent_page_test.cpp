// The web server of the built nccl-ha agent.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/agent_process.h"
#include "tests/support/tool_runner.h"

namespace nccl_ha::tests {
namespace {

using test::AgentProcess;
using test::AgentSocket;

/// One request, answered to its end.
std::string http(const AgentProcess& agent, const std::string& request) {
  const std::string page = agent.status()["page"].get<std::string>();
  const size_t colon = page.rfind(':');
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(page.substr(colon + 1))));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
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

}  // namespace
}  // namespace nccl_ha::tests
