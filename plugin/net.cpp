// NCCL's calls on the one internal interface: control plane (devices, listen, connect, close).
#include "plugin/net.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "actors/connection/send_side.h"
#include "plugin/connect.h"
#include "plugin/edge.h"
#include "plugin/process.h"
#include "plugin/profiler.h"
#include "relay/relay_factory.h"
#include "runtime/base/log.h"

namespace nccl_ha::plugin {
namespace {

constexpr size_t max_comms = 65536;
constexpr size_t comm_credits = 4;  // a doorbell or two, and suspicions
constexpr size_t p2p_bytes_max = size_t{1} << 30;
constexpr size_t coll_bytes_max = size_t{1} << 29;

/// The contexts of v11 and later carry a traffic class, -1 for none, and nothing else: each class
/// has an address of its own.
std::array<char, 257> context_tokens;

bool is_context(const void* ctx) {
  return ctx >= context_tokens.data() && ctx < context_tokens.data() + context_tokens.size();
}

/// v10 passes it to connect, v11 and later to init.
int traffic_class_of(const void* ctx, int of_call) {
  return of_call < 0 && is_context(ctx)
             ? static_cast<int>(static_cast<const char*>(ctx) - context_tokens.data()) - 1
             : of_call;
}

std::span<std::byte, handle_bytes> handle_span(void* handle) {
  return std::span<std::byte, handle_bytes>(static_cast<std::byte*>(handle), handle_bytes);
}

/// Takes a finished connection's resources back.  The channel may live on in its actor.
void close_comm(Comm* comm, Driver& driver) {
  Process& process = Process::instance();
  {
    std::lock_guard lock(comm->regions_mutex);
    for (const fabric::Registration& registration : comm->regions) {
      static_cast<void>(process.provider().remove_memory(registration));
    }
    comm->regions.clear();
  }
  if (process.generation() == comm->generation) {
    driver.close();
    process.close();
  }
}

/// It is in a subnet of one of them.
bool is_in_any(const IpAddress& address, std::span<const fabric::NetInterface> interfaces) {
  return std::ranges::any_of(interfaces, [&](const fabric::NetInterface& one) {
    return std::ranges::any_of(one.addresses,
                               [&](const IpAddress& own) { return own.same_subnet(address); });
  });
}

std::vector<IpAddress> own_addresses() {
  std::vector<IpAddress> all;
  for (const fabric::NetInterface& one : Process::instance().control_interfaces()) {
    all.insert(all.end(), one.addresses.begin(), one.addresses.end());
  }
  return all;
}

/// From where the peer's door is dialled, best first.
std::vector<Route> routes_to(const Handle& handle, const fabric::NetDevice& device, bool relayed) {
  Process& process = Process::instance();
  const auto interfaces = process.interfaces();
  const auto all = process.control_interfaces();
  const size_t own = interfaces->size();
  if (relayed) {
    // No cable leads there, even where addresses look like it.
    const size_t first = own < all.size() ? own : process.control_interface(device);
    return plan_routes(all, first, handle);
  }
  auto routes = plan_routes(*interfaces, process.control_interface(device), handle, all);
  // Link-local networks look alike on each cable; who is heard on one, discovery knows.  No cable
  // leads to a management network: whoever dials there from one waits for nothing.
  std::erase_if(routes, [&](const Route& route) {
    const auto* to = reinterpret_cast<const sockaddr*>(&route.to);
    const auto address = IpAddress::from_sockaddr(to);
    return process.mesh().takes_part() && address &&
           (address->link_local() ? process.mesh().in_mesh() && !process.mesh().hears(to)
                                  : is_in_any(*address, std::span(all).subspan(own)));
  });
  if (own < all.size() && process.mesh().in_mesh()) {
    for (Route& route : plan_routes(std::span(all).subspan(own), 0, handle)) {
      route.for_rejoin = true;  // the first paths are made where the stream is
      routes.push_back(route);
    }
  }
  return routes;
}

/// Where connections live: where cables may lead to other hosts at the port whose cable does,
/// whatever device NCCL asked for.
CablePorts cable_ports() {
  Process& process = Process::instance();
  if (!process.mesh().takes_part()) {
    return {};
  }
  return {process.devices().ports(), [&process] { return process.mesh().in_mesh(); },
          !process.streams_begin_elsewhere()};
}

/// How the connection goes on where its cable is cut before it has come about.
SendOptions::Relays relays_towards(const Handle& handle, const fabric::RailDevices& asked) {
  Process& process = Process::instance();
  if (!process.mesh().takes_part()) {
    return {};
  }
  SendOptions::Relays relays;
  relays.routes = routes_to(handle, process.provider().devices()[asked.first()], true);
  relays.kind = relay::relay_kind;
  relays.ways = [&process, addresses = handle.addresses,
                 asked]() -> std::optional<fabric::RailDevices> {
    if (process.mesh().reach(addresses, process.host().now(), false) !=
        relay::ProcessMesh::Reach::relays) {
      return std::nullopt;
    }
    return fabric::RailDevices::ways_of(asked.first(), process.mesh().ways(addresses));
  };
  return relays;
}

/// Data of datagrams goes where the stream does.
void warn_of_management(const fabric::NetDevice& device, const Route& first, const Handle& handle) {
  Process& process = Process::instance();
  if (device.kind == fabric::datagram_kind &&
      process.mesh().is_management(reinterpret_cast<const sockaddr*>(&first.from))) {
    NHA_LOG_WARN_LIMITED(
        "data to {} goes over a network that is slower than this host's cables: {}",
        handle.addresses.front().text(),
        process.config().ifname.empty() ? process.mesh().why_no_way(handle.addresses)
                                        : "NCCL_SOCKET_IFNAME (or HA_NCCL_IFNAME) names it; "
                                          "HA_NCCL_IFNAME may name the cables");
  }
}

abi::NcclResult start_connect(int dev, int traffic_class, const Handle& handle,
                              std::span<std::byte, handle_bytes> bytes, bool relayed) {
  Process& process = Process::instance();
  SendOptions options;
  const fabric::RailDevices asked = process.devices().find(dev)->rails;
  fabric::Provider& provider = process.provider();
  const auto& devices = provider.devices();
  options.routes = routes_to(handle, devices[asked.first()], relayed);
  options.why_not = families_apart(own_addresses(), handle.addresses);
  if (options.why_not.empty() && !relayed && process.mesh().out_of_reach(handle.addresses)) {
    options.why_not = process.mesh().why_no_way(handle.addresses);
  }
  options.traffic_class = traffic_class;
  options.nonce = handle.nonce;
  options.timeout = std::chrono::milliseconds(process.config().connect_timeout_ms);
  if (options.routes.empty()) {
    return report(fail(
        Errc::remote,
        fmt::format("connect: device {} has no way to an address of "
                    "the peer; {}",
                    devices[asked.first()].name,
                    options.why_not.empty() ? "it has no address of a family that the peer has too"
                                            : options.why_not)));
  }
  if (std::ranges::all_of(options.routes, &Route::for_rejoin)) {
    return report(fail(Errc::remote, fmt::format("connect: no cable or relay leads to {}: {}",
                                                 handle.addresses.front().text(),
                                                 process.mesh().why_no_way(handle.addresses))));
  }
  if (!relayed) {
    warn_of_management(devices[asked.first()], options.routes.front(), handle);
  }
  const fabric::RailDevices rails =
      relayed ? fabric::RailDevices::ways_of(asked.first(), process.mesh().ways(handle.addresses))
              : cable_ports().of_stream(provider, asked, options.routes.front().from);
  const fabric::NetDevice& device = devices[rails.first()];
  const auto kind = relayed ? std::optional(relay::relay_kind)
                            : provider.kind_towards(rails.first(), handle.fabric);
  if (!kind) {
    return report(fail(Errc::remote,
                       fmt::format("connect: HA_NCCL_FABRIC={}, but the peer uses {}: nccl-ha info "
                                   "there says why; auto would use datagrams over UDP to it",
                                   process.config().fabric, provider.text(handle.fabric))));
  }
  if (*kind != device.kind && !relayed) {
    NHA_LOG_INFO("the peer uses {}: this connection uses {}", provider.text(handle.fabric),
                 provider.text(*kind));
  }
  if (!relayed) {
    options.ports = cable_ports();
    options.peer_kind = handle.fabric;
    options.relays = relays_towards(handle, asked);
  }
  const fabric::Attachment attachment = provider.live_at(rails.first(), *kind);
  auto engine = process.open();
  if (!engine) {
    return report(engine.error());
  }
  const size_t index = (*engine)->assign_worker(device.numa_node, 1.0);
  Worker& worker = (*engine)->worker(index);
  auto endpoint =
      std::make_shared<SendEndpoint>(process.next_domain(), attachment, worker, **engine, rails);
  auto address = worker.open_address(comm_credits);
  if (!address) {
    (*engine)->add_load(index, -1.0);
    process.close();
    return report(address.error());
  }
  auto actor = worker.adopt(
      make_send_connection(process.provider(), **engine, index, endpoint, std::move(options)));
  if (!actor) {
    process.close();
    return report(actor.error());
  }
  endpoint->driver.attach(*actor, std::move(*address));
  set_handle_scratch(bytes, process.add_pending(endpoint));
  endpoint->driver.turn();
  return abi::NcclResult::success;
}

/// Starts when it is known which way leads to the peer; until then the handle holds the number of
/// the one who waits, or none.
abi::NcclResult look_for_way(int dev, int traffic_class, uint64_t id,
                             std::span<std::byte, handle_bytes> bytes) {
  using Reach = relay::ProcessMesh::Reach;
  Process& process = Process::instance();
  const auto handle = read_handle(bytes);
  if (!handle) {
    return report(fail(Errc::invalid_argument,
                       "connect: the peer's handle was not made by nccl-ha; do all ranks load the "
                       "same plugin?"));
  }
  if (handle->sealed == process.config().key_file.empty()) {
    return report(fail(Errc::remote,
                       fmt::format("connect: HA_NCCL_KEY_FILE is set {} and not {}: set it on both "
                                   "hosts, or on none",
                                   handle->sealed ? "at the peer" : "here",
                                   handle->sealed ? "here" : "at the peer")));
  }
  const relay::ProcessMesh& mesh = process.mesh();
  if (!mesh.takes_part()) {
    return start_connect(dev, traffic_class, *handle, bytes, false);
  }
  // Discovery runs as long as somebody uses the engine.
  auto engine = id == 0 ? process.open() : process.engine();
  if (!engine) {
    return report(engine.error());
  }
  const Instant now = process.host().now();
  const Instant until = id == 0 ? now + mesh.patience(handle->addresses, now)
                                : process.find_waiting(id).value_or(now);
  const Reach reach = mesh.reach(handle->addresses, now, now < until);
  if (reach == Reach::unknown && now < until) {
    if (id == 0) {
      set_handle_scratch(bytes, process.add_waiting(until));
    } else {
      (*engine)->assist_all();
    }
    return abi::NcclResult::success;
  }
  if (reach == Reach::unknown) {
    mesh.give_up();
    NHA_LOG_INFO("no way over other hosts leads to {}, as far as is known here: {}",
                 handle->addresses.front().text(), mesh.why_no_way(handle->addresses));
  }
  process.remove_waiting(id);
  set_handle_scratch(bytes, 0);
  const auto result = start_connect(dev, traffic_class, *handle, bytes, reach == Reach::relays);
  process.close();
  return result;
}

}  // namespace

abi::NcclResult net_init(void** ctx, uint64_t comm_id, int traffic_class, abi::Logger logger,
                         abi::ProfilerCallback profiler) noexcept {
  if (ctx != nullptr) {
    *ctx = nullptr;
  }
  return guarded("init", [&] {
    if (auto ready = Process::instance().initialize(logger, comm_id); !ready) {
      return to_nccl(ready.error().code);
    }
    use_profiler(profiler);
    if (ctx != nullptr) {
      const auto known = static_cast<ptrdiff_t>(std::clamp(traffic_class, -1, 255));
      *ctx = context_tokens.data() + 1 + known;
    }
    return abi::NcclResult::success;
  });
}

abi::NcclResult net_finalize(void* ctx) noexcept {
  return guarded("finalize", [&] {
    if (is_context(ctx)) {
      Process::instance().remove_context();
    }
    return abi::NcclResult::success;
  });
}

abi::NcclResult net_devices(int* ndev) noexcept {
  *ndev = 0;
  return guarded("devices", [&] {
    *ndev = static_cast<int>(Process::instance().device_count());
    return abi::NcclResult::success;
  });
}

abi::NcclResult net_properties(int dev, DeviceProperties* out) noexcept {
  *out = {};
  return guarded("getProperties", [&] {
    Process& process = Process::instance();
    const auto listed = process.devices().find(dev);
    if (process.device_count() == 0 || !listed) {
      return report(
          fail(Errc::invalid_argument,
               fmt::format("device {} does not exist; there are {}", dev, process.device_count())));
    }
    const fabric::Provider& provider = process.provider();
    const fabric::NetDevice& device = provider.devices()[listed->rails.first()];
    // NCCL keeps these pointers for the life of the library.
    out->name = intern(listed->name);
    out->pci_path = device.pci_path.empty() ? nullptr : intern(device.pci_path);
    out->guid = device.guid;
    // What all its rails can do.
    out->ptr_support = abi::ptr_host | abi::ptr_cuda | abi::ptr_dmabuf;
    out->reg_is_global = 1;
    out->max_comms = static_cast<int>(max_comms);
    for (size_t i = 0; i < listed->rails.count; ++i) {
      const size_t at = listed->rails.devices[i];
      const fabric::NetDevice& rail = provider.devices()[at];
      out->ptr_support &= abi::ptr_host | (rail.peer_memory ? abi::ptr_cuda : 0) |
                          (rail.dmabuf ? abi::ptr_dmabuf : 0);
      // A registration serves every connection on the same device, unless some fall back to
      // datagrams.
      out->reg_is_global &= provider.memory_is_global(at) ? 1 : 0;
      // On SOUT and SUP a connection has queue pairs by other settings than elsewhere.
      const Config& config = process.config();
      const int64_t pairs = !listed->rails.sout_and_sup ? config.ib_qps
                            : i == 0                    ? config.mpib_sout_qp
                                                        : config.mpib_sup_qp;
      const auto most = static_cast<int64_t>(provider.connections_max(at, max_comms));
      out->max_comms = static_cast<int>(
          std::min<int64_t>(out->max_comms, std::max<int64_t>(most * config.ib_qps / pairs, 1)));
    }
    out->force_flush = 0;
    out->speed_mbps =
        static_cast<int>(std::min<int64_t>(listed->speed_mbps, std::numeric_limits<int>::max()));
    out->port = listed->port;
    out->latency_us = 0;
    out->member_count = static_cast<int>(listed->members.size());
    std::copy_n(listed->members.begin(), std::min(listed->members.size(), out->members.size()),
                out->members.begin());
    out->max_recvs = static_cast<int>(group_max);
    out->max_p2p_bytes = p2p_bytes_max;
    out->max_coll_bytes = coll_bytes_max;
    out->max_multi_request = 1;
    out->rail_id = -1;
    out->plane_id = -1;
    return abi::NcclResult::success;
  });
}

abi::NcclResult net_make_vdevice(int* dev, const int* members, int count) noexcept {
  *dev = -1;
  return guarded("makeVDevice", [&] {
    Process& process = Process::instance();
    if (process.device_count() == 0) {
      return report(fail(Errc::invalid_usage, "makeVDevice: the plugin was not initialised"));
    }
    if (!process.config().enable_backup) {
      return report(fail(Errc::invalid_usage,
                         "makeVDevice: paths on other rails need HA_NCCL_ENABLE_BACKUP=1"));
    }
    const auto size = static_cast<size_t>(std::max(count, 0));
    Result<int> merged = fail(Errc::invalid_usage,
                              "makeVDevice: in a mesh without a switch devices lead to different "
                              "hosts, so none are merged");
    if (!process.mesh().takes_part() || process.mesh().automatic()) {
      merged = process.devices().merge(std::span(members, size));
    }
    if (!merged) {
      // NCCL tries by itself, and goes on with the devices as they are.
      NHA_LOG_INFO("{}", merged.error().message());
      return abi::NcclResult::invalid_usage;
    }
    *dev = *merged;
    NHA_LOG_INFO("device {} is {}", *dev, process.devices().find(*dev)->name);
    return abi::NcclResult::success;
  });
}

abi::NcclResult net_listen(void* ctx, int dev, void* handle, void** listen_comm) noexcept {
  *listen_comm = nullptr;
  return guarded("listen", [&] {
    (void)ctx;
    Process& process = Process::instance();
    if (dev < 0 || static_cast<size_t>(dev) >= process.device_count()) {
      return report(fail(Errc::invalid_argument, fmt::format("listen: no device {}", dev)));
    }
    const fabric::RailDevices rails = process.devices().find(dev)->rails;
    const fabric::NetDevice& device = process.provider().devices()[rails.first()];
    Handle content;
    content.nonce = process.host().secrets().draw().told();
    content.fabric = device.kind;
    content.sealed = !process.config().key_file.empty();
    content.addresses =
        handle_addresses(process.control_interfaces(), process.control_interface(device));
    auto engine = process.open();
    if (!engine) {
      return report(engine.error());
    }
    auto comm = std::make_unique<ListenComm>(process.generation());
    comm->channel = std::make_shared<ListenChannel>(content.nonce);
    const auto port = comm->open(**engine, process.provider(), rails, cable_ports());
    if (!port) {
      process.close();
      return report(port.error());
    }
    content.port = *port;
    write_handle(content, handle_span(handle));
    *listen_comm = comm.release();
    return abi::NcclResult::success;
  });
}

abi::NcclResult net_connect(void* ctx, int dev, int traffic_class, void* handle,
                            void** send_comm) noexcept {
  *send_comm = nullptr;
  return guarded("connect", [&] {
    Process& process = Process::instance();
    if (dev < 0 || static_cast<size_t>(dev) >= process.device_count()) {
      return report(fail(Errc::invalid_argument, fmt::format("connect: no device {}", dev)));
    }
    const auto bytes = handle_span(handle);
    const uint64_t id = handle_scratch(bytes);
    if (id == 0 || process.find_waiting(id)) {
      return look_for_way(dev, traffic_class_of(ctx, traffic_class), id, bytes);
    }
    auto endpoint = process.find_pending(id);
    if (!endpoint) {
      return report(fail(Errc::invalid_argument,
                         "connect: the handle was changed between calls, or used twice"));
    }
    const SendChannel& channel = endpoint->channel;
    if (channel.phase() == Phase::connecting) {
      endpoint->driver.turn();
    }
    switch (channel.phase()) {
      case Phase::connecting:
        return abi::NcclResult::success;
      case Phase::failed:
        if (!channel.established()) {
          break;
        }
        [[fallthrough]];  // the peer was there: what has become of it the first use tells
      case Phase::ready: {
        process.remove_pending(id);
        set_handle_scratch(bytes, 0);
        auto comm = std::make_unique<SendComm>(process.generation());
        comm->endpoint = std::move(endpoint);
        *send_comm = comm.release();
        return abi::NcclResult::success;
      }
    }
    process.remove_pending(id);
    set_handle_scratch(bytes, 0);
    const Errc code = channel.failure().code;
    SendComm failed(process.generation());
    close_comm(&failed, endpoint->driver);
    return to_nccl(code);
  });
}

abi::NcclResult net_accept(void* listen_comm, void** recv_comm) noexcept {
  *recv_comm = nullptr;
  return guarded("accept", [&] {
    auto* comm = as<ListenComm>(listen_comm, CommKind::listen, "accept");
    if (comm == nullptr) {
      return abi::NcclResult::internal_error;
    }
    Process& process = Process::instance();
    if (process.generation() != comm->generation) {
      return abi::NcclResult::system_error;
    }
    auto endpoint = comm->channel->take();
    if (!endpoint) {
      comm->engine->assist_all();
      endpoint = comm->channel->take();
    }
    if (!endpoint) {
      return comm->channel->failed() ? to_nccl(comm->channel->failure().code)
                                     : abi::NcclResult::success;
    }
    if (auto engine = process.open(); !engine) {
      endpoint->driver.close();  // its peer hears of it
      return to_nccl(engine.error().code);
    }
    auto accepted = std::make_unique<ReceiveComm>(process.generation());
    accepted->endpoint = std::move(endpoint);
    *recv_comm = accepted.release();
    return abi::NcclResult::success;
  });
}

abi::NcclResult net_close_send(void* comm) noexcept {
  return guarded("closeSend", [&] {
    auto* send = as<SendComm>(comm, CommKind::send, "closeSend");
    if (send == nullptr) {
      return abi::NcclResult::internal_error;
    }
    close_comm(send, send->endpoint->driver);
    delete send;
    return abi::NcclResult::success;
  });
}

abi::NcclResult net_close_recv(void* comm) noexcept {
  return guarded("closeRecv", [&] {
    auto* receive = as<ReceiveComm>(comm, CommKind::receive, "closeRecv");
    if (receive == nullptr) {
      return abi::NcclResult::internal_error;
    }
    close_comm(receive, receive->endpoint->driver);
    delete receive;
    return abi::NcclResult::success;
  });
}

abi::NcclResult net_close_listen(void* comm) noexcept {
  return guarded("closeListen", [&] {
    auto* listen = as<ListenComm>(comm, CommKind::listen, "closeListen");
    if (listen == nullptr) {
      return abi::NcclResult::internal_error;
    }
    Process& process = Process::instance();
    listen->channel->close();
    if (process.generation() == listen->generation) {
      // Connections that nobody accepted are closed with the listen.
      while (auto endpoint = listen->channel->take()) {
        endpoint->driver.close();
      }
      listen->door->remove(listen->channel->nonce());
      listen->engine->add_load(listen->worker->context().worker_index(), -1.0);
      listen->engine->assist(*listen->worker);
      process.close();
    }
    delete listen;
    return abi::NcclResult::success;
  });
}

abi::NcclResult net_set_attr(void* ctx, const abi::NetAttr* attr) noexcept {
  (void)ctx;
  (void)attr;  // hints only; nothing here depends on them
  return abi::NcclResult::success;
}

}  // namespace nccl_ha::plugin
