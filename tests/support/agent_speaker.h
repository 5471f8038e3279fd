// A switch that a test plays for a transport agent, and what the plugin sees of the agent's answer.
// Needs the tools' library.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <span>
#include <vector>

#include "actors/telemetry_packet.h"
#include "runtime/base/clock.h"
#include "runtime/telemetry/hint_table.h"
#include "tests/support/agent_process.h"
#include "tools/agent/keys.h"
#include "tools/agent/telemetry_port.h"

namespace nccl_ha::test {

/// Sends datagrams to the agent's telemetry port.
class Wire {
 public:
  explicit Wire(uint16_t port) {
    to_.sin_family = AF_INET;
    to_.sin_port = htons(port);
    to_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    fd_ = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  }
  ~Wire() { close(fd_); }
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;
  void send(std::span<const std::byte> bytes) const {
    EXPECT_EQ(sendto(fd_, bytes.data(), bytes.size(), 0, reinterpret_cast<const sockaddr*>(&to_),
                     sizeof to_),
              static_cast<ssize_t>(bytes.size()));
  }

 private:
  int fd_;
  sockaddr_in to_{};
};

/// A switch that says what it is told to.
class Speaker {
 public:
  explicit Speaker(const AgentProcess& agent)
      : keys_(*tools::TelemetryKeys::read(agent.keys())), wire_(agent.telemetry_port()) {}
  std::vector<std::byte> datagram(uint8_t rail, uint8_t level, const ha::Flow& flow = {}) {
    TelemetryHeader header;
    header.type = TelemetryType::congestion;
    header.sender = 99;
    header.number = ++number_;
    header.stamp = tools::time_of_day();
    header.key = keys_.newest();
    CongestionEntry entry;
    entry.flow = flow;
    entry.rail = rail;
    entry.level = level;
    auto bytes = encode(header, std::span<const CongestionEntry>(&entry, 1), true);
    keys_.sign(header.key, bytes);
    return bytes;
  }
  void say(uint8_t rail, uint8_t level, const ha::Flow& flow = {}) {
    wire_.send(datagram(rail, level, flow));
  }
  const Wire& wire() const { return wire_; }

 private:
  tools::TelemetryKeys keys_;
  Wire wire_;
  uint64_t number_ = 0;
};

/// What the plugin sees of a flow, in the table itself.
struct Seen {
  explicit Seen(const AgentProcess& agent) : table(*HintTable::open(agent.directory(), 0)) {}
  HintReading of(const AgentSocket::Answer& entered) const {
    const auto place = decode_place(entered.payload);
    SteadyClock clock;
    return table->read(place->slot, place->flow, clock.now(), std::chrono::seconds(2));
  }
  std::shared_ptr<const HintTable> table;
};

}  // namespace nccl_ha::test
