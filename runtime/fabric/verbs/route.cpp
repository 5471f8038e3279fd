#include "runtime/fabric/verbs/route.h"

#include <algorithm>
#include <cstring>

#include "runtime/fabric/verbs/options.h"

namespace nccl_ha::fabric::verbs {
namespace {

// Of the subnet prefix, which are a GID's first eight bytes.
constexpr size_t prefix_bytes = 8;
constexpr size_t router_lid = 4;  ///< two bytes; 0: none is named
constexpr size_t subnet_number = 6;

/// Both have the same bytes in the prefix, from that one on.
bool same_prefix(const Gid& one, const Gid& other, size_t from) {
  return std::equal(one.begin() + static_cast<ptrdiff_t>(from), one.begin() + prefix_bytes,
                    other.begin() + static_cast<ptrdiff_t>(from));
}

uint16_t router_to(const Gid& peer) {
  return static_cast<uint16_t>(peer[router_lid] << 8U | peer[router_lid + 1]);
}

}  // namespace

ibv_ah_attr route_between(const PortInfo& from, const std::optional<GidEntry>& gid,
                          const RouteEnd& to, RouteClass how) {
  ibv_ah_attr route{};
  route.port_num = from.port;
  route.sl = how.service_level;
  const bool infiniband = from.link == LinkLayer::infiniband;
  if (infiniband) {
    const bool beyond_router = gid && !same_prefix(to.gid, gid->bytes, subnet_number);
    route.dlid = beyond_router && router_to(to.gid) != 0 ? router_to(to.gid) : to.lid;
  }
  if (from.needs_gid() || (gid && !same_prefix(to.gid, gid->bytes, 0))) {
    route.is_global = 1;
    std::memcpy(route.grh.dgid.raw, to.gid.data(), to.gid.size());
    route.grh.sgid_index = gid ? static_cast<uint8_t>(gid->index) : 0;
    route.grh.hop_limit = hop_limit;
    route.grh.traffic_class = how.traffic_class;
  }
  return route;
}

}  // namespace nccl_ha::fabric::verbs
