// Keeps the life of a relay node's process: signals, draining, what systemd wants to know.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "runtime/engine/actor.h"
#include "runtime/engine/context.h"
#include "runtime/streams/stream.h"
#include "tools/agent/service_manager.h"

namespace nccl_ha::tools {

/// Worker's thread.
class RelayKeeper final : public Actor, private FdWatchOwner {
 public:
  struct Options {
    int signals = -1;  ///< a signalfd; ownership passes
    ServiceManager manager{"", std::nullopt};
    std::string summary;           ///< for systemd
    std::optional<ActorId> node;   ///< of this worker; nullopt: this host does not relay
    std::function<void()> finish;  ///< the process is to end; any number of times
    /// This host has other RDMA devices than the node, through which no path leads now.
    std::function<bool()> outdated;
    std::function<void()> begin_anew;  ///< the node is, in this process
  };
  /// How often the last two are asked.
  static constexpr Duration look_apart = std::chrono::seconds(5);
  explicit RelayKeeper(Options options);
  ~RelayKeeper() override;

  const char* name() const override { return "relay-keeper"; }
  void start(Context& context) override;
  void on(const Message& message) override { (void)message; }
  void stop() override;

 private:
  void on_readable(int fd) override;
  void on_signal();
  void stroke_watchdog();
  void look();

  Options options_;
  Context* context_ = nullptr;
  std::unique_ptr<FdWatch> watch_;
  Timer watchdog_timer_;
  Timer look_timer_;
  bool ending_ = false;
};

}  // namespace nccl_ha::tools
