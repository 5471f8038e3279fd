// The agent's UDP socket: congestion from switches comes in, flow notices and NIC reports go out.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "actors/telemetry_packet.h"
#include "ha/replay_window.h"
#include "runtime/engine/actor.h"
#include "runtime/engine/context.h"
#include "runtime/streams/stream.h"
#include "tools/agent/flow_board.h"
#include "tools/agent/settings.h"

namespace nccl_ha::tools {

/// The time of day, nanoseconds since 1970.
int64_t time_of_day();

/// Sends what the agent has to say to its switch.
class TelemetrySender {
 public:
  virtual ~TelemetrySender() = default;
  virtual void send_notices(TelemetryType type, std::span<const FlowNotice> notices) = 0;
  virtual void send_reports(std::span<const NicReport> reports) = 0;
};

class TelemetryPort final : public Actor, public TelemetrySender, private DatagramOwner {
 public:
  struct Counts {
    uint64_t taken = 0;        ///< datagrams that counted
    uint64_t malformed = 0;    ///< no telemetry, or of another version
    uint64_t not_allowed = 0;  ///< of somebody who is not on the list
    uint64_t forged = 0;       ///< without a tag, or with a wrong one
    uint64_t repeated = 0;     ///< that had counted before
    uint64_t out_of_time = 0;  ///< stamps or numbers too old, or from the future
    uint64_t too_many = 0;     ///< of more senders than are remembered
    uint64_t sent = 0;
    uint64_t send_failures = 0;
  };
  using TimeOfDay = std::function<int64_t()>;

  TelemetryPort(std::shared_ptr<FlowBoard> board, const AgentSettings& settings,
                TimeOfDay time_of_day);
  const char* name() const override { return "agent-telemetry"; }
  void start(Context& context) override;
  void on(const Message& message) override { (void)message; }
  void stop() override { endpoint_.reset(); }
  void set_settings(const AgentSettings& settings);

  void send_notices(TelemetryType type, std::span<const FlowNotice> notices) override;
  void send_reports(std::span<const NicReport> reports) override;

  const Counts& counts() const { return counts_; }
  size_t senders() const { return window_.senders(); }
  /// When the last datagram that counted came; Instant{}: none has.
  Instant last_taken() const { return last_taken_; }
  /// 0: it hears nobody.
  uint16_t port() const { return port_; }
  /// It should hear, and its port cannot be had.
  bool failed() const { return settings_.telemetry && !endpoint_; }
  /// Why it cannot hear, if it should; empty: it can.
  const std::string& trouble() const { return trouble_; }

 private:
  void on_datagram(std::span<const std::byte> bytes, const sockaddr* from) override;
  void look_for_keys();
  bool allowed(const sockaddr* from) const;
  bool believed(const TelemetryFrame& frame) const;
  bool take_number(const TelemetryHeader& header);
  TelemetryHeader next_header(TelemetryType type);
  void send(std::vector<std::byte> datagram);

  std::shared_ptr<FlowBoard> board_;
  AgentSettings settings_;
  const TimeOfDay time_of_day_;
  Context* context_ = nullptr;
  std::unique_ptr<DatagramEndpoint> endpoint_;
  ha::ReplayWindow window_;
  const uint64_t own_id_;
  uint64_t last_number_ = 0;
  Instant last_taken_{};
  uint16_t port_ = 0;
  std::string trouble_;
  Counts counts_;
};

}  // namespace nccl_ha::tools
