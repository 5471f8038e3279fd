// One device and the plugin, loaded so that it sees no other.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "tools/check/pairs.h"

namespace nccl_ha::tools {

class Meeting;

/// A setting of this process for as long as this lives.
class Setting {
 public:
  Setting(std::string variable, const std::string& value);
  ~Setting();
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  std::string variable_;
  std::optional<std::string> before_;
};

/// The meetings over a device.  One at a time in a process.
class DeviceTrial {
 public:
  DeviceTrial(World& world, const Trials& trials) : world_(world), trials_(trials) {}
  ~DeviceTrial();
  DeviceTrial(const DeviceTrial&) = delete;
  DeviceTrial& operator=(const DeviceTrial&) = delete;

  /// An error where the plugin cannot be loaded; of what a device lacks unusable() tells.
  Result<void> open(const CheckedDevice& device);
  /// Why the device cannot be tried; empty: it can.
  const std::string& unusable() const { return unusable_; }
  /// Every rank calls it, those without a partner too: they take part in the exchange.  Returns
  /// when all have ended theirs, so that no plugin goes while its peer still waits for it.
  Result<void> meet(std::optional<uint32_t> partner, PairResult& result);
  /// Gigabytes per second that this process moves to itself; 0: it cannot.
  double meet_itself();

 private:
  void talk(Meeting& meeting, const NetHandle& handle, bool first, PairResult& result) const;

  World& world_;
  const Trials& trials_;
  std::unique_ptr<NetLibrary> library_;
  std::string unusable_;
  std::deque<Setting> settings_;  ///< that show the plugin one device, and name no other
  /// Where dumps may go to a folder that hangs, the code of their writer stays loaded, and with it
  /// the first device.
  Setting no_dumps_{"HA_NCCL_TRACE_MB", "0"};
};

/// What this host moves to itself with the plugin, in gigabytes per second: over an RDMA device, or
/// for any other over the loopback interface; 0: it cannot.  While no DeviceTrial lives.
double own_rate(World& world, const Trials& trials, const CheckedDevice& device);

}  // namespace nccl_ha::tools
