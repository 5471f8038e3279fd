#include "relay/process_mesh.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "relay/discovery_actor.h"
#include "relay/mesh_client.h"
#include "relay/mesh_links.h"
#include "relay/mesh_settings.h"
#include "relay/piece_size.h"
#include "relay/relay_factory.h"
#include "relay/relay_node.h"
#include "relay/topology_file.h"
#include "runtime/base/log.h"
#include "runtime/base/secret.h"

namespace nccl_ha::relay {
namespace {

/// A relay node answers within milliseconds; a process that will relay later does not yet.
constexpr Duration answer_limit = std::chrono::seconds(2);
constexpr Duration answer_limit_of_others = std::chrono::milliseconds(200);
/// A peer that discovery has not heard of by then is no part of the mesh.
constexpr Duration patience_max = std::chrono::seconds(10);
/// A relay node that begins waits for five seconds (tools/relay).
constexpr Duration hand_over_limit = std::chrono::milliseconds(500);

RelayPath::Options path_options(const Config& config, SessionKeys keys) {
  RelayPath::Options options;
  options.keys = std::move(keys);
  options.chunk_bytes = piece_bytes(static_cast<uint32_t>(config.mesh_chunk_bytes));
  options.slots = static_cast<uint16_t>(config.mesh_slots);
  options.relays_max = static_cast<size_t>(config.mesh_max_hops);
  return options;
}

/// A host with cables alone; its neighbours where they and this one have a network in common.
std::shared_ptr<const MeshView> fixed_view(Topology topology, uint32_t self) {
  auto view = std::make_shared<MeshView>();
  view->self = topology.nodes()[self].id;
  for (const TopologyLink& link : topology.links(self)) {
    const auto address = address_towards(topology.nodes()[self], topology.nodes()[link.node]);
    if (!address) {
      continue;
    }
    Neighbour made;
    made.node = topology.nodes()[link.node].id;
    made.interface = link.interface;
    made.peer_interface = link.peer_interface;
    made.two_way = true;
    made.address.length = address->to_sockaddr(0, &made.address.storage);
    view->neighbours.push_back(made);
  }
  view->topology = std::move(topology);
  return view;
}

}  // namespace

ProcessMesh::ProcessMesh(const Config& config, std::vector<fabric::NetInterface> own)
    : config_(config),
      own_(std::move(own)),
      routes_(std::make_shared<MeshRoutes>(board_, route_options(config),
                                           static_cast<uint16_t>(config.mesh_port))) {}

Result<std::unique_ptr<ProcessMesh>> ProcessMesh::make(
    const Config& config, const std::vector<fabric::NetInterface>& all) {
  std::unique_ptr<ProcessMesh> made(
      new ProcessMesh(config, select_mesh_interfaces(all, config.mesh_ifname)));
  const std::string& how = config.mesh_relay;
  if (how != "auto" && how != "inline" && how != "off") {
    return fail(Errc::invalid_argument,
                fmt::format("NCCL_MESH_RELAY={}: use auto, inline or off", how));
  }
  if (auto timing = discovery_timing(config); !timing) {
    return timing.error();
  }
  auto expected = parse_shape(config.mesh_topology);
  if (!expected) {
    return expected.error();
  }
  made->expected_ = *expected;
  if (how == "off" || !config.mesh_enable_relay || fabric::fabric_is_forced(config) ||
      made->own_.empty()) {
    return made;
  }
  auto key = cluster_key(config);
  if (!key) {
    return key.error();
  }
  made->key_ = std::move(*key);
  auto chosen = config.mesh_topology_file.empty() ? made->choose_part() : made->use_file(all);
  if (!chosen) {
    return chosen.error();
  }
  return made;
}

Result<void> ProcessMesh::open_links(bool* port_taken) {
  LinkSockets::Options options;
  options.port = static_cast<uint16_t>(config_.mesh_port);
  auto peers = parse_mesh_peers(config_.mesh_peers);
  if (!peers) {
    return peers.error();
  }
  options.peers = std::move(*peers);
  auto links = LinkSockets::open(options, port_taken);
  if (!links) {
    return links.error();
  }
  links_ = std::move(*links);
  return {};
}

Result<void> ProcessMesh::choose_part() {
  const bool inlined = config_.mesh_relay == "inline";
  bool taken = false;
  auto opened = inlined ? open_links(&taken) : Result<void>();
  if (inlined && !taken) {
    part_ = opened ? Part::inlined : Part::none;
    return opened;
  }
  // Who only asks does not take the port, not even for a moment: a relay node may be about to.
  auto view = ask_relay_node(static_cast<uint16_t>(config_.mesh_port),
                             inlined ? answer_limit_of_others : answer_limit);
  if (view) {
    board_->publish(std::move(*view));
  } else if (!inlined) {
    if (view.error().code == Errc::timed_out) {
      NHA_LOG_WARN("only hosts to which a cable leads are reached: {}", view.error().message());
    }
    return {};
  }
  part_ = Part::attached;
  const auto origin = config_.origins.find("mesh_key_file");
  const bool of_job =
      origin != config_.origins.end() && origin->second.variable != "NCCL_MESH_KEY_FILE";
  if (key_ == nullptr || of_job) {
    ask_for_ticket();
  }
  return {};
}

/// A node without a key has none to give, and needs none.
void ProcessMesh::ask_for_ticket() {
  TicketAsker asker(static_cast<uint16_t>(config_.mesh_port), kernel_secrets());
  if (const auto ticket = asker.wait(answer_limit_of_others)) {
    tickets_->add(*ticket);
    key_ = nullptr;  // a job's own is not the cluster's
    NHA_LOG_INFO("the relay node of this host vouches for this process");
  }
}

Result<void> ProcessMesh::use_file(const std::vector<fabric::NetInterface>& all) {
  auto topology = read_topology_file(config_.mesh_topology_file);
  if (!topology) {
    return topology.error();
  }
  std::vector<IpAddress> addresses;
  for (const fabric::NetInterface& one : all) {
    if (!one.loopback) {
      addresses.insert(addresses.end(), one.addresses.begin(), one.addresses.end());
    }
  }
  const auto self = find_host(*topology, addresses);
  if (!self) {
    return fail(Errc::invalid_argument,
                fmt::format("{}: no node has an address of this host, or several have: write its "
                            "addresses behind its name",
                            config_.mesh_topology_file));
  }
  board_->publish(fixed_view(std::move(*topology), *self));
  fixed_ = true;
  part_ = Part::inlined;
  return {};
}

std::vector<fabric::Provider::Kind> ProcessMesh::kinds() const {
  return takes_part() ? std::vector<fabric::Provider::Kind>{relay_fabric(
                            routes_, path_options(config_, {key_, tickets_}), {})}
                      : std::vector<fabric::Provider::Kind>();
}

/// Discovery, and the relay node of this process.
Result<void> ProcessMesh::make_node(fabric::Provider& provider, Worker& worker,
                                    const Adopt& adopt) {
  warn_without(key_);
  hops_ = std::make_unique<ProviderHops>(provider);
  auto identity =
      mesh_identity(own_, true, static_cast<uint32_t>(kernel_secrets().draw().told() | 1));
  const NodeId self = routes_->self().value_or(identity.node);  // as others know this host
  identity.node = self;
  RelayNode::Tell tell;
  if (!fixed_) {
    DiscoveryActor::Options discovery;
    discovery.identity = identity;
    discovery.timing = *discovery_timing(config_);
    discovery.links = std::move(links_);
    discovery.interfaces = [spec = config_.mesh_ifname] { return list_mesh_interfaces(spec); };
    discovery.board = board_;
    discovery.key = key_;
    discovery.on_hand_over = [this, &worker] { return hand_over(worker); };
    const auto adopted = adopt(std::make_unique<DiscoveryActor>(std::move(discovery)));
    if (!adopted) {
      return adopted.error();
    }
    {
      const std::lock_guard lock(node_mutex_);
      discovery_ = *adopted;
    }
    tell = [&worker, to = *adopted](bool relays) {
      worker.post({to, DiscoveryActor::relays, relays ? 1U : 0U});
    };
  }
  RelayOptions relayed = relay_options(config_, self);
  relayed.key = key_;
  const auto adopted = adopt(std::make_unique<RelayNode>(
      *hops_, *routes_, relayed, std::to_string(config_.mesh_port), std::move(tell),
      [this, &provider, &worker] { on_drained(provider, worker); }));
  if (!adopted) {
    return adopted.error();
  }
  const std::lock_guard lock(node_mutex_);
  node_ = *adopted;
  drained_ = false;
  handing_over_ = false;
  return {};
}

Result<void> ProcessMesh::begin(Engine& engine, fabric::Provider& provider, Instant now) {
  began_ = now;
  bool taken = false;
  if (part_ == Part::inlined && !fixed_ && !links_) {
    if (auto opened = open_links(&taken); !opened && !taken) {
      return opened;
    }
  }
  Worker& worker = engine.worker(0);
  {
    const std::lock_guard lock(node_mutex_);
    node_.reset();
    drained_ = false;
    handing_over_ = false;
  }
  if (part_ == Part::inlined && !taken) {
    return make_node(provider, worker,
                     [&](std::unique_ptr<Actor> actor) { return worker.adopt(std::move(actor)); });
  }
  if (!takes_part()) {
    return {};
  }
  const auto adopted = worker.adopt(make_client(provider, worker));
  return adopted ? Result<void>() : Result<void>(adopted.error());
}

std::unique_ptr<MeshClient> ProcessMesh::make_client(fabric::Provider& provider, Worker& worker) {
  MeshClient::Options client;
  client.port = static_cast<uint16_t>(config_.mesh_port);
  client.interval = std::chrono::milliseconds(config_.mesh_hello_ms);
  client.dead = std::chrono::milliseconds(config_.mesh_dead_ms);
  client.board = board_;
  client.tickets = key_ == nullptr ? tickets_ : nullptr;
  if (!fixed_) {
    // Without discovery on it, this host would be lost to all others.
    client.on_silence = [this, &provider, &worker](Context& context) {
      if (key_ == nullptr && tickets_->newest()) {
        NHA_LOG_WARN_LIMITED(
            "the relay node of this host is gone, and this process has no key of the cluster "
            "(NCCL_MESH_KEY_FILE) to take its place: it waits for the node");
        return false;
      }
      bool other = false;
      if (!open_links(&other)) {
        return false;
      }
      NHA_LOG_WARN("the relay node of this host is gone: this process relays from now on");
      return make_node(
                 provider, worker,
                 [&](std::unique_ptr<Actor> actor) { return context.add_actor(std::move(actor)); })
          .ok();
    };
  }
  return std::make_unique<MeshClient>(std::move(client));
}

/// Their connections find other ways, or this host's again when its node relays.
bool ProcessMesh::hand_over(Worker& worker) {
  const std::lock_guard lock(node_mutex_);
  if (!node_) {
    return false;  // it has not begun yet, or leaves anyway
  }
  NHA_LOG_WARN("a relay node begins on this host: this process relays no more");
  handing_over_ = true;
  const auto within = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::min<Duration>(hand_over_limit, std::chrono::milliseconds(config_.mesh_drain_ms)));
  worker.post({*node_, RelayNode::drain, static_cast<uint32_t>(within.count())});
  return true;
}

void ProcessMesh::give_place(fabric::Provider& provider, Worker& worker) {
  Context& context = worker.context();
  if (node_) {
    context.remove_actor(*std::exchange(node_, std::nullopt));
  }
  context.send_self({*discovery_, DiscoveryActor::leave});
  if (auto added = context.add_actor(make_client(provider, worker)); !added) {
    NHA_LOG_WARN("this process hears of no more routes: {}", added.error().message());
  }
}

void ProcessMesh::leave(Engine& engine, Duration limit) {
  std::unique_lock lock(node_mutex_);
  if (!node_) {
    return;
  }
  const auto within = std::chrono::duration_cast<std::chrono::milliseconds>(limit);
  engine.worker(0).post({*node_, RelayNode::drain, static_cast<uint32_t>(within.count())});
  node_drained_.wait_for(lock, limit, [this] { return drained_; });
  node_.reset();
}

void ProcessMesh::on_drained(fabric::Provider& provider, Worker& worker) {
  const std::lock_guard lock(node_mutex_);
  drained_ = true;
  node_drained_.notify_all();
  if (std::exchange(handing_over_, false)) {
    give_place(provider, worker);
  }
}

bool ProcessMesh::shares_subnet(const std::vector<IpAddress>& addresses) const {
  return std::any_of(own_.begin(), own_.end(), [&](const fabric::NetInterface& one) {
    return std::any_of(one.addresses.begin(), one.addresses.end(), [&](const IpAddress& mine) {
      // Of link-local networks each cable has the same one.
      return !mine.link_local() &&
             std::any_of(addresses.begin(), addresses.end(),
                         [&](const IpAddress& theirs) { return mine.same_subnet(theirs); });
    });
  });
}

ProcessMesh::Reach ProcessMesh::reach(const std::vector<IpAddress>& addresses, Instant now) const {
  if (!takes_part()) {
    return Reach::cable;
  }
  tell_shape(now);
  const auto known = routes_->reach(addresses);
  if (known == MeshRoutes::Reach::cable || known == MeshRoutes::Reach::itself) {
    return Reach::cable;
  }
  // Others may have told of the peer before its own cable was heard.
  const bool early = shares_subnet(addresses) && now - began_ < patience(addresses);
  return known == MeshRoutes::Reach::relays && !early ? Reach::relays : Reach::unknown;
}

void ProcessMesh::tell_shape(Instant now) const {
  // Not before all hosts have had the time to be heard.
  const bool early = !fixed_ && now - began_ < std::chrono::milliseconds(2 * config_.mesh_hello_ms);
  const auto view = expected_ && !early ? board_->read() : nullptr;
  const auto self = view ? view->topology.find(view->self) : std::nullopt;
  const std::lock_guard lock(told_mutex_);
  // Whoever waits for a peer asks again and again.
  if (!self || view == judged_) {
    return;
  }
  judged_ = view;
  std::string wrong;
  for (const std::string& one : findings(view->topology, *self, *expected_)) {
    wrong += (wrong.empty() ? "" : "; ") + one;
  }
  if (wrong != told_ && !wrong.empty()) {
    NHA_LOG_WARN("{}", wrong);
  }
  told_ = wrong;
}

Duration ProcessMesh::patience(const std::vector<IpAddress>& addresses) const {
  return shares_subnet(addresses)
             ? Duration(std::chrono::milliseconds(2 * config_.mesh_hello_ms))
             : std::min<Duration>(patience_max,
                                  std::chrono::milliseconds(config_.connect_timeout_ms / 2));
}

bool ProcessMesh::hears(const sockaddr* peer) const {
  const auto view = board_->read();
  const auto wanted = IpAddress::from_sockaddr(peer);
  return view && wanted &&
         std::any_of(view->neighbours.begin(), view->neighbours.end(), [&](const Neighbour& one) {
           const auto heard = IpAddress::from_sockaddr(one.address.get());
           return heard && heard->family == wanted->family && heard->bytes == wanted->bytes &&
                  one.interface == wanted->scope_id;
         });
}

std::string ProcessMesh::known_hosts() const {
  const auto view = board_->read();
  std::string names;
  for (size_t i = 0; view && i < view->topology.nodes().size(); ++i) {
    const TopologyNode& host = view->topology.nodes()[i];
    names += fmt::format("{}{}", names.empty() ? "" : ", ",
                         host.name.empty() ? text(host.id) : host.name);
  }
  return names.empty() ? "none" : names;
}

}  // namespace nccl_ha::relay
