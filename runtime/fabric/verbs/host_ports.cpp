#include "runtime/fabric/verbs/host_ports.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

#include "runtime/base/data_turn.h"
#include "runtime/base/log.h"
#include "runtime/fabric/verbs/device_watch.h"
#include "runtime/fabric/verbs/port.h"
#include "runtime/fabric/verbs/ud_io.h"

namespace nccl_ha::fabric::verbs {
namespace {

/// No path is made behind a command that takes so long.
constexpr Duration busy_after = RegionRegistry::worker_patience;

IpAddress address_of(const PortInfo& port) {
  IpAddress found;
  found.family = 0;
  const auto gid = select_gid(port.gids, {});
  if (gid && port.link == LinkLayer::ethernet && gid->roce_v2 && !gid_link_local(gid->bytes)) {
    found = gid_address(gid->bytes);
    // What the network is called where nobody says it: RFC 4291, and the usual rail.
    found.prefix_len = found.family == 4 ? 24 : 64;
  }
  return found;
}

DeviceFacts describe(const UsablePort& usable) {
  const PortInfo& info = usable.info;
  DeviceFacts port;
  port.name = info.port_count > 1 ? fmt::format("{}:{}", info.device, info.port) : info.device;
  port.guid = info.guid;
  port.pci_path = info.pci_path;
  port.numa_node = info.numa_node;
  port.speed_mbps = info.speed_mbps;
  port.port = info.port;
  port.peer_memory = usable.device->peer_memory();
  port.dmabuf = usable.device->dmabuf();
  port.netdev = info.netdev;
  if (!info.netdev.empty() && !info.pci_path.empty()) {
    PortIdentity identity = read_port_identity(info.netdev);
    port.switch_id = std::move(identity.switch_id);
    port.port_name = std::move(identity.port_name);
  }
  return port;
}

Region region_of(const RegionKeys& keys) { return {reinterpret_cast<ibv_mr*>(keys.handle)}; }

Result<RegionKeys> register_memory(Device& device, const RegionOrigin& origin) {
  auto domain = origin.domain ? device.domain(*origin.domain)
                              : Result<std::shared_ptr<ProtectionDomain>>(nullptr);
  if (!domain) {
    return domain.error();
  }
  auto region = origin.dmabuf_fd >= 0 ? device.add_dmabuf(origin.base, origin.length, origin.offset,
                                                          origin.dmabuf_fd, std::move(*domain))
                                      : device.add(origin.base, origin.length,
                                                   origin.gpu ? MemoryKind::gpu : MemoryKind::host,
                                                   std::move(*domain));
  if (!region) {
    return region.error();
  }
  return RegionKeys{region->local_key(), region->remote_key(),
                    reinterpret_cast<uint64_t>(region->mr)};
}

/// Says why a device that refuses does so: whether it answers.
Result<RegionKeys> register_or_look(Device& device, const RegionOrigin& origin) {
  auto keys = register_memory(device, origin);
  if (!keys) {
    static_cast<void>(device.answers());
  }
  return keys;
}

/// An absence: whoever has other devices goes on over those.
Error gone(const Device& device) {
  return fail(Errc::system,
              fmt::format("RDMA device {} failed earlier: see the kernel's log", device.name()),
              ENODEV);
}

Error busy(const Device& device) {
  return fail(Errc::timed_out,
              fmt::format("RDMA device {} takes long with something: does its firmware hang?",
                          device.name()),
              EBUSY);
}

/// What a registration has come to, between the command and who waits for it.
struct Registering {
  enum class State : uint8_t { open, made, left };
  bool wanted() const { return state.load() != State::left; }
  std::atomic<State> state{State::open};
  std::atomic<bool> begun{false};
  Answer over;
  Result<RegionKeys> keys = fail(Errc::no_memory, "out of memory");
};

/// An error of busy(): the device hangs with something, for callers so long that it counts as
/// failed.
Result<RegionKeys> registered_in_time(Device& device, const RegionOrigin& origin, Waits who) {
  using State = Registering::State;
  if (device.library().waited != nullptr) {
    const DataTurn exception(false);  // a real one's conductor does it
    auto keys = register_or_look(device, origin);
    return keys || keys.error().sys != EBUSY ? keys : busy(device);  // as a simulated one says it
  }
  const bool worker = who == Waits::worker;
  Conductor& conductor = worker ? device.conductor() : device.registrar();
  if (worker && conductor.busy() >= busy_after) {
    return busy(device);  // whoever asks again and again leaves no queue of orders
  }
  auto registering = std::make_shared<Registering>();
  conductor.add(
      worker ? Conductor::Rank::stop : Conductor::Rank::make,
      [&device, origin, registering] {
        registering->begun.store(true);
        if (origin.domain) {
          static_cast<void>(device.domain(*origin.domain));  // before who waits is asked again
        }
        if (!registering->wanted()) {
          return;
        }
        registering->keys = register_or_look(device, origin);
        if (registering->state.exchange(State::made) == State::left && registering->keys) {
          device.remove(region_of(*registering->keys), registering);
        }
      },
      [registering] { registering->over.result.store(0, std::memory_order_release); },
      (worker ? Duration(0) : Device::hung_after) + Device::time_to_pin(origin.length));
  // Others' commands may take long, which is no reason for a worker to wait.
  const auto patient = [&] {
    return !worker                     ? device.may_answer()
           : registering->begun.load() ? !conductor.hangs(busy_after)
                                       : conductor.busy() < busy_after;
  };
  if (!conductor.await(registering->over, patient) &&
      registering->state.exchange(State::left) == State::open) {
    return busy(device);
  }
  return registering->keys;
}

/// Known to its device by the command that makes the first path with it.
class DeviceMemory final : public OwnMemory {
 public:
  /// Of a device that outlives its commands.
  DeviceMemory(Device& device, const RegionOrigin& origin, std::shared_ptr<void> bytes)
      : device_(device), origin_(origin), bytes_(std::move(bytes)) {
    device_.own_memories.fetch_add(1, std::memory_order_relaxed);
  }
  ~DeviceMemory() override {
    if (keys_.handle != 0) {
      device_.remove(region_of(keys_), std::move(bytes_));
    }
    device_.own_memories.fetch_sub(1, std::memory_order_release);
  }
  Result<void> enter() override {
    if (keys_.handle != 0) {
      return {};
    }
    auto keys = register_or_look(device_, origin_);
    if (!keys) {
      const Error& why = keys.error();
      return device_.health.usable() ? fail(Errc::no_memory, why.what, why.sys) : why;
    }
    keys_ = *keys;
    return {};
  }
  const RegionKeys& keys() const override { return keys_; }

 private:
  Device& device_;
  const RegionOrigin origin_;
  std::shared_ptr<void> bytes_;
  RegionKeys keys_;
};

}  // namespace

void GoneDevices::add(const std::shared_ptr<Device>& device) {
  std::lock_guard lock(mutex_);
  if (std::ranges::find(devices_, device) == devices_.end()) {
    devices_.push_back(device);
  }
}

std::shared_ptr<Device> GoneDevices::find(const ibv_context* context) const {
  std::lock_guard lock(mutex_);
  const auto found = std::ranges::find_if(
      devices_, [&](const auto& device) { return device->context() == context; });
  return found == devices_.end() ? nullptr : *found;
}

void GoneDevices::end_unused() {
  std::vector<std::shared_ptr<Device>> unused;  // ends after the lock
  std::lock_guard lock(mutex_);
  unused.reserve(devices_.size());
  const auto rest = std::partition(devices_.begin(), devices_.end(), [](const auto& device) {
    return device.use_count() > 1 || !device->unused();
  });
  std::move(rest, devices_.end(), std::back_inserter(unused));
  devices_.erase(rest, devices_.end());
}

HostPorts::HostPorts(std::vector<UsablePort> usable, size_t workers, NicBoard& board,
                     FindSuccessor find)
    : board_(board),
      find_(std::move(find)),
      open_(workers, std::vector<std::weak_ptr<Port>>(usable.size())) {
  for (UsablePort& one : usable) {
    facts_.push_back(describe(one));
    const IpAddress address = address_of(one.info);
    present_.push_back({std::move(one), address, 0});
  }
}

HostPorts::~HostPorts() = default;

DeviceLimits HostPorts::limits(size_t port) const {
  std::lock_guard lock(mutex_);
  const ibv_device_attr& device = present_[port].usable.device->attributes();
  const auto count = [](int limit) { return static_cast<size_t>(std::max(0, limit)); };
  return {count(device.max_qp), count(device.max_cq), count(device.max_cqe), count(device.max_mr)};
}

uint32_t HostPorts::incarnation(size_t port) const {
  std::lock_guard lock(mutex_);
  return present_[port].incarnation;
}

IpAddress HostPorts::address(size_t port) const {
  std::lock_guard lock(mutex_);
  return present_[port].address;
}

Result<UsablePort> HostPorts::present(const RdmaEnd& end) const {
  std::lock_guard lock(mutex_);
  const Present& now = present_[end.port];
  return now.incarnation == end.incarnation ? Result<UsablePort>(now.usable)
                                            : Result<UsablePort>(gone(*now.usable.device));
}

Result<UsablePort> HostPorts::watched(Context& context, const RdmaEnd& end) {
  auto now = present(end);
  if (now) {
    watch_device(context, *now);
    if (!now->device->health.usable()) {
      return gone(*now->device);
    }
  }
  return now;
}

bool HostPorts::is_busy(const RdmaEnd& end) const {
  const auto now = present(end);
  return now && now->device->conductor().busy() >= busy_after;
}

/// Of a device that has failed since, a caller's memory has names only: whoever has other devices
/// goes on over those.
Result<RegionKeys> HostPorts::add_memory(const RdmaEnd& end, const RegionOrigin& origin,
                                         Waits who) {
  const auto now = present(end);
  if (now && now->device->may_answer()) {
    auto keys = registered_in_time(*now->device, origin, who);
    if (keys || now->device->health.usable()) {
      return keys;
    }
  }
  const uint32_t name = next_name_.fetch_sub(1, std::memory_order_relaxed);
  return RegionKeys{name, name, 0};
}

Result<std::shared_ptr<OwnMemory>> HostPorts::own_memory(const RdmaEnd& end,
                                                         const RegionOrigin& origin,
                                                         std::shared_ptr<void> bytes) {
  const auto now = present(end);
  if (!now) {
    return now.error();
  }
  return std::shared_ptr<OwnMemory>(
      std::make_shared<DeviceMemory>(*now->device, origin, std::move(bytes)));
}

void HostPorts::remove_memory(const RegionKeys& keys, std::shared_ptr<void> keep) {
  if (keys.handle == 0) {
    return;
  }
  const Region region = region_of(keys);
  std::shared_ptr<Device> its;
  {
    std::lock_guard lock(mutex_);
    const auto here = std::ranges::find_if(present_, [&](const Present& one) {
      return one.usable.device->context() == region.mr->context;
    });
    its = here != present_.end() ? here->usable.device : gone_->find(region.mr->context);
  }
  if (its) {
    its->remove(region, std::move(keep));
  }
}

Result<OwnedPath> HostPorts::create_path(Context& context, const RdmaEnd& end,
                                         const PathOptions& options, PathOwner* owner) {
  const auto now = watched(context, end);
  if (!now) {
    return now.error();
  }
  std::weak_ptr<Port>& slot = open_[context.worker_index()][end.port];
  std::shared_ptr<Port> opened = slot.lock();
  if (!opened || &opened->device() != now->device.get()) {
    Port::Environment environment;
    environment.clock = &context.turn_clock();
    environment.timers = &context.timers();
    environment.lost = &context.lost_time();
    environment.secrets = &context.secrets();
    environment.counters = context.counters().place();
    auto made = Port::open(*now, Options::from(context.config()), environment);
    if (!made) {
      return made.error();
    }
    Port* raw = made->get();
    context.add_poller(raw);
    opened = std::shared_ptr<Port>(
        raw, [&context, keep = std::move(*made)](Port* p) { context.remove_poller(p); });
    slot = opened;
  }
  auto want = gid_preference(context.config(), now->info);
  if (!want) {
    return want.error();
  }
  auto path = opened->create_path(options, *want, owner);
  if (!path) {
    return path.error();
  }
  return OwnedPath{std::move(opened), std::move(*path)};
}

Result<std::unique_ptr<PacketIo>> HostPorts::open_datagrams(Context& context, const RdmaEnd& end) {
  const auto now = watched(context, end);
  if (!now) {
    return now.error();
  }
  if (now->device->conductor().busy() >= busy_after) {
    return busy(*now->device);  // whoever asks again and again leaves no queue of orders
  }
  const Config& config = context.config();
  auto want = gid_preference(config, now->info);
  if (!want) {
    return want.error();
  }
  UdIo::Route route;
  route.port = now->info.port;
  route.traffic_class = static_cast<uint8_t>(std::max<int64_t>(config.ib_traffic_class, 0));
  route.service_level = static_cast<uint8_t>(std::max<int64_t>(config.ib_service_level, 0));
  route.gid = *want;
  auto ud = UdIo::open(now->device, route, Options::from(config));
  if (!ud) {
    return ud.error();
  }
  return std::unique_ptr<PacketIo>(std::move(*ud));
}

void HostPorts::watch_device(Context& context, const UsablePort& usable) {
  if (usable.device->watched.exchange(true, std::memory_order_acq_rel)) {
    return;
  }
  std::vector<size_t> ports;  // the same ones of whatever comes in its place
  {
    std::lock_guard lock(mutex_);
    for (size_t i = 0; i < present_.size(); ++i) {
      if (present_[i].usable.device == usable.device) {
        ports.push_back(i);
      }
    }
  }
  // What an event means for the paths that end there; `port` 0: on all ports of the device.
  const auto tell = [this, ports](EventEffect effect, unsigned port) {
    using Kind = NicNotice::Kind;
    for (const size_t i : ports) {
      if (port == 0 || facts_[i].port == static_cast<int>(port)) {
        const FailureDomain nic{FailureDomain::Kind::local_nic, nic_name(facts_[i])};
        board_.post({effect == EventEffect::port_up ? Kind::up : Kind::down, {nic}, ""});
      }
    }
  };
  DeviceWatch::Return back;
  if (find_) {
    back.open = [find = find_, before = identity_of(usable), old = gone_] {
      old->end_unused();
      return find(before);
    };
    back.take = [this, ports](const std::vector<UsablePort>& found) { replace(ports, found); };
  }
  if (auto added =
          context.add_actor(std::make_unique<DeviceWatch>(usable.device, tell, std::move(back)));
      !added) {
    usable.device->watched.store(false, std::memory_order_release);  // for another worker
    NHA_LOG_WARN("a port of {} that loses its link is found out by silence only: {}",
                 usable.device->name(), added.error().message());
  }
}

void HostPorts::replace(const std::vector<size_t>& ports, const std::vector<UsablePort>& found) {
  std::vector<std::string> back;
  {
    std::lock_guard lock(mutex_);
    ++returns_;
    for (const size_t port : ports) {
      const auto its = std::ranges::find_if(
          found, [&](const UsablePort& one) { return one.info.port == facts_[port].port; });
      if (its == found.end()) {
        continue;
      }
      Present& now = present_[port];
      UsablePort next = *its;
      gone_->add(now.usable.device);  // with what is registered there
      now.usable = std::move(next);
      now.incarnation = returns_;
      if (const IpAddress address = address_of(its->info); address.family != 0) {
        now.address = address;
      }
      if (its->info.active) {
        back.push_back(nic_name(facts_[port]));
      }
    }
  }
  // First where paths may begin and end now, then that it is worth a try.
  board_.post({NicNotice::Kind::renewed, {}, {}});
  for (const std::string& nic : back) {
    board_.post({NicNotice::Kind::up, {{FailureDomain::Kind::local_nic, nic}}, ""});
  }
}

}  // namespace nccl_ha::fabric::verbs
