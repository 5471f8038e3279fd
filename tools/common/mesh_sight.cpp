#include "tools/common/mesh_sight.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "relay/link_sockets.h"
#include "relay/mesh_settings.h"
#include "relay/topology_file.h"
#include "runtime/base/own_fd.h"
#include "runtime/base/secret.h"

namespace nccl_ha::tools {
namespace {

constexpr auto answer_within = std::chrono::seconds(2);

}  // namespace

/// Discovery for a moment, without an engine, on a thread of its own.
class ShortDiscovery final : private relay::MeshLinks::Sink {
 public:
  ShortDiscovery(std::unique_ptr<relay::LinkSockets> sockets,
                 const std::vector<fabric::NetInterface>& own,
                 const relay::Discovery::Timing& timing, const std::shared_ptr<KeyFile>& key)
      : sockets_(std::move(sockets)),
        discovery_(relay::mesh_identity(own, false,
                                        static_cast<uint32_t>(kernel_secrets().draw().told() | 1)),
                   timing, kernel_secrets().draw().told(), *sockets_),
        quiet_(2 * timing.neighbours.hello),
        begun_(clock_.now()),
        changed_(begun_),
        end_(make_fd([] { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); })) {
    discovery_.set_keys(key ? key->current() : nullptr, begun_);
    sockets_->use(own);
    discovery_.set_interfaces(relay::as_mesh_interfaces(own), begun_);
    thread_ = std::thread([this] { run(); });
  }
  ~ShortDiscovery() {
    ended_ = true;
    static_cast<void>(eventfd_write(end_, 1));
    thread_.join();
    close_fd(end_);
  }
  ShortDiscovery(const ShortDiscovery&) = delete;
  ShortDiscovery& operator=(const ShortDiscovery&) = delete;

  void settle(Duration limit) {
    std::unique_lock lock(mutex_);
    changes_.wait_for(lock, limit, [this] { return settled_; });
  }
  void stay() {
    std::unique_lock lock(mutex_);
    if (!discovery_.neighbours().all().empty()) {
      changes_.wait_for(lock, quiet_, [this] { return ended_.load(); });
    }
  }
  MeshSight sight() {
    const std::lock_guard lock(mutex_);
    MeshSight found;
    found.topology = discovery_.topology(clock_.now());
    found.self = discovery_.identity().node;
    found.source = "found out now; this host does not relay, as no relay node runs on it";
    for (const relay::Neighbour& one : discovery_.neighbours().all()) {
      if (!one.two_way) {
        found.one_way.push_back({one.interface, one.node, one.peer_interface});
      }
    }
    return found;
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    uint64_t revision = 0;
    while (!ended_) {
      const Instant now = clock_.now();
      discovery_.tick(now);
      if (revision != discovery_.revision()) {
        revision = discovery_.revision();
        changed_ = now;
      }
      settled_ = now >= settles();
      changes_.notify_all();
      const Instant next = discovery_.next_deadline();
      const Instant until = settled_ ? next : std::min(next, settles());
      lock.unlock();
      wait_until(until, now);
      lock.lock();
      sockets_->receive(*this, SIZE_MAX);
    }
    discovery_.leave(clock_.now());
  }
  Instant settles() const {
    const auto& all = discovery_.neighbours().all();
    const auto& own = discovery_.neighbours().interfaces();
    const bool all_hear = std::all_of(own.begin(), own.end(), [&](const auto& interface) {
      return std::any_of(all.begin(), all.end(), [&](const relay::Neighbour& one) {
        return one.two_way && one.interface == interface.number;
      });
    });
    return std::max(changed_ + quiet_, all_hear ? begun_ : begun_ + 2 * quiet_);
  }
  void on_packet(uint32_t interface, const fabric::SocketAddress& from, bool asked_here,
                 std::span<const std::byte> packet) override {
    if (!asked_here) {
      discovery_.receive(interface, from, packet, clock_.now());
    }
  }
  void wait_until(Instant until, Instant now) {
    std::array<pollfd, 3> waiting{};
    for (size_t i = 0; i < 2; ++i) {
      waiting[i] = {sockets_->wait_fds()[i], POLLIN, 0};
    }
    waiting[2] = {end_, POLLIN, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - now).count();
    poll(waiting.data(), waiting.size(), static_cast<int>(std::max<int64_t>(left, 0)));
  }

  SteadyClock clock_;
  std::unique_ptr<relay::LinkSockets> sockets_;
  std::mutex mutex_;  ///< of what follows
  std::condition_variable changes_;
  relay::Discovery discovery_;
  const Duration quiet_;
  const Instant begun_;
  Instant changed_;
  bool settled_ = false;
  const int end_;  ///< readable: the thread is to end
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

namespace {

Result<MeshSight> sight_of_file(const Config& config,
                                const std::vector<fabric::NetInterface>& all) {
  auto topology = relay::read_topology_file(config.mesh_topology_file);
  if (!topology) {
    return topology.error();
  }
  std::vector<IpAddress> addresses;
  for (const fabric::NetInterface& one : all) {
    if (!one.loopback) {
      addresses.insert(addresses.end(), one.addresses.begin(), one.addresses.end());
    }
  }
  const auto self = relay::find_host(*topology, addresses);
  if (!self) {
    return fail(Errc::invalid_argument,
                fmt::format("{}: no node has an address of this host, or several have: "
                            "write its addresses behind its name",
                            config.mesh_topology_file));
  }
  MeshSight found;
  found.self = topology->nodes()[*self].id;
  found.topology = std::move(*topology);
  found.origin = MeshSight::Origin::file;
  found.source = config.mesh_topology_file;
  return found;
}

}  // namespace

Result<MeshSight> ask_for_mesh(const Config& config) {
  MeshSight found;
  auto states =
      relay::ask_this_host(static_cast<uint16_t>(config.mesh_port), answer_within, &found.self);
  if (!states) {
    return states.error();
  }
  found.topology = relay::Topology::make(std::move(*states));
  found.origin = MeshSight::Origin::relay_node;
  found.source = "the relay node of this host";
  return found;
}

MeshLook::MeshLook(const Config& config, const std::vector<fabric::NetInterface>& all)
    : config_(&config), all_(&all) {}
MeshLook::~MeshLook() = default;
MeshLook::MeshLook(MeshLook&&) noexcept = default;
MeshLook& MeshLook::operator=(MeshLook&&) noexcept = default;

Result<MeshLook> MeshLook::begin(const Config& config,
                                 const std::vector<fabric::NetInterface>& all) {
  MeshLook look(config, all);
  if (!config.mesh_topology_file.empty()) {
    return look;
  }
  const auto timing = relay::discovery_timing(config);
  auto peers = relay::parse_mesh_peers(config.mesh_peers);
  auto key = relay::cluster_key(config);
  for (const Error* wrong : {timing ? nullptr : &timing.error(), peers ? nullptr : &peers.error(),
                             key ? nullptr : &key.error()}) {
    if (wrong != nullptr) {
      return *wrong;
    }
  }
  const std::vector<fabric::NetInterface> own =
      relay::select_mesh_interfaces(all, config.mesh_ifname);
  if (own.empty()) {
    return fail(Errc::invalid_argument,
                "no interface with cables to neighbours is up (HA_NCCL_MESH_IFNAME)");
  }
  relay::LinkSockets::Options options;
  options.port = static_cast<uint16_t>(config.mesh_port);
  options.peers = std::move(*peers);
  bool taken = false;
  auto sockets = relay::LinkSockets::open(options, &taken);
  if (!sockets && !taken) {
    return sockets.error();
  }
  if (sockets) {
    look.own_ = std::make_unique<ShortDiscovery>(std::move(*sockets), own, *timing, *key);
  }
  return look;
}

void MeshLook::settle(Duration limit) {
  if (own_) {
    own_->settle(limit);
  }
}

void MeshLook::stay() {
  if (own_) {
    own_->stay();
  }
}

Result<MeshSight> MeshLook::sight() {
  if (own_) {
    return own_->sight();
  }
  return config_->mesh_topology_file.empty() ? ask_for_mesh(*config_)
                                             : sight_of_file(*config_, *all_);
}

Result<MeshSight> look_at_mesh(const Config& config, const std::vector<fabric::NetInterface>& all,
                               Duration wait) {
  auto look = MeshLook::begin(config, all);
  if (!look) {
    return look.error();
  }
  look->settle(wait);
  auto sight = look->sight();
  look->stay();
  return sight;
}

}  // namespace nccl_ha::tools
