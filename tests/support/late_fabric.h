// A kind of fabric that only tests have: datagrams of a simulated network, through a host in
// between that is asked for an address first, and gives a long one.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/fabric/provider.h"
#include "tests/rig/sim/network.h"

namespace nccl_ha::test {

inline constexpr fabric::FabricKind late_kind{200};

/// What its paths do, and what has happened to them.
struct LatePaths {
  Duration address_after = std::chrono::milliseconds(3);
  size_t address_bytes = 500;
  unsigned refused = 0;  ///< so many of the next paths fail instead of getting an address
  /// Paths of interface N lead through "hostN", besides what their routes name.
  bool through_hosts = false;

  unsigned made = 0;
  unsigned addressed = 0;  ///< got an address, later than they were made
  unsigned connected = 0;  ///< were given a peer's address of that length
};

/// For Provider::Sources::kinds; HA_NCCL_FABRIC=late asks for it.  Both outlive the provider.
fabric::Provider::Kind late_fabric(sim::Network& network, LatePaths& paths);

/// As PathOptions::route has it.
fabric::Hop hop_of(const std::string& name);

}  // namespace nccl_ha::test
