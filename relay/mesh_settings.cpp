#include "relay/mesh_settings.h"

#include <fmt/format.h>

#include "relay/piece_size.h"
#include "runtime/base/host.h"
#include "runtime/base/log.h"

namespace nccl_ha::relay {

Result<Discovery::Timing> discovery_timing(const Config& config) {
  if (config.mesh_dead_ms < 2 * config.mesh_hello_ms) {
    return fail(
        Errc::invalid_argument,
        fmt::format("HA_NCCL_MESH_DEAD_MS={} must be at least twice HA_NCCL_MESH_HELLO_MS={}, as "
                    "one lost packet would else lose a neighbour",
                    config.mesh_dead_ms, config.mesh_hello_ms));
  }
  Discovery::Timing timing;
  timing.neighbours.hello = std::chrono::milliseconds(config.mesh_hello_ms);
  timing.neighbours.dead = std::chrono::milliseconds(config.mesh_dead_ms);
  return timing;
}

RouteOptions route_options(const Config& config) {
  RouteOptions options;
  options.relay = config.mesh_enable_relay;
  options.relays_max = static_cast<size_t>(config.mesh_max_hops);
  options.split = config.mesh_ring_split;
  options.detour_max = static_cast<size_t>(config.mesh_ring_detour);
  return options;
}

RelayOptions relay_options(const Config& config, NodeId self) {
  RelayOptions options;
  options.self = self;
  options.relays_max = static_cast<size_t>(config.mesh_max_hops);
  options.sessions_max = static_cast<size_t>(config.mesh_sessions);
  options.sessions_per_host = static_cast<size_t>(config.mesh_sessions_per_host);
  options.pool_bytes = static_cast<size_t>(config.mesh_pool_bytes);
  options.flight_bytes = static_cast<uint64_t>(config.mesh_flight_bytes);
  options.chunk_bytes = piece_bytes(static_cast<uint32_t>(config.mesh_chunk_bytes));
  options.slots_max = slots_accepted(static_cast<uint16_t>(config.mesh_slots));
  options.store = config.mesh_store;
  return options;
}

Result<std::shared_ptr<KeyFile>> cluster_key(const Config& config) {
  if (config.mesh_key_file.empty()) {
    return std::shared_ptr<KeyFile>();
  }
  auto keys = KeyFile::open(config.mesh_key_file);
  if (!keys) {
    const auto origin = config.origins.find("mesh_key_file");
    const std::string variable =
        origin != config.origins.end() ? origin->second.variable : "HA_NCCL_MESH_KEY_FILE";
    return fail(keys.error().code, variable + ": " + keys.error().what, keys.error().sys);
  }
  return keys;
}

void warn_without(const std::shared_ptr<KeyFile>& key) {
  if (key == nullptr) {
    NHA_LOG_WARN(
        "no key of the cluster is set (HA_NCCL_MESH_KEY_FILE): any host on a cable of this one can "
        "join the mesh, change its routes, and read and change what it relays");
  }
}

Discovery::Identity mesh_identity(const std::vector<fabric::NetInterface>& own, bool relays,
                                  uint32_t incarnation) {
  Discovery::Identity identity;
  for (const fabric::NetInterface& one : own) {
    identity.addresses.insert(identity.addresses.end(), one.addresses.begin(), one.addresses.end());
  }
  identity.node = make_node_id(identity.addresses, machine_id());
  identity.incarnation = incarnation;
  identity.name = clean_node_name(host_name());
  identity.relays = relays;
  return identity;
}

}  // namespace nccl_ha::relay
