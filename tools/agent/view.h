// The agent as it shows itself: as JSON for `nccl-ha agent status` and the page, as metrics for
// Prometheus.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "runtime/engine/context.h"
#include "runtime/telemetry/counter_reader.h"
#include "tools/agent/flow_board.h"
#include "tools/agent/nic_meter.h"
#include "tools/agent/registration_port.h"
#include "tools/agent/share_history.h"
#include "tools/agent/telemetry_port.h"

namespace nccl_ha::tools {

/// What there is to see.  Of the agent's worker; everything outlives it.
struct AgentView {
  Context* context = nullptr;
  const FlowBoard* board = nullptr;
  const RegistrationPort* registrations = nullptr;
  const TelemetryPort* telemetry = nullptr;
  const NicMeter* nics = nullptr;
  const ShareHistory* history = nullptr;
  std::string directory;
  std::string page;  ///< where it is served; empty: nowhere
  Instant started{};
  uint64_t reloads = 0;
  bool draining = false;
  CounterOwner counters_of = CounterOwner::this_user;  ///< whose /counters has
};

/// With what the failovers of this host's jobs have been, as their counters say.
nlohmann::json status_of(const AgentView& view);
/// The exposition format of Prometheus.
std::string metrics_of(const AgentView& view);

}  // namespace nccl_ha::tools
