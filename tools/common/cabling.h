// Mistakes in the cabling of hosts whose NICs have ports of several PCI functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "relay/topology.h"
#include "runtime/fabric/interfaces.h"

namespace nccl_ha::tools {

/// An interface that is a PCI function behind a port of a NIC.
struct PortFunction {
  std::string interface;
  uint32_t ifindex = 0;
  uint32_t mtu = 0;        ///< bytes
  int64_t speed_mbps = 0;  ///< 10^6 bit/s; 0: the driver does not say
  bool carrier = false;
  fabric::PortIdentity port;
};

/// Those of this host, also ones that are down or have no address; by name.  `classes`: /sys/class,
/// but for tests.
std::vector<PortFunction> list_port_functions(const std::string& classes = "/sys/class");

struct Miscabling {
  std::string what;
  std::string remedy;  ///< what to do
};

/// What is wrong with the cables of `self`, as far as its own ports show it: a function of a port
/// that hears nobody though another one of that port does, one that is slower than another one, an
/// MTU that is too small for RoCE's largest packets, both ports to the same host while others have
/// none (not where a switch is between: there an end hears several others).  Pure.
std::vector<Miscabling> judge_cabling(const relay::Topology& topology, uint32_t self,
                                      std::span<const PortFunction> functions);

}  // namespace nccl_ha::tools
