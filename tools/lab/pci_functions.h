// Interfaces that programs take for PCI functions: the halves of a NIC's port.
#pragma once

#include <cstddef>

#include "runtime/base/result.h"
#include "tools/lab/topology.h"

namespace nccl_ha::tools::lab {

/// To be called in a host's own mounts, before it has interfaces.  Where the topology says that
/// some of them are PCI functions (Port::pci_address), all of one NIC, /sys/class/net and
/// /sys/bus/pci/devices say so too; the rest is what the kernel says.
Result<void> show_hardware(const Topology& topology, size_t host);

}  // namespace nccl_ha::tools::lab
