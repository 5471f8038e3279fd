// Makes paths over the network devices of this host, whatever provider carries them.
#pragma once

#include <memory>
#include <vector>

#include "runtime/config.h"
#include "runtime/context.h"
#include "runtime/fabric/datagram/fault_io.h"
#include "runtime/fabric/datagram/options.h"
#include "runtime/fabric/interfaces.h"
#include "runtime/fabric/memory.h"
#include "runtime/fabric/path.h"

namespace nccl_ha::fabric {

class DatagramPort;

/// A path together with what keeps its port alive.  Destroy both on the worker's thread, at the end
/// of a turn (an actor's destructor is such a place).
struct OwnedPath {
  std::shared_ptr<DatagramPort> port;
  std::unique_ptr<Path> path;
  void reset() {
    path.reset();
    port.reset();
  }
};

/// The datagram provider over UDP sockets: one port per worker and interface, opened when the first
/// path needs it and closed with the last one.
class Provider {
 public:
  static Result<std::unique_ptr<Provider>> make(const Config& config,
                                                std::vector<NetInterface> interfaces,
                                                size_t workers);

  /// Any thread.
  const std::vector<NetInterface>& interfaces() const { return interfaces_; }
  Memory& memory() { return memory_; }
  /// Index of the interface that owns `address`; nullopt for a foreign one.
  std::optional<size_t> interface_of(const sockaddr* address) const;

  /// On the worker's thread.  `local` chooses interface and family.
  Result<OwnedPath> create_path(Context& context, const sockaddr* local, const PathOptions& options,
                                PathOwner* owner);

 private:
  struct Slot {
    SocketAddress address;
    std::weak_ptr<DatagramPort> port;
  };
  Provider() = default;
  Result<std::shared_ptr<DatagramPort>> open_port(Context& context, const SocketAddress& local,
                                                  uint32_t mtu);

  DatagramOptions options_;
  FaultPlan faults_;
  int socket_bytes_ = 0;
  bool offload_ = true;
  std::vector<NetInterface> interfaces_;
  Memory memory_;
  std::vector<std::vector<Slot>> ports_;  // per worker, touched by that worker only
};

}  // namespace nccl_ha::fabric
