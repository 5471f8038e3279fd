#include "runtime/fabric/provider.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>

#include "runtime/fabric/datagram/port.h"
#include "runtime/fabric/datagram/udp_io.h"
#include "runtime/fabric/verbs/device_watch.h"
#include "runtime/fabric/verbs/port.h"
#include "runtime/fabric/verbs/ud_io.h"
#include "runtime/log.h"
#include "runtime/worker.h"

namespace nccl_ha::fabric {

const char* to_text(FabricKind kind) {
  switch (kind) {
    case FabricKind::datagram:
      return "datagrams over UDP";
    case FabricKind::verbs:
      return "RDMA";
    case FabricKind::ud:
      return "RDMA datagrams";
  }
  return "unknown";
}

std::optional<FabricKind> fabric_kind(uint8_t number) {
  for (const FabricKind kind : {FabricKind::datagram, FabricKind::verbs, FabricKind::ud}) {
    if (static_cast<uint8_t>(kind) == number) {
      return kind;
    }
  }
  return std::nullopt;
}

Result<void> check_fabric_name(const Config& config) {
  if (config.fabric == "auto" || config.fabric == "datagram" || fabric_is_forced(config)) {
    return {};
  }
  return fail(Errc::invalid_argument,
              fmt::format("HA_NCCL_FABRIC={}: use auto, verbs, ud or datagram", config.fabric));
}

bool fabric_is_forced(const Config& config) {
  return config.fabric == "verbs" || config.fabric == "ud";
}

Provider::Provider() = default;
Provider::~Provider() = default;

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
  if (auto chosen = provider->choose_devices(config); !chosen) {
    return chosen.error();
  }
  const size_t rdma_ports = provider->rdma_.size();
  provider->keeps_book_ = config.enable_backup && rdma_ports > 1;
  provider->rdma_ports_.resize(workers, std::vector<std::weak_ptr<verbs::Port>>(rdma_ports));
  provider->ud_ports_.resize(workers, std::vector<std::weak_ptr<DatagramPort>>(rdma_ports));
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

std::string Provider::interface_beneath(const Attachment& at, const sockaddr* local) const {
  if (at.kind != FabricKind::datagram) {
    return rdma_[devices_[at.device].index].info.netdev;
  }
  const auto own = interface_of(local);
  return own ? interfaces_[*own].name : std::string();
}

Result<void> Provider::choose_devices(const Config& config) {
  const std::string& fabric = config.fabric;
  const bool forced = fabric_is_forced(config);
  if (auto known = check_fabric_name(config); !known) {
    return known;
  }
  verbs::PortList list;
  if (forced || (fabric == "auto" && !config.ib_disable)) {
    auto found = verbs::list_ports(config);
    if (!found) {
      return found.error();
    }
    list = std::move(*found);
    for (const std::string& note : list.notes) {
      NHA_LOG_INFO("{}", note);
    }
    if (list.ports.empty() && forced) {
      std::string why;
      for (const std::string& note : list.notes) {
        why += (why.empty() ? "" : "; ") + note;
      }
      return fail(Errc::system,
                  fmt::format("HA_NCCL_FABRIC={}, but no RDMA port is usable: {}", fabric, why));
    }
  }
  rdma_ = std::move(list.ports);
  for (size_t i = 0; i < rdma_.size(); ++i) {
    const verbs::PortInfo& port = rdma_[i].info;
    NetDevice device;
    device.kind = fabric == "ud" ? FabricKind::ud : FabricKind::verbs;
    device.name = port.port_count > 1 ? fmt::format("{}:{}", port.device, port.port) : port.device;
    device.guid = port.guid;
    device.pci_path = port.pci_path;
    device.numa_node = port.numa_node;
    device.speed_mbps = port.speed_mbps;
    device.port = port.port;
    // The datagram engine's bytes are moved by the processor.
    device.peer_memory = device.kind == FabricKind::verbs && rdma_[i].device->peer_memory();
    device.dmabuf = device.kind == FabricKind::verbs && rdma_[i].device->dmabuf();
    device.index = i;
    devices_.push_back(std::move(device));
  }
  if (!rdma_.empty()) {
    // Control connections better not share the fate of the rail they look after.
    std::stable_partition(interfaces_.begin(), interfaces_.end(), [&](const NetInterface& own) {
      return std::none_of(rdma_.begin(), rdma_.end(), [&](const verbs::UsablePort& port) {
        return port.info.netdev == own.name;
      });
    });
    return {};
  }
  for (size_t i = 0; i < interfaces_.size(); ++i) {
    const NetInterface& interface = interfaces_[i];
    NetDevice device;
    device.name = interface.name;
    device.guid = interface.guid;
    device.pci_path = interface.pci_path;
    device.numa_node = interface.numa_node;
    device.speed_mbps = interface.speed_mbps;
    device.index = i;
    devices_.push_back(std::move(device));
  }
  return {};
}

Result<Registration> Provider::add_memory(const Attachment& at, uint64_t domain, void* base,
                                          size_t length, bool gpu) {
  Registration registration;
  registration.kind = at.kind;
  registration.host = !gpu;
  registration.device = at.device;
  if (at.kind == FabricKind::verbs) {
    auto region = rdma_[devices_[at.device].index].device->add(
        base, length, gpu ? verbs::MemoryKind::gpu : verbs::MemoryKind::host);
    if (!region) {
      return region.error();
    }
    registration.local_key = region->local_key();
    registration.remote_key = region->remote_key();
    registration.handle = reinterpret_cast<uint64_t>(region->mr);
    if (keeps_book_) {
      book_.add(at.device, {registration.local_key, registration.remote_key, registration.handle},
                {base, length, gpu});
    }
    return registration;
  }
  if (gpu) {
    return fail(Errc::invalid_usage,
                "memory registration: this connection uses datagrams, which cannot reach GPU "
                "memory; does the peer have no RDMA device?");
  }
  auto key = memory_.add(domain, base, length);
  if (!key) {
    return key.error();
  }
  registration.local_key = *key;
  registration.remote_key = *key;
  registration.handle = *key;
  return registration;
}

Result<Registration> Provider::add_dmabuf(const Attachment& at, void* base, size_t length,
                                          uint64_t offset, int fd) {
  if (at.kind != FabricKind::verbs || !devices_[at.device].dmabuf) {
    return fail(Errc::invalid_usage,
                "memory registration: this connection's device does not take DMA-BUF descriptors");
  }
  auto region = rdma_[devices_[at.device].index].device->add_dmabuf(base, length, offset, fd);
  if (!region) {
    return region.error();
  }
  Registration registration;
  registration.kind = at.kind;
  registration.host = false;
  registration.device = at.device;
  registration.local_key = region->local_key();
  registration.remote_key = region->remote_key();
  registration.handle = reinterpret_cast<uint64_t>(region->mr);
  // Without a descriptor of our own it cannot be registered elsewhere; only a failover misses it.
  if (const int own = keeps_book_ ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1; own >= 0) {
    book_.add(at.device, {registration.local_key, registration.remote_key, registration.handle},
              {base, length, true, own, offset});
  }
  return registration;
}

verbs::Device& Provider::rdma_device(size_t device) const {
  return *rdma_[devices_[device].index].device;
}

Result<void> Provider::remove_memory(const Registration& registration) {
  if (registration.kind != FabricKind::verbs) {
    return memory_.remove(registration.local_key);
  }
  if (keeps_book_) {
    for (const auto& [device, keys] : book_.remove(registration.device, registration.local_key)) {
      rdma_device(device).remove(verbs::Region{reinterpret_cast<ibv_mr*>(keys.handle)});
    }
  }
  rdma_device(registration.device)
      .remove(verbs::Region{reinterpret_cast<ibv_mr*>(registration.handle)});
  return {};
}

Result<RegionKeys> Provider::keys_on(const Attachment& other, const Attachment& at, uint32_t key,
                                     bool key_is_local) {
  if (at.kind != FabricKind::verbs) {
    return RegionKeys{key, key, key};  // one table for all interfaces
  }
  return book_.on_other(
      at.device, key, key_is_local, other.device,
      [&](const RegionOrigin& origin) -> Result<RegionKeys> {
        verbs::Device& device = rdma_device(other.device);
        auto region =
            origin.dmabuf_fd >= 0
                ? device.add_dmabuf(origin.base, origin.length, origin.offset, origin.dmabuf_fd)
                : device.add(origin.base, origin.length,
                             origin.gpu ? verbs::MemoryKind::gpu : verbs::MemoryKind::host);
        if (!region) {
          return region.error();
        }
        return RegionKeys{region->local_key(), region->remote_key(),
                          reinterpret_cast<uint64_t>(region->mr)};
      });
}

IpAddress Provider::address_of(const verbs::PortInfo& port) const {
  IpAddress found;
  found.family = 0;
  for (const verbs::GidEntry& gid : port.gids) {
    if (port.link == verbs::LinkLayer::ethernet && gid.roce_v2 &&
        !verbs::gid_link_local(gid.bytes)) {
      found = verbs::gid_address(gid.bytes);
      // What the network is called where nobody says it: RFC 4291, and the usual rail.
      found.prefix_len = found.family == 4 ? 24 : 64;
      break;
    }
  }
  for (const NetInterface& own : interfaces_) {
    for (const IpAddress& address : own.addresses) {
      if (address.family == found.family && address.bytes == found.bytes) {
        found.prefix_len = address.prefix_len;
      }
    }
  }
  return found;
}

size_t Provider::connections_max(size_t device, const Config& config, size_t most) const {
  if (devices_[device].kind != FabricKind::verbs) {
    return most;
  }
  // A shadow's queue pair lies on another device, but the others' shadows lie on this one.
  const bool shadows = config.enable_backup && config.shadow_paths != 0 && keeps_book_;
  const auto paths = static_cast<size_t>(config.ib_qps) + (shadows ? 1 : 0);
  const bool flushes =
      devices_[device].peer_memory || devices_[device].dmabuf || config.ib_flush != 0;
  const auto pairs = static_cast<size_t>(std::max(0, rdma_device(device).attributes().max_qp));
  return std::clamp<size_t>(pairs / (paths * (flushes ? 2 : 1)), 1, most);
}

std::vector<Place> Provider::places(const Attachment& device) const {
  std::vector<Place> found;
  if (device.kind == FabricKind::datagram) {
    for (size_t i = 0; i < interfaces_.size(); ++i) {
      for (const uint8_t family : {uint8_t{4}, uint8_t{6}}) {
        const auto& addresses = interfaces_[i].addresses;
        const auto first = std::find_if(addresses.begin(), addresses.end(),
                                        [&](const IpAddress& one) { return one.family == family; });
        if (first != addresses.end()) {
          found.push_back({device, static_cast<uint16_t>(i), *first, interfaces_[i].pci_path});
        }
      }
    }
    return found;
  }
  for (size_t i = 0; i < devices_.size(); ++i) {
    if (devices_[i].kind == device.kind) {
      found.push_back({{i, device.kind},
                       static_cast<uint16_t>(i),
                       address_of(rdma_[devices_[i].index].info),
                       devices_[i].pci_path});
    }
  }
  return found;
}

Result<OwnedPath> Provider::create_verbs_path(Context& context, const Attachment& at,
                                              const PathOptions& options, PathOwner* owner) {
  const size_t index = devices_[at.device].index;
  const verbs::UsablePort& usable = rdma_[index];
  std::weak_ptr<verbs::Port>& slot = rdma_ports_[context.worker_index()][index];
  std::shared_ptr<verbs::Port> port = slot.lock();
  if (!port) {
    verbs::Port::Environment environment;
    environment.clock = &context.turn_clock();
    environment.timers = &context.timers();
    environment.random = &context.random();
    auto opened = verbs::Port::open(usable.device, usable.info.port,
                                    verbs::Options::from(context.config()), environment);
    if (!opened) {
      return opened.error();
    }
    verbs::Port* raw = opened->get();
    context.add_poller(raw);
    port = std::shared_ptr<verbs::Port>(
        raw, [&context, keep = std::move(*opened)](verbs::Port* p) { context.remove_poller(p); });
    slot = port;
    watch_device(context, usable);
  }
  auto want = verbs::gid_preference(context.config(), usable.info);
  if (!want) {
    return want.error();
  }
  auto path = port->create_path(options, *want, owner);
  if (!path) {
    return path.error();
  }
  return OwnedPath{std::move(port), std::move(*path)};
}

void Provider::watch_device(Context& context, const verbs::UsablePort& usable) {
  if (!usable.device->watched.exchange(true, std::memory_order_acq_rel)) {
    context.add_actor(std::make_unique<verbs::DeviceWatch>(usable.device));
  }
}

Result<std::unique_ptr<PacketIo>> Provider::open_ud(Context& context,
                                                    const verbs::UsablePort& usable) const {
  const Config& config = context.config();
  auto want = verbs::gid_preference(config, usable.info);
  if (!want) {
    return want.error();
  }
  verbs::UdIo::Route route;
  route.port = usable.info.port;
  route.traffic_class = static_cast<uint8_t>(std::max<int64_t>(config.ib_traffic_class, 0));
  route.service_level = static_cast<uint8_t>(std::max<int64_t>(config.ib_service_level, 0));
  route.gid = *want;
  auto ud = verbs::UdIo::open(usable.device, route, verbs::Options::from(config));
  if (!ud) {
    return ud.error();
  }
  return std::unique_ptr<PacketIo>(std::move(*ud));
}

Result<OwnedPath> Provider::create_ud_path(Context& context, const Attachment& at,
                                           const PathOptions& options, PathOwner* owner) {
  const size_t index = devices_[at.device].index;
  const verbs::UsablePort& usable = rdma_[index];
  if (usable.device->fatal.load(std::memory_order_acquire)) {
    return fail(Errc::system, fmt::format("RDMA device {} failed earlier: see the kernel's log; "
                                          "restart the job when it is back",
                                          usable.device->name()));
  }
  auto port = open_port(context, ud_ports_[context.worker_index()][index], 0,
                        [&] { return open_ud(context, usable); });
  if (!port) {
    return port.error();
  }
  watch_device(context, usable);
  auto path = (*port)->create_path(options, owner);
  if (!path) {
    return path.error();
  }
  return OwnedPath{std::move(*port), std::move(*path)};
}

Result<OwnedPath> Provider::create_path(Context& context, const Attachment& at,
                                        const sockaddr* local, const PathOptions& options,
                                        PathOwner* owner) {
  if (at.kind == FabricKind::verbs) {
    return create_verbs_path(context, at, options, owner);
  }
  if (at.kind == FabricKind::ud) {
    return create_ud_path(context, at, options, owner);
  }
  const auto ip = IpAddress::from_sockaddr(local);
  if (!ip) {
    return ip.error();
  }
  const auto index = interface_of(local);
  // An address of an interface that is not ours to use (a loopback alias, say) still works.
  const uint32_t mtu = index ? interfaces_[*index].mtu : 1500;
  SocketAddress address;
  address.length = ip->to_sockaddr(0, &address.storage);
  std::vector<Slot>& slots = ports_[context.worker_index()];
  auto slot =
      std::find_if(slots.begin(), slots.end(), [&](const Slot& s) { return s.address == address; });
  if (slot == slots.end()) {
    slots.push_back({address, {}});
    slot = slots.end() - 1;
  }
  auto port = open_port(context, slot->port, std::min<uint32_t>(mtu, 65536), [&] {
    return packet_source_ ? packet_source_(address) : open_udp(address);
  });
  if (!port) {
    return port.error();
  }
  auto path = (*port)->create_path(options, owner);
  if (!path) {
    return path.error();
  }
  return OwnedPath{std::move(*port), std::move(*path)};
}

Result<std::unique_ptr<PacketIo>> Provider::open_udp(const SocketAddress& local) const {
  auto udp = UdpIo::open({local, socket_bytes_, offload_});
  if (!udp) {
    return udp.error();
  }
  return std::unique_ptr<PacketIo>(std::move(*udp));
}

Result<std::shared_ptr<DatagramPort>> Provider::open_port(Context& context,
                                                          std::weak_ptr<DatagramPort>& slot,
                                                          uint32_t mtu, const PacketOpen& open) {
  if (auto port = slot.lock()) {
    return port;
  }
  auto opened = open();
  if (!opened) {
    return opened.error();
  }
  std::unique_ptr<PacketIo> io = std::move(*opened);
  if (faults_.active()) {
    FaultPlan plan = faults_;
    plan.seed += context.random().below(1U << 20);  // peers must not lose in step
    io = std::make_unique<FaultIo>(std::move(io), plan, &context.recorder());
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
  slot = port;
  return port;
}

}  // namespace nccl_ha::fabric
