// What systemd wants to know of a service (sd_notify(3), Type=notify): datagrams to a UNIX socket
// that it names.
#pragma once

#include <optional>
#include <string>

#include "runtime/base/instant.h"
#include "runtime/base/result.h"

namespace nccl_ha::tools {

class ServiceManager {
 public:
  /// As NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID say; without them everything does nothing.
  static ServiceManager from_environment();
  ServiceManager(std::string socket, std::optional<Duration> watchdog)
      : socket_(std::move(socket)), watchdog_(watchdog) {}

  Result<void> ready(const std::string& status) const { return say("READY=1\nSTATUS=" + status); }
  Result<void> reloading() const;
  Result<void> stopping() const { return say("STOPPING=1"); }
  Result<void> alive() const { return say("WATCHDOG=1"); }
  /// How often alive() is due; nullopt: nobody waits for it.
  std::optional<Duration> watchdog() const { return watchdog_; }

 private:
  Result<void> say(const std::string& text) const;

  std::string socket_;
  std::optional<Duration> watchdog_;
};

}  // namespace nccl_ha::tools
