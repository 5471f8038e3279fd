#include "relay/mesh_links.h"

#include <algorithm>

namespace nccl_ha::relay {

std::vector<fabric::NetInterface> select_mesh_interfaces(
    const std::vector<fabric::NetInterface>& all, std::string_view spec) {
  auto chosen = fabric::select_interfaces(all, spec, "");
  if (!chosen) {
    return {};
  }
  const fabric::LinkClass best = chosen->front().leads_to;
  std::erase_if(*chosen, [&](const fabric::NetInterface& one) {
    return one.loopback || !one.up || (spec.empty() && one.leads_to != best);
  });
  if (spec.empty()) {
    int64_t fastest = 0;
    for (const fabric::NetInterface& one : *chosen) {
      fastest = std::max(fastest, one.speed_mbps);
    }
    std::erase_if(*chosen,
                  [&](const fabric::NetInterface& one) { return one.speed_mbps < fastest / 4; });
  }
  return std::move(*chosen);
}

Result<std::vector<fabric::NetInterface>> list_mesh_interfaces(std::string_view spec) {
  const auto all = fabric::list_interfaces();
  if (!all) {
    return all.error();
  }
  return select_mesh_interfaces(*all, spec);
}

std::vector<MeshInterface> as_mesh_interfaces(const std::vector<fabric::NetInterface>& own) {
  std::vector<MeshInterface> out;
  for (const fabric::NetInterface& one : own) {
    const auto speed = std::clamp<int64_t>(one.speed_mbps, 0, UINT32_MAX);
    out.push_back({static_cast<uint32_t>(one.ifindex), one.name, static_cast<uint32_t>(speed)});
  }
  return out;
}

}  // namespace nccl_ha::relay
