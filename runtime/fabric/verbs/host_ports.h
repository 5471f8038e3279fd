// The usable RDMA ports of this host, driven through rdma-core.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/base/config.h"
#include "runtime/fabric/nic_board.h"
#include "runtime/fabric/rdma.h"
#include "runtime/fabric/verbs/device.h"
#include "runtime/fabric/verbs/successor.h"

namespace nccl_ha::fabric::verbs {

class Port;

/// Devices that are gone, for what still has memory or paths there.  Any thread.
class GoneDevices {
 public:
  void add(const std::shared_ptr<Device>& device);
  /// Null: it is none of them.
  std::shared_ptr<Device> find(const ibv_context* context) const;
  /// Ends those that nothing needs any more, by control verbs.
  void end_unused();

 private:
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<Device>> devices_;
};

class HostPorts final : public RdmaPorts {
 public:
  /// open_successor() of rdma-core's, or of a simulation.  Any thread.
  using FindSuccessor = std::function<std::vector<UsablePort>(const NicIdentity& before)>;
  /// For `workers` threads; `board` is told what the devices report and outlives them.  Without
  /// `find` a device that is gone stays so.
  HostPorts(std::vector<UsablePort> usable, size_t workers, NicBoard& board,
            FindSuccessor find = {});
  ~HostPorts() override;

  size_t count() const override { return facts_.size(); }
  const DeviceFacts& at(size_t port) const override { return facts_[port]; }
  DeviceLimits limits(size_t port) const override;
  uint32_t incarnation(size_t port) const override;
  IpAddress address(size_t port) const override;
  bool is_busy(const RdmaEnd& end) const override;
  Result<RegionKeys> add_memory(const RdmaEnd& end, const RegionOrigin& origin, Waits who) override;
  Result<std::shared_ptr<OwnMemory>> own_memory(const RdmaEnd& end, const RegionOrigin& origin,
                                                std::shared_ptr<void> bytes) override;
  void remove_memory(const RegionKeys& keys, std::shared_ptr<void> keep) override;
  Result<OwnedPath> create_path(Context& context, const RdmaEnd& end, const PathOptions& options,
                                PathOwner* owner) override;
  Result<std::unique_ptr<PacketIo>> open_datagrams(Context& context, const RdmaEnd& end) override;

 private:
  /// A port as it is now.
  struct Present {
    UsablePort usable;
    IpAddress address;  ///< the last one that was known
    uint32_t incarnation = 0;
  };
  /// Of an end that is not over.
  Result<UsablePort> present(const RdmaEnd& end) const;
  /// For a worker's own; one that has failed is watched too, as it may come back.
  Result<UsablePort> watched(Context& context, const RdmaEnd& end);
  void watch_device(Context& context, const UsablePort& usable);
  /// From now on these ports are those of what has come in place of their device.
  void replace(const std::vector<size_t>& ports, const std::vector<UsablePort>& found);

  std::vector<DeviceFacts> facts_;
  NicBoard& board_;
  const FindSuccessor find_;
  const std::shared_ptr<GoneDevices> gone_ = std::make_shared<GoneDevices>();
  mutable std::mutex mutex_;
  std::vector<Present> present_;
  uint32_t returns_ = 0;                         ///< of devices
  std::atomic<uint32_t> next_name_{UINT32_MAX};  ///< downwards: devices count their keys from below
  std::vector<std::vector<std::weak_ptr<Port>>> open_;  // per worker and port
};

}  // namespace nccl_ha::fabric::verbs
