// What a host tells the others of its place among hosts that are cabled without a switch.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "relay/link_state.h"
#include "runtime/base/config.h"
#include "runtime/fabric/interfaces.h"
#include "tools/common/cabling.h"
#include "tools/common/mesh_sight.h"

namespace nccl_ha::tools {

/// An interface into which a cable may be plugged.
struct MeshPort {
  std::string name;
  uint32_t ifindex = 0;
  bool enabled = false;    ///< `ip link set up`
  bool link = false;       ///< it has a carrier
  bool addressed = false;  ///< it has an IP address, link-local or not
  bool in_mesh = false;    ///< HA_NCCL_MESH_IFNAME allows it, or would if it had a carrier
  bool is_device = false;  ///< the plugin has a device there
  int64_t mtu = 0;         ///< bytes
  int64_t speed_mbps = 0;  ///< 10^6 bit/s; 0: unknown
  /// The NIC and its port where several PCI functions share a port; empty: unknown.
  std::string nic;
  std::string nic_port;
  std::vector<std::string> addresses;  ///< as in 10.0.0.1/24, without link-local ones
  std::vector<std::string> networks;   ///< of these, as in 10.0.0.0/24
};

struct MeshSheet {
  std::string error;  ///< why this host could not look; empty: it did
  MeshSight::Origin origin = MeshSight::Origin::own;
  relay::NodeId self{};
  std::vector<relay::LinkState> states;  ///< all hosts that it knows
  std::vector<OneWay> one_way;
  std::vector<MeshPort> ports;
  /// The setting that keeps this host's job processes from relaying and from paths over relays,
  /// as in HA_NCCL_MESH_RELAY=off; empty: none.
  std::string takes_no_part;
  std::string ifname;    ///< HA_NCCL_MESH_IFNAME
  std::string expected;  ///< HA_NCCL_MESH_TOPOLOGY
  uint64_t relays_max = 0;
  uint64_t udp_port = 0;  ///< HA_NCCL_MESH_PORT
  bool has_key = false;   ///< HA_NCCL_MESH_KEY_FILE
};

nlohmann::json to_json(const MeshSheet& sheet);
/// An error for what no sheet looks like.
Result<MeshSheet> mesh_sheet_from_json(const nlohmann::json& from);

/// This host's.  `all`: its interfaces; `devices`: the interfaces at which the plugin has a device.
MeshSheet make_mesh_sheet(const Config& config, const std::vector<fabric::NetInterface>& all,
                          const std::vector<std::string>& devices, const Result<MeshSight>& sight);

/// A topology as its hosts would tell it.  Pure.
std::vector<relay::LinkState> states_of(const relay::Topology& topology);

}  // namespace nccl_ha::tools
