// Tells the switch which flows this host has.
#pragma once

#include <memory>
#include <vector>

#include "runtime/engine/actor.h"
#include "runtime/engine/context.h"
#include "runtime/engine/timer_wheel.h"
#include "tools/agent/flow_board.h"
#include "tools/agent/telemetry_port.h"

namespace nccl_ha::tools {

/// Notices may be lost, and a switch may start anew: all flows that are there are told again now
/// and then.
class Reporter final : public Actor, public FlowObserver {
 public:
  Reporter(std::shared_ptr<FlowBoard> board, TelemetrySender& sender);
  ~Reporter() override;
  const char* name() const override { return "agent-reporter"; }
  void start(Context& context) override;
  void on(const Message& message) override { (void)message; }
  void stop() override;
  /// The switch is another one, or there is one now.
  void tell_all();

 private:
  void on_flow_begun(const ha::Flow& flow) override;
  void on_flow_ended(const ha::Flow& flow) override;
  void flush();
  void flush_soon();

  std::shared_ptr<FlowBoard> board_;
  TelemetrySender& sender_;
  Context* context_ = nullptr;
  std::vector<FlowNotice> begun_;
  std::vector<FlowNotice> ended_;
  Timer flush_timer_;
  Timer repeat_timer_;
};

}  // namespace nccl_ha::tools
