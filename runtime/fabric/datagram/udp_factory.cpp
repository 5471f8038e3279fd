#include "runtime/fabric/datagram/udp_factory.h"

#include <algorithm>
#include <utility>

#include "runtime/fabric/datagram/port.h"
#include "runtime/fabric/datagram/udp_io.h"

namespace nccl_ha::fabric {

UdpFactory::UdpFactory(const Config& config, FabricHost& host, PortOpener opener,
                       PacketSource packets)
    : host_(host),
      opener_(std::move(opener)),
      packets_(std::move(packets)),
      forced_(fabric_is_forced(config)),
      backs_(config.enable_backup && config.shadow_datagrams && !forced_),
      offload_(config.dgram_gso),
      socket_bytes_(static_cast<int>(config.dgram_socket_bytes)),
      paths_wanted_(static_cast<size_t>(config.dgram_paths)),
      ports_(host.workers) {}

std::vector<NetDevice> UdpFactory::devices() const {
  std::vector<NetDevice> devices;
  const auto interfaces = host_.interfaces.now();
  for (size_t i = 0; i < interfaces->size() && !forced_; ++i) {
    const NetInterface& interface = (*interfaces)[i];
    if (!interface.offered) {
      break;  // those that only stand by come last
    }
    NetDevice device;
    device.kind = kind();
    device.name = interface.name;
    device.netdev = interface.name;
    device.guid = interface.guid;
    device.pci_path = interface.pci_path;
    device.numa_node = interface.numa_node;
    device.speed_mbps = interface.speed_mbps;
    device.switch_id = interface.port.switch_id;
    device.port_name = interface.port.port_name;
    device.index = i;
    device.control_interface = i;
    devices.push_back(std::move(device));
  }
  return devices;
}

bool UdpFactory::serves(const NetDevice& device) const { return device.kind == kind() || !forced_; }

PathTraits UdpFactory::traits(const NetDevice& device) const {
  (void)device;
  return {};
}

void UdpFactory::add_places(const Attachment& of, std::vector<Place>& places) const {
  const NetDevice& device = host_.devices[of.device];
  const bool own = of.kind == kind();
  if (!own && (!backs_ || device.peer_memory || device.dmabuf)) {
    return;  // what lies in a GPU is out of their reach
  }
  // Numbers of devices are taken where those are not the interfaces themselves.
  const size_t first_number = own ? 0 : host_.devices.size();
  // The peer is told the first ones only, so the best address of each comes before all others.
  const auto interfaces = host_.interfaces.now();
  std::vector<std::vector<IpAddress>> addresses;
  size_t longest = 0;
  for (const NetInterface& interface : *interfaces) {
    addresses.push_back(interface.all_addresses());
    longest = std::max(longest, addresses.back().size());
  }
  for (size_t rank = 0; rank < longest; ++rank) {
    for (size_t i = 0; i < interfaces->size(); ++i) {
      const NetInterface& interface = (*interfaces)[i];
      if (rank < addresses[i].size() && (own || !host_.beneath_device(interface))) {
        const size_t number = first_number + FabricHost::cable_of(*interfaces, i);
        places.push_back({{of.device, kind()},
                          static_cast<uint16_t>(number),
                          addresses[i][rank],
                          interface.pci_path});
      }
    }
  }
}

uint16_t UdpFactory::place_number(const Attachment& at, const sockaddr* local) const {
  (void)at;
  const auto interfaces = host_.interfaces.now();
  const auto own = find_interface(*interfaces, local);
  return own ? static_cast<uint16_t>(FabricHost::cable_of(*interfaces, *own)) : UINT16_MAX;
}

std::string UdpFactory::nic_of(const NetDevice& device, const sockaddr* local) const {
  (void)device;
  const auto interfaces = host_.interfaces.now();
  const auto own = find_interface(*interfaces, local);
  return own ? (*interfaces)[*own].name : std::string();
}

Result<OwnedPath> UdpFactory::create_path(Context& context, const Attachment& at,
                                          const sockaddr* local, const PathOptions& options,
                                          PathOwner* owner) {
  (void)at;
  const auto ip = IpAddress::from_sockaddr(local);
  if (!ip) {
    return ip.error();
  }
  const auto interfaces = host_.interfaces.now();
  const auto index = find_interface(*interfaces, local);
  // An address of an interface that is not ours to use (a loopback alias, say) still works.
  const uint32_t mtu = index ? (*interfaces)[*index].mtu : 1500;
  SocketAddress address;
  address.length = ip->to_sockaddr(0, &address.storage);
  std::vector<Slot>& slots = ports_[context.worker_index()];
  auto slot =
      std::find_if(slots.begin(), slots.end(), [&](const Slot& s) { return s.address == address; });
  if (slot == slots.end()) {
    slots.push_back({address, {}});
    slot = slots.end() - 1;
  }
  return opener_.create_path(
      context, slot->port, std::min<uint32_t>(mtu, 65536), [&] { return open(address); }, options,
      owner);
}

Result<std::unique_ptr<PacketIo>> UdpFactory::open(const SocketAddress& local) const {
  if (packets_) {
    return packets_(local);
  }
  auto udp = UdpIo::open({local, socket_bytes_, offload_});
  if (!udp) {
    return udp.error();
  }
  return std::unique_ptr<PacketIo>(std::move(*udp));
}

}  // namespace nccl_ha::fabric
