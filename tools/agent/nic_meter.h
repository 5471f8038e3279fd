// Measures what this host's NICs do, for the policy and for the switch.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ha/nic_load.h"
#include "runtime/engine/actor.h"
#include "runtime/engine/context.h"
#include "runtime/engine/timer_wheel.h"
#include "tools/agent/flow_board.h"
#include "tools/agent/nic_sources.h"
#include "tools/agent/settings.h"
#include "tools/agent/telemetry_port.h"

namespace nccl_ha::tools {

class NicMeter final : public Actor {
 public:
  struct Rail {
    std::string interface;
    ha::HostAddress address;
    int64_t speed_mbps = 0;
    std::vector<std::unique_ptr<NicSource>> sources;
    std::optional<ha::NicReading> reading;
    std::optional<ha::NicLoad> load;
    bool silent = false;  ///< no source says anything: the interface is gone
    Instant looked_at{};  ///< what there is of it: address, speed, sources
  };

  NicMeter(std::shared_ptr<FlowBoard> board, TelemetrySender& sender,
           const AgentSettings& settings);
  const char* name() const override { return "agent-nics"; }
  void start(Context& context) override;
  void on(const Message& message) override { (void)message; }
  void stop() override;
  void set_settings(const AgentSettings& settings);
  const std::array<Rail, 2>& rails() const { return rails_; }

 private:
  void measure();
  void measure_rail(Rail& rail, Instant now);
  void look_again_if_due(size_t i, Instant now);

  std::shared_ptr<FlowBoard> board_;
  TelemetrySender& sender_;
  Duration every_;
  std::array<RailSettings, 2> settings_;
  std::array<Rail, 2> rails_;
  Context* context_ = nullptr;
  Timer timer_;
};

}  // namespace nccl_ha::tools
