// A transport agent of its own: the built nccl-ha, in a directory of its own.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "actors/agent_protocol.h"
#include "tests/support/temporary_folder.h"

namespace nccl_ha::test {

class AgentProcess {
 public:
  /// `settings`: JSON without braces, added to what makes it this test's: directory, ports of its
  /// own choice, keys.  It is ready when this returns.
  explicit AgentProcess(const std::string& tool, const std::string& settings = "");
  ~AgentProcess();
  AgentProcess(const AgentProcess&) = delete;
  AgentProcess& operator=(const AgentProcess&) = delete;

  const std::string& directory() const { return run_; }
  const std::string& keys() const { return keys_; }
  std::string socket_path() const { return run_ + "/agent.sock"; }
  std::string settings_path() const { return folder_ + "/settings"; }
  /// Rewrites its settings, as the constructor does.
  void write_settings(const std::string& settings);
  void start();
  void signal(int number) const;
  /// Its exit status, or 128 plus the signal.
  int wait();
  /// Waits for a message to the service manager in which this stands; false when none comes in ten
  /// seconds.
  bool hears(const std::string& text);
  /// What it has logged so far.
  std::string log() const;
  /// What it knows.
  nlohmann::json status() const;
  uint16_t telemetry_port() const;
  pid_t pid() const { return pid_; }

 private:
  const std::string tool_;
  tests::TemporaryFolder temporary_;
  const std::string folder_{temporary_.path()};
  std::string run_;
  std::string keys_;
  int notices_ = -1;
  pid_t pid_ = -1;
};

/// A process's end of the agent's socket, by hand.
class AgentSocket {
 public:
  explicit AgentSocket(const std::string& path);
  ~AgentSocket();
  AgentSocket(const AgentSocket&) = delete;
  AgentSocket& operator=(const AgentSocket&) = delete;
  bool connected() const { return fd_ >= 0; }
  bool send(std::span<const std::byte> bytes) const;
  /// The next message; nothing when the agent closes, or says nothing for ten seconds.
  struct Answer {
    AgentMessage type;
    uint64_t connection;
    std::vector<std::byte> payload;
  };
  std::optional<Answer> receive();
  /// Says hello and awaits the welcome.
  bool greet();
  /// Registers a flow to 10.0.HIGH.LOW and awaits the answer.
  std::optional<Answer> enter(uint64_t connection, uint16_t to);

 private:
  int fd_ = -1;
  AgentReader reader_;
};

FlowAnnouncement flow_to_host(uint16_t to);

}  // namespace nccl_ha::test
