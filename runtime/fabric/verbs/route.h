// How packets go from a port to another one.  Pure.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <optional>

#include "runtime/fabric/verbs/device.h"
#include "runtime/fabric/verbs/gid.h"

namespace nccl_ha::fabric::verbs {

/// Where they go: of another host, or the port itself.
struct RouteEnd {
  uint16_t lid = 0;
  Gid gid{};
};

/// What a packet is to be treated as on its way.
struct RouteClass {
  uint8_t traffic_class = 0;  ///< of a global routing header, which RoCE always has
  uint8_t service_level = 0;
};

/// `gid`: the port's own; nullopt: it has none (PortInfo::needs_gid()).  InfiniBand has a global
/// routing header where the port requires one, or the peer is in another subnet; there a router is
/// the next stop, whose LID the peer's GID names (FLID, as NCCL has it).
ibv_ah_attr route_between(const PortInfo& from, const std::optional<GidEntry>& gid,
                          const RouteEnd& to, RouteClass how = {});

}  // namespace nccl_ha::fabric::verbs
