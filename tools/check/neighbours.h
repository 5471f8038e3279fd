// Which interface of another host answers for an address, as the kernel's table of neighbours says.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tools/check/sheet.h"

namespace nccl_ha::tools {

/// What ARP learned of an address.
struct Neighbour {
  std::string address;
  std::string mac;
  std::string device;  ///< the interface that asked
};
/// Those that answered.  `file`: /proc/net/arp, but for tests.
std::vector<Neighbour> read_neighbours(const std::string& file = "/proc/net/arp");
nlohmann::json to_json(const std::vector<Neighbour>& neighbours);
/// Leaves out what no neighbour looks like.
std::vector<Neighbour> neighbours_from_json(const nlohmann::json& from);

/// Cables that lead to another rail than the addresses say: traffic may work all the same, as Linux
/// answers for all its addresses on every interface.  Left out is what shows no cable: an interface
/// that asked for an address of another network (a route), an answer by another interface in the
/// same network, and one interface that answers for several others.  `neighbours` and `names` by
/// rank, after all hosts have tried each other.  Pure.
std::vector<Finding> judge_neighbours(const std::vector<HostSheet>& sheets,
                                      const std::vector<std::vector<Neighbour>>& neighbours,
                                      const std::vector<std::string>& names);

}  // namespace nccl_ha::tools
