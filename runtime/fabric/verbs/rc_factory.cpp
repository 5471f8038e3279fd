#include "runtime/fabric/verbs/rc_factory.h"

#include <algorithm>
#include <utility>

#include "runtime/fabric/verbs/port.h"

namespace nccl_ha::fabric::verbs {
namespace {

/// What a path's end registers at most: memory for control, and NCCL's buffers of three protocols.
constexpr size_t regions_per_path = 12;
/// Flushes under way of a connection.
constexpr uint32_t flushes_each = 32;
/// One part of so many stays for paths that are made anew while the ones before them end, and for
/// what else uses the device.
constexpr size_t margin_part = 8;

}  // namespace

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
  const DeviceLimits limits = ports().limits(device.index);
  PathOptions options;
  options.flushes_max = flushes ? flushes_each : 0;
  const size_t entries = Port::entries_of(options);
  const size_t by_pairs = limits.queue_pairs / (flushes ? 2 : 1);
  const size_t in_queue =
      std::min<size_t>(limits.completion_entries, Port::queue_entries_max) / entries;
  const size_t by_entries = in_queue * limits.completion_queues;
  const size_t by_regions = limits.regions / regions_per_path;
  const size_t tightest = std::min({by_pairs, by_entries, by_regions}) / paths;
  return std::clamp<size_t>(tightest - (tightest + margin_part - 1) / margin_part, 1, most);
}

Result<RegionKeys> RcFactory::add_memory(const Attachment& at, const RegionOrigin& origin,
                                         Waits who) {
  return ports().add_memory(end_of(at), origin, who);
}

Result<std::shared_ptr<OwnMemory>> RcFactory::own_memory(const Attachment& at,
                                                         const RegionOrigin& origin,
                                                         std::shared_ptr<void> bytes) {
  return ports().own_memory(end_of(at), origin, std::move(bytes));
}

void RcFactory::remove_memory(const Attachment& at, const RegionKeys& keys,
                              std::shared_ptr<void> keep) {
  (void)at;
  ports().remove_memory(keys, std::move(keep));
}

Result<OwnedPath> RcFactory::create_path(Context& context, const Attachment& at,
                                         const sockaddr* local, const PathOptions& options,
                                         PathOwner* owner) {
  (void)local;
  return ports().create_path(context, end_of(at), options, owner);
}

}  // namespace nccl_ha::fabric::verbs
