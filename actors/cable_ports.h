// At which device a connection lives on a host whose cables lead to different hosts.
#pragma once

#include <sys/socket.h>

#include <functional>
#include <vector>

#include "runtime/fabric/device.h"
#include "runtime/fabric/provider.h"

namespace nccl_ha {

/// The devices at which connections may live instead of the one that NCCL asked for.  Any thread.
struct CablePorts {
  std::vector<fabric::RailDevices> devices;  ///< with their rails; empty: that one alone
  /// It is known that each cable leads to other hosts.  Of any thread.
  std::function<bool()> in_mesh = [] { return true; };
  /// No NIC is set at which all streams begin (HA_NCCL_OOB_IF).
  bool streams_tell = true;

  /// The one over whose NIC a stream leads that has `local`, an address of this host; that NIC's
  /// rail comes first in it.  `asked` where none has it; and, where nobody knows of cables, if the
  /// streams of `asked` do not begin at its own NIC, or that is in this one's network.
  fabric::RailDevices of_stream(const fabric::Provider& provider, const fabric::RailDevices& asked,
                                const sockaddr_storage& local) const;
};

}  // namespace nccl_ha
