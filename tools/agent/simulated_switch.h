// Plays the switch of one or several agents: tells congestion by a script, over real UDP, and shows
// what agents tell.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "actors/telemetry_packet.h"
#include "runtime/engine/actor.h"
#include "runtime/engine/context.h"
#include "runtime/engine/timer_wheel.h"
#include "runtime/streams/stream.h"
#include "tools/agent/keys.h"
#include "tools/agent/socket_point.h"
#include "tools/agent/switch_script.h"

namespace nccl_ha::tools {

class SimulatedSwitch final : public Actor, private DatagramOwner {
 public:
  struct Options {
    std::vector<SwitchStep> script;
    std::vector<SocketPoint> agents;
    SocketPoint listen;
    TelemetryKeys keys;  ///< empty: datagrams have no tag
    Duration every = std::chrono::milliseconds(1);
    Duration linger = std::chrono::seconds(1);  ///< behind the last step
    double loss = 0;                            ///< of the datagrams that it would send
    double noise = 0;                           ///< of each level, uniform to both sides
    bool quiet = false;
    /// Called once, on the worker.
    std::function<void(Result<void>)> finish;
  };
  explicit SimulatedSwitch(Options options);
  const char* name() const override { return "simulated-switch"; }
  void start(Context& context) override;
  void on(const Message& message) override { (void)message; }
  void stop() override;

 private:
  void on_datagram(std::span<const std::byte> bytes, const sockaddr* from) override;
  void speak();
  void take_steps(Instant now);
  void send(std::span<const CongestionEntry> entries);
  void show_notices(const TelemetryFrame& frame);
  void end(Result<void> how);

  Options options_;
  Context* context_ = nullptr;
  std::unique_ptr<DatagramEndpoint> endpoint_;
  Timer timer_;
  Instant begun_{};
  size_t next_step_ = 0;
  std::map<std::pair<ha::Flow, uint8_t>, uint8_t> levels_;  ///< by flow and rail
  const uint64_t id_;
  uint64_t last_number_ = 0;
};

}  // namespace nccl_ha::tools
