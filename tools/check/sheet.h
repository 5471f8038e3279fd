// What one host tells the others of itself before the network between them is tried.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tools/check/findings.h"

namespace nccl_ha::tools {

/// A device that the plugin would use.
struct RailSheet {
  std::string name;
  std::vector<std::string> addresses;
  std::vector<std::string> networks;  ///< of those addresses, as in 10.0.0.0/24
  int64_t mtu = 0;                    ///< bytes: of RDMA the path's, else the interface's
  int64_t speed_mbps = 0;             ///< 10^6 bit/s
  std::string mac;                    ///< as in 02:00:00:00:00:01; empty: none
  std::string interface = {};         ///< beneath a device of RDMA; else the name
};

struct HostSheet {
  std::string name;     ///< as the host calls itself
  std::string machine;  ///< equal for processes that see the same network of the same machine
  std::string version;
  std::string commit;
  int64_t protocol = 0;         ///< between two plugins: the newest version that it speaks
  int64_t protocol_oldest = 0;  ///< and the oldest
  std::string kernel;
  std::string rdma_core;  ///< empty: not installed
  double clock_s =
      0;  ///< seconds since 1970, at a moment that all hosts share but for network delay
  std::map<std::string, std::string> settings;  ///< by variable
  std::string plugin_asked;                     ///< NCCL_NET_PLUGIN; empty: not set
  bool asks_for_plugin = false;                 ///< that is set, and tells NCCL to load one
  std::vector<RailSheet> rails;
  std::vector<std::string> bare;  ///< interfaces that only stand by: they have link-local addresses
};

nlohmann::json to_json(const HostSheet& sheet);
/// An error for what no sheet looks like.
Result<HostSheet> sheet_from_json(const nlohmann::json& from);

/// This host's, but for the clock.
HostSheet make_sheet(const HostFacts& facts);

/// As in 10.0.0.0/24, of an address in it.
std::string network_of(IpAddress address);

/// Now, in seconds since 1970.
double wall_clock_s();

/// A line about versions, for people.
std::string versions_text(const HostSheet& sheet);

}  // namespace nccl_ha::tools
