#include "runtime/fabric/provider.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/fabric/datagram/port.h"
#include "runtime/fabric/datagram/udp_io.h"
#include "runtime/log.h"
#include "runtime/worker.h"

namespace nccl_ha::fabric {

Result<std::unique_ptr<Provider>> Provider::make(const Config& config,
                                                 std::vector<NetInterface> interfaces,
                                                 size_t workers) {
  auto faults = parse_fault_plan(config.dgram_faults);
  if (!faults) {
    return faults.error();
  }
  std::unique_ptr<Provider> provider(new Provider);
  provider->options_ = DatagramOptions::from(config);
  provider->faults_ = *faults;
  provider->socket_bytes_ = static_cast<int>(config.dgram_socket_bytes);
  provider->offload_ = config.dgram_gso;
  provider->interfaces_ = std::move(interfaces);
  provider->ports_.resize(workers);
  if (faults->active()) {
    NHA_LOG_WARN("fault injection is on (HA_NCCL_DGRAM_FAULTS={}): packets will be lost on purpose",
                 config.dgram_faults);
  }
  return provider;
}

std::optional<size_t> Provider::interface_of(const sockaddr* address) const {
  const auto wanted = IpAddress::from_sockaddr(address);
  for (size_t i = 0; wanted && i < interfaces_.size(); ++i) {
    for (const IpAddress& own : interfaces_[i].addresses) {
      if (own.family == wanted->family && own.bytes == wanted->bytes) {
        return i;
      }
    }
  }
  return std::nullopt;
}

Result<OwnedPath> Provider::create_path(Context& context, const sockaddr* local,
                                        const PathOptions& options, PathOwner* owner) {
  const auto ip = IpAddress::from_sockaddr(local);
  if (!ip) {
    return ip.error();
  }
  const auto index = interface_of(local);
  // An address of an interface that is not ours to use (a loopback alias, say) still works.
  const uint32_t mtu = index ? interfaces_[*index].mtu : 1500;
  SocketAddress address;
  address.length = ip->to_sockaddr(0, &address.storage);
  auto port = open_port(context, address, std::min<uint32_t>(mtu, 65536));
  if (!port) {
    return port.error();
  }
  auto path = (*port)->create_path(options, owner);
  if (!path) {
    return path.error();
  }
  return OwnedPath{std::move(*port), std::move(*path)};
}

Result<std::shared_ptr<DatagramPort>> Provider::open_port(Context& context,
                                                          const SocketAddress& local,
                                                          uint32_t mtu) {
  std::vector<Slot>& slots = ports_[context.worker_index()];
  auto slot =
      std::find_if(slots.begin(), slots.end(), [&](const Slot& s) { return s.address == local; });
  if (slot == slots.end()) {
    slots.push_back({local, {}});
    slot = slots.end() - 1;
  }
  if (auto port = slot->port.lock()) {
    return port;
  }
  auto udp = UdpIo::open({local, socket_bytes_, offload_});
  if (!udp) {
    return udp.error();
  }
  std::unique_ptr<PacketIo> io = std::move(*udp);
  if (faults_.active()) {
    FaultPlan plan = faults_;
    plan.seed += context.random().below(1U << 20);  // peers must not lose in step
    io = std::make_unique<FaultIo>(std::move(io), plan);
  }
  DatagramPort::Environment environment;
  environment.memory = &memory_;
  environment.clock = &context.clock();
  environment.timers = &context.timers();
  environment.random = &context.random();
  environment.recorder = &context.recorder();
  auto* raw = new DatagramPort(std::move(io), options_, environment, mtu);
  context.add_poller(raw);
  std::shared_ptr<DatagramPort> port(raw, [&context](DatagramPort* p) {
    context.remove_poller(p);
    delete p;
  });
  slot->port = port;
  return port;
}

}  // namespace nccl_ha::fabric
