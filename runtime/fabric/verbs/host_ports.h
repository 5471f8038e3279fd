// The usable RDMA ports of this host, driven through rdma-core.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/config.h"
#include "runtime/fabric/nic_board.h"
#include "runtime/fabric/rdma.h"
#include "runtime/fabric/verbs/device.h"

namespace nccl_ha::fabric::verbs {

class Port;

class HostPorts final : public RdmaPorts {
 public:
  /// For `workers` threads; `board` is told what the devices report and outlives them.
  HostPorts(std::vector<UsablePort> usable, size_t workers, NicBoard& board);
  ~HostPorts() override;

  size_t count() const override { return usable_.size(); }
  const RdmaPort& at(size_t port) const override { return ports_[port]; }
  DeviceLimits limits(size_t port) const override;
  bool is_busy(size_t port) const override;
  Result<RegionKeys> add_memory(size_t port, const RegionOrigin& origin, Waits who) override;
  std::shared_ptr<OwnMemory> own_memory(size_t port, const RegionOrigin& origin,
                                        std::shared_ptr<void> bytes) override;
  void remove_memory(size_t port, const RegionKeys& keys, std::shared_ptr<void> keep) override;
  Result<OwnedPath> create_path(Context& context, size_t port, const PathOptions& options,
                                PathOwner* owner) override;
  Result<std::unique_ptr<PacketIo>> open_datagrams(Context& context, size_t port) override;

 private:
  void watch_device(Context& context, const UsablePort& usable);

  std::vector<UsablePort> usable_;
  std::vector<RdmaPort> ports_;
  NicBoard& board_;
  std::atomic<uint32_t> next_name_{UINT32_MAX};  ///< downwards: devices count their keys from below
  std::vector<std::vector<std::weak_ptr<Port>>> open_;  // per worker and port
};

}  // namespace nccl_ha::fabric::verbs
