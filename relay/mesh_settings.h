// The settings of a mesh, checked.
#pragma once

#include "relay/discovery.h"
#include "relay/relay_session.h"
#include "relay/routes.h"
#include "runtime/base/config.h"
#include "runtime/base/key_file.h"
#include "runtime/fabric/interfaces.h"

namespace nccl_ha::relay {

/// HA_NCCL_MESH_HELLO_MS and HA_NCCL_MESH_DEAD_MS.
Result<Discovery::Timing> discovery_timing(const Config& config);

RouteOptions route_options(const Config& config);

RelayOptions relay_options(const Config& config, NodeId self);

/// HA_NCCL_MESH_KEY_FILE, read; null: there is none.
Result<std::shared_ptr<KeyFile>> cluster_key(const Config& config);
/// For a process that relays: the log says so where there is none.
void warn_without(const std::shared_ptr<KeyFile>& key);

/// Of this host.  `own`: select_mesh_interfaces().
Discovery::Identity mesh_identity(const std::vector<fabric::NetInterface>& own, bool relays,
                                  uint32_t incarnation);

}  // namespace nccl_ha::relay
