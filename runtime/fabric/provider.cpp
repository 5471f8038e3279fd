#include "runtime/fabric/provider.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

#include "runtime/fabric/datagram/port.h"
#include "runtime/fabric/datagram/udp_io.h"
#include "runtime/fabric/verbs/device.h"
#include "runtime/fabric/verbs/host_ports.h"
#include "runtime/host.h"
#include "runtime/log.h"
#include "runtime/worker.h"

namespace nccl_ha::fabric {
namespace {

Error descriptor_not_kept(int error) {
  return fail(Errc::system, "its DMA-BUF descriptor could not be kept open when it was registered",
              error);
}

}  // namespace

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
  return make(config, std::move(interfaces), workers, {});
}

Result<std::unique_ptr<Provider>> Provider::make(const Config& config,
                                                 std::vector<NetInterface> interfaces,
                                                 size_t workers, const RdmaSource& rdma) {
  auto faults = parse_fault_plan(config.dgram_faults);
  if (!faults) {
    return faults.error();
  }
  if (auto known = check_fabric_name(config); !known) {
    return known.error();
  }
  std::unique_ptr<Provider> provider(new Provider);
  provider->options_ = DatagramOptions::from(config);
  provider->duplicate_ = [](int fd) { return fcntl(fd, F_DUPFD_CLOEXEC, 0); };
  provider->faults_ = *faults;
  provider->socket_bytes_ = static_cast<int>(config.dgram_socket_bytes);
  provider->offload_ = config.dgram_gso;
  provider->interfaces_ = std::move(interfaces);
  provider->ports_.resize(workers);
  provider->forced_ = fabric_is_forced(config);
  provider->flushes_always_ = config.ib_flush != 0;
  provider->ib_paths_ = static_cast<size_t>(config.ib_qps);
  provider->dgram_paths_ = static_cast<size_t>(config.dgram_paths);
  provider->adaptive_routing_ = static_cast<int>(config.ib_adaptive_routing);
  provider->end_apart_above_ = static_cast<uint32_t>(config.ib_ar_threshold);
  if (rdma) {
    provider->rdma_ = rdma(provider->nics_);
  } else if (auto found = provider->find_rdma(config); !found) {
    return found.error();
  }
  provider->choose_devices(config);
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

std::string Provider::nic_of(const Attachment& at, const sockaddr* local) const {
  if (at.kind != FabricKind::datagram) {
    return nic_name(rdma_->at(port_of(at)));
  }
  const auto own = interface_of(local);
  return own ? interfaces_[*own].name : std::string();
}

/// The ports that rdma-core offers and the settings allow.
Result<void> Provider::find_rdma(const Config& config) {
  const std::string& fabric = config.fabric;
  const bool forced = fabric_is_forced(config);
  if (!forced && (fabric != "auto" || config.ib_disable)) {
    return {};
  }
  auto list = verbs::list_ports(config);
  if (!list) {
    return list.error();
  }
  std::string why;
  for (const std::string& note : list->notes) {
    NHA_LOG_INFO("{}", note);
    why += (why.empty() ? "" : "; ") + note;
  }
  if (!list->ports.empty()) {
    rdma_ = std::make_unique<verbs::HostPorts>(std::move(list->ports), ports_.size(), nics_);
  } else if (forced) {
    return fail(Errc::system,
                fmt::format("HA_NCCL_FABRIC={}, but no RDMA port is usable: {}", fabric, why));
  }
  return {};
}

bool Provider::above_rdma(const NetInterface& own) const {
  for (size_t i = 0; rdma_ && i < rdma_->count(); ++i) {
    if (rdma_->at(i).netdev == own.name) {
      return true;
    }
  }
  return false;
}

void Provider::choose_devices(const Config& config) {
  for (size_t i = 0; rdma_ && i < rdma_->count(); ++i) {
    const RdmaPort& port = rdma_->at(i);
    NetDevice device;
    static_cast<DeviceFacts&>(device) = port;
    device.kind = config.fabric == "ud" ? FabricKind::ud : FabricKind::verbs;
    // The datagram engine's bytes are moved by the processor.
    device.peer_memory = device.kind == FabricKind::verbs && port.peer_memory;
    device.dmabuf = device.kind == FabricKind::verbs && port.dmabuf;
    device.index = i;
    devices_.push_back(std::move(device));
  }
  if (rdma_) {
    // Control connections better not share the fate of the rail they look after.
    std::stable_partition(interfaces_.begin(), interfaces_.end(),
                          [&](const NetInterface& own) { return !above_rdma(own); });
    const bool spare = std::any_of(interfaces_.begin(), interfaces_.end(),
                                   [&](const NetInterface& own) { return !above_rdma(own); });
    backs_with_datagrams_ =
        config.enable_backup && config.shadow_datagrams && !fabric_is_forced(config) && spare;
    keeps_book_ = config.enable_backup && (rdma_->count() > 1 || backs_with_datagrams_);
    ud_ports_.resize(ports_.size(), std::vector<std::weak_ptr<DatagramPort>>(rdma_->count()));
    return;
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
}

Result<Registration> Provider::add_memory(const Attachment& at, uint64_t domain, void* base,
                                          size_t length, bool gpu) {
  Registration registration;
  registration.kind = at.kind;
  registration.host = !gpu;
  registration.device = at.device;
  registration.per_device = traits(at).keys_per_device;
  if (at.kind == FabricKind::verbs) {
    const RegionOrigin origin{base, length, gpu, -1, 0};
    auto keys = rdma_->add_memory(port_of(at), origin);
    if (!keys) {
      return keys.error();
    }
    registration.local_key = keys->local_key;
    registration.remote_key = keys->remote_key;
    registration.handle = keys->handle;
    if (keeps_book_) {
      book_.add(at.device, *keys, origin);
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
  if (fd < 0) {
    return fail(Errc::invalid_argument, "memory registration: no DMA-BUF descriptor");
  }
  RegionOrigin origin{base, length, true, fd, offset};
  auto keys = rdma_->add_memory(port_of(at), origin);
  if (!keys) {
    return keys.error();
  }
  Registration registration;
  registration.kind = at.kind;
  registration.host = false;
  registration.device = at.device;
  registration.per_device = traits(at).keys_per_device;
  registration.local_key = keys->local_key;
  registration.remote_key = keys->remote_key;
  registration.handle = keys->handle;
  if (keeps_book_) {
    // Without a descriptor of our own it cannot be registered elsewhere; only a failover misses it.
    origin.dmabuf_fd = duplicate_(fd);
    origin.not_kept = origin.dmabuf_fd < 0 ? errno : 0;
    book_.add(at.device, *keys, origin);
  }
  if (origin.not_kept != 0) {
    NHA_LOG_WARN_LIMITED("no path over another device will reach some GPU memory: {}",
                         descriptor_not_kept(origin.not_kept).message());
  }
  return registration;
}

Result<void> Provider::remove_memory(const Registration& registration) {
  if (registration.kind != FabricKind::verbs) {
    return memory_.remove(registration.local_key);
  }
  if (keeps_book_) {
    for (const auto& [other, keys] : book_.remove(registration.device, registration.local_key)) {
      if (other.device == own_table) {
        static_cast<void>(memory_.remove(keys.local_key));
      } else {
        rdma_->remove_memory(devices_[other.device].index, keys);
      }
    }
  }
  rdma_->remove_memory(devices_[registration.device].index,
                       {registration.local_key, registration.remote_key, registration.handle});
  return {};
}

Result<RegionKeys> Provider::keys_on(const Attachment& other, uint64_t domain, const Attachment& at,
                                     uint32_t key, bool key_is_local) {
  if (at.kind != FabricKind::verbs || (other.kind == at.kind && other.device == at.device)) {
    return RegionKeys{key, key, key};  // known there, or one table for all interfaces
  }
  const bool rdma = other.kind == FabricKind::verbs;
  const auto elsewhere = rdma ? RegionRegistry::Elsewhere{other.device, 0}
                              : RegionRegistry::Elsewhere{own_table, domain};
  return book_.on_other(at.device, key, key_is_local, elsewhere,
                        [&](const RegionOrigin& origin) -> Result<RegionKeys> {
                          if (origin.not_kept != 0) {
                            return descriptor_not_kept(origin.not_kept);
                          }
                          if (rdma) {
                            return rdma_->add_memory(port_of(other), origin);
                          }
                          if (origin.gpu) {
                            return fail(Errc::invalid_usage, "datagrams cannot reach GPU memory");
                          }
                          auto own = memory_.add(domain, origin.base, origin.length);
                          if (!own) {
                            return own.error();
                          }
                          return RegionKeys{*own, *own, *own};
                        });
}

IpAddress Provider::with_prefix(IpAddress address) const {
  for (const NetInterface& own : interfaces_) {
    for (const IpAddress& one : own.addresses) {
      if (one.family == address.family && one.bytes == address.bytes) {
        address.prefix_len = one.prefix_len;
      }
    }
  }
  return address;
}

PathTraits Provider::traits(const Attachment& at) const {
  PathTraits traits;
  const NetDevice& device = devices_[at.device];
  traits.bandwidth =
      at.kind == device.kind ? static_cast<uint64_t>(device.speed_mbps) * 125'000 : 0;
  if (at.kind == FabricKind::verbs) {
    traits.placed_by_nic = true;
    traits.acknowledged_by_nic = true;
    traits.keys_per_device = true;
    traits.visible_before_completion = true;
    traits.reaches_gpu_memory = device.peer_memory || device.dmabuf;
    traits.may_reorder = adaptive_routing_ > 0;
    traits.end_apart_above = traits.may_reorder ? end_apart_above_ : UINT32_MAX;
  }
  return traits;
}

size_t Provider::paths_wanted(const Attachment& at) const {
  return at.kind == FabricKind::verbs ? ib_paths_ : dgram_paths_;
}

bool Provider::needs_flushes(const Attachment& at) const {
  const PathTraits known = traits(at);
  return known.placed_by_nic && (known.reaches_gpu_memory || flushes_always_);
}

uint16_t Provider::place_number(const Attachment& at, const sockaddr* local) const {
  if (at.kind != FabricKind::datagram) {
    return static_cast<uint16_t>(at.device);
  }
  return static_cast<uint16_t>(interface_of(local).value_or(UINT16_MAX));
}

bool Provider::accepts(size_t device, FabricKind kind) const {
  return kind == devices_[device].kind || (kind == FabricKind::datagram && !forced_);
}

std::string Provider::refusal(size_t device, FabricKind kind) const {
  return fmt::format("the peer wants {}, but {} on {} uses {}{}", to_text(kind),
                     devices_[device].name, host_name(), to_text(devices_[device].kind),
                     forced_ ? " and HA_NCCL_FABRIC allows nothing else" : "");
}

size_t Provider::connections_max(size_t device, const Config& config, size_t most) const {
  if (devices_[device].kind != FabricKind::verbs) {
    return most;
  }
  // A shadow's queue pair lies on another device, but the others' shadows lie on this one.
  const size_t shadows =
      config.enable_backup ? std::min(static_cast<size_t>(config.shadow_paths), rdma_->count() - 1)
                           : 0;
  const size_t paths = static_cast<size_t>(config.ib_qps) + shadows;
  const bool flushes =
      devices_[device].peer_memory || devices_[device].dmabuf || config.ib_flush != 0;
  const size_t pairs = rdma_->queue_pairs(devices_[device].index);
  return std::clamp<size_t>(pairs / (paths * (flushes ? 2 : 1)), 1, most);
}

void Provider::add_interfaces(const Attachment& device, std::vector<Place>& places) const {
  // Numbers of devices are taken where those are not the interfaces themselves.
  const size_t first_number = device.kind == FabricKind::datagram ? 0 : devices_.size();
  const Attachment at{device.device, FabricKind::datagram};
  for (size_t i = 0; i < interfaces_.size(); ++i) {
    if (device.kind != FabricKind::datagram && above_rdma(interfaces_[i])) {
      continue;  // it dies with what it should replace, or is tried as RDMA
    }
    for (const uint8_t family : {uint8_t{4}, uint8_t{6}}) {
      const auto& addresses = interfaces_[i].addresses;
      const auto first = std::find_if(addresses.begin(), addresses.end(),
                                      [&](const IpAddress& one) { return one.family == family; });
      if (first != addresses.end()) {
        places.push_back(
            {at, static_cast<uint16_t>(first_number + i), *first, interfaces_[i].pci_path});
      }
    }
  }
}

std::vector<Place> Provider::places(const Attachment& device) const {
  std::vector<Place> found;
  if (device.kind == FabricKind::datagram) {
    add_interfaces(device, found);
    return found;
  }
  for (size_t i = 0; i < devices_.size(); ++i) {
    if (devices_[i].kind == device.kind) {
      found.push_back({{i, device.kind},
                       static_cast<uint16_t>(i),
                       with_prefix(rdma_->at(devices_[i].index).address),
                       devices_[i].pci_path});
    }
  }
  const NetDevice& own = devices_[device.device];
  if (backs_with_datagrams_ && device.kind == FabricKind::verbs && !own.peer_memory &&
      !own.dmabuf) {
    add_interfaces(device, found);
  }
  return found;
}

Result<OwnedPath> Provider::create_ud_path(Context& context, const Attachment& at,
                                           const PathOptions& options, PathOwner* owner) {
  const size_t index = port_of(at);
  auto port = open_port(context, ud_ports_[context.worker_index()][index], 0,
                        [&] { return rdma_->open_datagrams(context, index); });
  if (!port) {
    return port.error();
  }
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
    return rdma_->create_path(context, port_of(at), options, owner);
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
  environment.lost = &context.lost_time();
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
