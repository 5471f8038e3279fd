// Keeps the agent's time and its life: heartbeats, the policy's ticks, signals, the watchdog.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>

#include "runtime/engine/actor.h"
#include "runtime/engine/context.h"
#include "runtime/engine/timer_wheel.h"
#include "runtime/streams/stream.h"
#include "tools/agent/flow_board.h"
#include "tools/agent/nic_meter.h"
#include "tools/agent/registration_port.h"
#include "tools/agent/reporter.h"
#include "tools/agent/service_manager.h"
#include "tools/agent/settings.h"
#include "tools/agent/share_history.h"
#include "tools/agent/telemetry_port.h"
#include "tools/agent/view.h"

namespace nccl_ha::tools {

/// The actors of an agent, all on one worker, which keeps them.
struct AgentActors {
  std::shared_ptr<FlowBoard> board;
  RegistrationPort* registrations = nullptr;
  TelemetryPort* telemetry = nullptr;
  NicMeter* nics = nullptr;
  Reporter* reporter = nullptr;
};
RegistrationPort::Limits registration_limits(const AgentSettings& settings);

class Keeper final : public Actor, private FdWatchOwner {
 public:
  struct Options {
    std::string settings_path;  ///< read again on SIGHUP
    AgentSettings settings;
    int signals = -1;  ///< a signalfd; ownership passes
    ServiceManager manager{"", std::nullopt};
    /// The agent is to end with this status; called on the worker, once.
    std::function<void(int status)> finish;
  };
  /// `view` is completed when the keeper starts, and outlives it, as `history` does.
  Keeper(Options options, AgentActors actors, AgentView& view, ShareHistory& history);
  ~Keeper() override;
  const char* name() const override { return "agent-keeper"; }
  void start(Context& context) override;
  void on(const Message& message) override { (void)message; }
  void stop() override;

 private:
  static constexpr Duration tick_every = std::chrono::milliseconds(5);
  static constexpr Duration sample_every = std::chrono::seconds(1);

  void on_readable(int fd) override;
  void on_signal(uint32_t signal);
  void beat();
  void tick();
  void sample();
  void stroke_watchdog();
  void reload();
  void drain();
  void end(int status);
  std::string summary() const;
  /// Whose, as the settings say.
  void show_counters();

  Options options_;
  AgentActors actors_;
  AgentView& view_;
  ShareHistory& history_;
  Context* context_ = nullptr;
  std::unique_ptr<FdWatch> watch_;
  Timer beat_timer_;
  Timer tick_timer_;
  Timer sample_timer_;
  Timer watchdog_timer_;
  Instant drained_by_{};
  bool ended_ = false;
};

}  // namespace nccl_ha::tools
