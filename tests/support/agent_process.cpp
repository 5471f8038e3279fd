#include "tests/support/agent_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tests/support/temporary_folder.h"
#include "tests/support/tool_runner.h"

namespace nccl_ha::test {
namespace {

constexpr int patience_ms = 10000;

sockaddr_un unix_address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), std::min(path.size(), sizeof address.sun_path - 1));
  return address;
}

bool readable(int fd) {
  pollfd waiting{fd, POLLIN, 0};
  return poll(&waiting, 1, patience_ms) == 1;
}

}  // namespace

AgentProcess::AgentProcess(const std::string& tool, const std::string& settings) : tool_(tool) {
  run_ = folder_ + "/run";
  keys_ = folder_ + "/keys";
  EXPECT_EQ(tests::run_program(tool_, {"agent", "make-key", keys_}).status, 0);
  notices_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const sockaddr_un address = unix_address(folder_ + "/notify");
  EXPECT_EQ(bind(notices_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  write_settings(settings);
  start();
}

AgentProcess::~AgentProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(notices_);
  if (testing::Test::HasFailure()) {
    std::fprintf(stderr, "the agent's log:\n%s", log().c_str());
  }
}

void AgentProcess::write_settings(const std::string& settings) {
  std::ofstream file(settings_path());
  file << "{\"directory\": \"" << run_ << "\", \"page\": \"127.0.0.1:0\"";
  if (settings.find("\"telemetry\"") == std::string::npos) {
    file << ", \"telemetry\": {\"listen\": \"127.0.0.1:0\", \"keys\": \"" << keys_ << "\"}";
  }
  file << (settings.empty() ? "" : ", ") << settings << "}\n";
}

void AgentProcess::start() {
  const std::string notify = "NOTIFY_SOCKET=" + folder_ + "/notify";
  const std::string log_path = folder_ + "/log";
  const std::string settings = settings_path();
  std::vector<char*> environment;
  for (char** at = environ; *at != nullptr; ++at) {
    environment.push_back(*at);
  }
  environment.push_back(const_cast<char*>(notify.c_str()));
  environment.push_back(nullptr);
  std::array<const char*, 5> words = {tool_.c_str(), "agent", "--settings", settings.c_str(),
                                      nullptr};
  pid_ = fork();
  if (pid_ == 0) {
    const int log = open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(log, STDERR_FILENO);
    dup2(log, STDOUT_FILENO);
    execve(tool_.c_str(), const_cast<char* const*>(words.data()), environment.data());
    _exit(127);
  }
  EXPECT_TRUE(hears("READY=1")) << log();
}

void AgentProcess::signal(int number) const { kill(pid_, number); }

int AgentProcess::wait() {
  int status = 0;
  EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool AgentProcess::hears(const std::string& text) {
  std::array<char, 1024> bytes;
  while (readable(notices_)) {
    const ssize_t got = recv(notices_, bytes.data(), bytes.size(), 0);
    if (got > 0 &&
        std::string(bytes.data(), static_cast<size_t>(got)).find(text) != std::string::npos) {
      return true;
    }
  }
  return false;
}

std::string AgentProcess::log() const {
  std::ifstream file(folder_ + "/log");
  return {std::istreambuf_iterator<char>(file), {}};
}

nlohmann::json AgentProcess::status() const {
  const tests::ToolRun run =
      tests::run_program(tool_, {"agent", "status", "--json", "--dir", run_});
  EXPECT_EQ(run.status, 0) << run.err;
  return nlohmann::json::parse(run.out, nullptr, false);
}

uint16_t AgentProcess::telemetry_port() const {
  return status()["telemetry"]["port"].get<uint16_t>();
}

AgentSocket::AgentSocket(const std::string& path) {
  fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_un address = unix_address(path);
  if (connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    close(fd_);
    fd_ = -1;
  }
}

AgentSocket::~AgentSocket() {
  if (fd_ >= 0) {
    close(fd_);
  }
}

bool AgentSocket::send(std::span<const std::byte> bytes) const {
  return ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(bytes.size());
}

std::optional<AgentSocket::Answer> AgentSocket::receive() {
  std::array<std::byte, 65536> bytes;
  while (true) {
    if (const auto message = reader_.next()) {
      return Answer{
          message->type, message->connection, {message->payload.begin(), message->payload.end()}};
    }
    if (!readable(fd_)) {
      return std::nullopt;
    }
    const ssize_t got = recv(fd_, bytes.data(), bytes.size(), 0);
    if (got <= 0 || !reader_.feed(std::span(bytes).first(static_cast<size_t>(got)))) {
      return std::nullopt;
    }
  }
}

bool AgentSocket::greet() {
  AgentHello hello;
  hello.pid = static_cast<uint32_t>(getpid());
  hello.host = "test";
  if (!connected() || !send(encode(hello))) {
    return false;
  }
  const auto answer = receive();
  return answer && answer->type == AgentMessage::welcome;
}

std::optional<AgentSocket::Answer> AgentSocket::enter(uint64_t connection, uint16_t to) {
  if (!send(encode(connection, flow_to_host(to)))) {
    return std::nullopt;
  }
  return receive();
}

FlowAnnouncement flow_to_host(uint16_t to) {
  FlowAnnouncement announcement;
  announcement.flow.source = {4, {10, 0, 0, 1}};
  announcement.flow.destination = {
      4, {10, 1, static_cast<uint8_t>(to >> 8), static_cast<uint8_t>(to)}};
  return announcement;
}

}  // namespace nccl_ha::test
