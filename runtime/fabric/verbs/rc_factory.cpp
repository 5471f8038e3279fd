#include "runtime/fabric/verbs/rc_factory.h"

#include <algorithm>
#include <utility>

namespace nccl_ha::fabric::verbs {

RcFactory::RcFactory(const Config& config, FabricHost& host, std::shared_ptr<RdmaPorts> ports)
    : RdmaFactory(host, std::move(ports), config.fabric != "ud"),
      paths_wanted_(static_cast<size_t>(config.ib_qps)),
      shadows_(config.enable_backup ? static_cast<size_t>(config.shadow_paths) : 0),
      flushes_(config.ib_flush != 0),
      may_reorder_(config.ib_adaptive_routing > 0),
      end_apart_above_(static_cast<uint32_t>(config.ib_ar_threshold)) {}

PathTraits RcFactory::traits(const NetDevice& device) const {
  PathTraits traits;
  traits.placed_by_nic = true;
  traits.acknowledged_by_nic = true;
  traits.keys_per_device = true;
  traits.visible_before_completion = true;
  traits.reaches_gpu_memory = device.peer_memory || device.dmabuf;
  traits.may_reorder = may_reorder_;
  traits.end_apart_above = may_reorder_ ? end_apart_above_ : UINT32_MAX;
  return traits;
}

size_t RcFactory::connections_max(const NetDevice& device, size_t most) const {
  // A shadow's queue pair lies on another device, but the others' shadows lie on this one.
  const size_t paths = paths_wanted_ + std::min(shadows_, port_count() - 1);
  const bool flushes = device.peer_memory || device.dmabuf || flushes_;
  const size_t pairs = ports().queue_pairs(device.index);
  return std::clamp<size_t>(pairs / (paths * (flushes ? 2 : 1)), 1, most);
}

Result<RegionKeys> RcFactory::add_memory(const NetDevice& device, const RegionOrigin& origin) {
  return ports().add_memory(device.index, origin);
}

void RcFactory::remove_memory(const NetDevice& device, const RegionKeys& keys) {
  ports().remove_memory(device.index, keys);
}

Result<OwnedPath> RcFactory::create_path(Context& context, const Attachment& at,
                                         const sockaddr* local, const PathOptions& options,
                                         PathOwner* owner) {
  (void)local;
  return ports().create_path(context, port_of(at), options, owner);
}

}  // namespace nccl_ha::fabric::verbs
