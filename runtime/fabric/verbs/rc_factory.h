// RC queue pairs.
#pragma once

#include <memory>

#include "runtime/fabric/rdma_factory.h"

namespace nccl_ha::fabric::verbs {

inline constexpr FabricKind rc_kind{2};

class RcFactory final : public RdmaFactory {
 public:
  RcFactory(const Config& config, FabricHost& host, std::shared_ptr<RdmaPorts> ports);

  FabricKind kind() const override { return rc_kind; }
  const char* setting() const override { return "verbs"; }
  const char* text() const override { return "RDMA"; }
  PathTraits traits(const NetDevice& device) const override;
  size_t paths_wanted() const override { return paths_wanted_; }
  size_t connections_max(const NetDevice& device, size_t most) const override;
  /// Its keys are of no use to what comes in its place.
  uint32_t incarnation(const NetDevice& device) const override {
    return ports().incarnation(device.index);
  }
  bool is_busy(const Attachment& at) const override { return ports().is_busy(end_of(at)); }
  Result<RegionKeys> add_memory(const Attachment& at, const RegionOrigin& origin,
                                Waits who) override;
  Result<std::shared_ptr<OwnMemory>> own_memory(const Attachment& at, const RegionOrigin& origin,
                                                std::shared_ptr<void> bytes) override;
  void remove_memory(const Attachment& at, const RegionKeys& keys,
                     std::shared_ptr<void> keep) override;
  Result<OwnedPath> create_path(Context& context, const Attachment& at, const sockaddr* local,
                                const PathOptions& options, PathOwner* owner) override;

 private:
  RdmaEnd end_of(const Attachment& at) const { return {port_of(at), at.incarnation}; }

  size_t paths_wanted_;
  size_t shadows_;            ///< a connection has over other devices, at most
  bool flushes_;              ///< HA_NCCL_IB_FLUSH
  bool may_reorder_;          ///< HA_NCCL_IB_ADAPTIVE_ROUTING says so
  uint32_t end_apart_above_;  ///< HA_NCCL_IB_AR_THRESHOLD, where packets overtake each other
};

}  // namespace nccl_ha::fabric::verbs
