// The RDMA ports of this host.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/config.h"
#include "runtime/base/result.h"
#include "runtime/fabric/verbs/device.h"
#include "runtime/fabric/verbs/successor.h"

namespace nccl_ha::fabric::verbs {

/// What was found, and why the rest is of no use (for logs).
struct PortList {
  std::vector<UsablePort> ports;      ///< by name
  std::vector<PortInfo> down;         ///< selected by the settings, but not active
  std::vector<PortInfo> without_gid;  ///< active, but no GID fits
  std::vector<std::string> notes;
};

/// So long a device may take to be opened, which is a handful of commands: a healthy one that is
/// left out costs a job more than the wait.
constexpr Duration device_patience = std::chrono::seconds(15);

/// Opens the devices that the settings select, side by side, and keeps the ports that are selected
/// and active.  A device that takes longer than `patience` is left out.  An error only where
/// settings are wrong or memory is out; no library and no device are notes.
Result<PortList> list_ports(const Config& config, Duration patience = device_patience);

/// The ports of what has come in place of that NIC (successor_of), which it opens; nothing: there
/// is none, or none of its ports is usable yet.  Blocks as long as the device takes.
std::vector<UsablePort> open_successor(const Library& library, const NicIdentity& before,
                                       const Config& config);

}  // namespace nccl_ha::fabric::verbs
