// A relay node as it shows itself: as JSON, as a page, as metrics for Prometheus.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "relay/discovery_actor.h"
#include "relay/mesh_routes.h"
#include "relay/relay_node.h"
#include "tools/agent/http_port.h"

namespace nccl_ha::tools {

/// What there is to see.  Of the node's worker; everything outlives it.
struct RelayView {
  Context* context = nullptr;
  const relay::RelayNode* node = nullptr;  ///< null: this host does not relay
  const relay::DiscoveryActor* discovery = nullptr;
  const relay::MeshRoutes* routes = nullptr;  ///< for hosts' names
  relay::NodeId self{};
  bool keyed = false;
  Instant started{};
};

nlohmann::json relay_status(const RelayView& view);
/// The exposition format of Prometheus, with everything of counters.def that a relay counts.
std::string relay_metrics(const RelayView& view);
std::string relay_page(const RelayView& view);
/// HttpPort::Pages.
std::optional<HttpAnswer> relay_answer(const RelayView& view, const std::string& path);

}  // namespace nccl_ha::tools
