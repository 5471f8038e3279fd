#include "relay/process_mesh.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "relay/discovery_actor.h"
#include "relay/mesh_client.h"
#include "relay/mesh_links.h"
#include "relay/mesh_settings.h"
#include "relay/piece_size.h"
#include "relay/relay_factory.h"
#include "relay/relay_node.h"
#include "relay/shape_watch.h"
#include "relay/ticket_office.h"
#include "relay/topology_file.h"
#include "runtime/base/log.h"
#include "runtime/base/secret.h"

namespace nccl_ha::relay {
namespace {

/// A relay node answers within milliseconds; a process that will relay later does not yet, and is
/// asked again when this one needs to know.
constexpr Duration answer_limit = std::chrono::milliseconds(50);
/// A relay node that is held up.
constexpr Duration answer_limit_of_node = std::chrono::seconds(2);
constexpr Duration answer_limit_of_others = std::chrono::milliseconds(200);
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

/// NCCL_SOCKET_IFNAME keeps the job on this host: nobody is greeted on its cables.
bool stays_here(const Config& config, const std::vector<fabric::NetInterface>& all) {
  const auto chosen = fabric::select_interfaces(all, config.ifname, "");
  return !config.ifname.empty() && chosen &&
         std::all_of(chosen->begin(), chosen->end(),
                     [](const fabric::NetInterface& one) { return one.loopback; });
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

ProcessMesh::ProcessMesh(const Config& config, std::vector<fabric::NetInterface> own,
                         std::shared_ptr<JobKeys> job)
    : config_(config),
      job_(std::move(job)),
      own_(std::move(own)),
      routes_(std::make_shared<MeshRoutes>(board_, route_options(config),
                                           static_cast<uint16_t>(config.mesh_port))) {}

Result<std::unique_ptr<ProcessMesh>> ProcessMesh::make(const Config& config,
                                                       const std::vector<fabric::NetInterface>& all,
                                                       std::shared_ptr<JobKeys> job) {
  std::unique_ptr<ProcessMesh> made(
      new ProcessMesh(config, select_mesh_interfaces(all, config.mesh_ifname), std::move(job)));
  const std::string& how = config.mesh_relay;
  if (how != "auto" && how != "inline" && how != "off") {
    return fail(Errc::invalid_argument,
                fmt::format("HA_NCCL_MESH_RELAY={}: use auto, inline or off", how));
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
      made->own_.empty() || (how == "auto" && stays_here(config, all))) {
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
  const auto port = static_cast<uint16_t>(config_.mesh_port);
  bool taken = false;
  if (config_.mesh_relay == "inline") {
    auto opened = open_links(&taken);
    if (!taken) {
      part_ = opened ? Part::inlined : Part::none;
      job_->set_open(true);
      return opened;
    }
    const auto view = ask_relay_node(port, answer_limit_of_others);
    return attach(view ? view->get() : nullptr);
  }
  auto view = ask_relay_node(port, answer_limit);
  if (!view && view.error().code == Errc::timed_out && is_office_open(port)) {
    view = ask_relay_node(port, answer_limit_of_node);
  }
  if (view || view.error().code == Errc::timed_out) {
    automatic_ = !view || (*view)->of_job;
    return attach(automatic_ ? nullptr : view->get());
  }
  // Without either, nothing tells hosts of this job from others.
  automatic_ = key_ != nullptr || job_->current()->size() != 0;
  // Whoever never connects leaves the port to others.
  part_ = automatic_ ? Part::inlined : Part::none;
  return {};
}

/// To whoever has the port; null: that one has not answered yet.
Result<void> ProcessMesh::attach(const MeshView* view) {
  if (view != nullptr) {
    board_->publish(std::make_shared<const MeshView>(*view));
    job_->set_open(view->open);
  }
  part_ = Part::attached;
  const auto origin = config_.origins.find("mesh_key_file");
  const bool of_job =
      origin != config_.origins.end() && origin->second.variable == "HA_NCCL_KEY_FILE";
  // Who asks by itself does so later, as anybody may have the port.
  if (!automatic_ && (key_ == nullptr || of_job)) {
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
  job_->set_open(true);
  return {};
}

std::vector<fabric::Provider::Kind> ProcessMesh::kinds() const {
  if (!takes_part()) {
    return {};
  }
  RelayPath::Options options = path_options(config_, {key_, tickets_, job_});
  // A peer may come over others before whoever speaks for this process has told it anything.
  options.self = mesh_identity(own_, false, 1).node;
  return {relay_fabric(routes_, options, {})};
}

/// Discovery, and the relay node of this process; where nobody told so, that one once there is a
/// mesh.
Result<void> ProcessMesh::make_speaker(fabric::Provider& provider, Worker& worker,
                                       const Adopt& adopt) {
  hops_ = std::make_unique<ProviderHops>(provider);
  if (fixed_) {
    warn_without(key_);
    return make_node(provider, worker, adopt);
  }
  DiscoveryActor::Options discovery;
  discovery.identity =
      mesh_identity(own_, false, static_cast<uint32_t>(kernel_secrets().draw().told() | 1));
  // As others know this host.
  discovery.identity.node = routes_->self().value_or(discovery.identity.node);
  discovery.identity.looks = automatic_;
  discovery.timing = *discovery_timing(config_);
  discovery.links = std::move(links_);
  discovery.interfaces = [this, &provider] { return cables_now(provider); };
  discovery.board = board_;
  discovery.key = key_;
  discovery.job = job_;
  discovery.on_hand_over = [this, &provider, &worker] { return hand_over(provider, worker); };
  if (automatic_) {
    discovery.on_takes_part = [this, &provider, &worker](Context& context) {
      NHA_LOG_INFO(
          "{}: this process finds ways over other hosts of its job, and relays for them "
          "(HA_NCCL_MESH_RELAY=auto)",
          search_.seeks.load(std::memory_order_acquire) ? "a peer is out of reach"
                                                        : "there are cables without a switch");
      const auto made = make_node(provider, worker, [&](std::unique_ptr<Actor> actor) {
        return context.add_actor(std::move(actor));
      });
      if (!made) {
        NHA_LOG_WARN("this process relays for nobody: {}", made.error().message());
      }
    };
  }
  const Discovery::Identity identity = discovery.identity;
  const auto adopted = adopt(std::make_unique<DiscoveryActor>(std::move(discovery)));
  if (!adopted) {
    return adopted.error();
  }
  {
    const std::lock_guard lock(node_mutex_);
    discovery_ = *adopted;
    client_.reset();
    if (search_.seeks.load(std::memory_order_acquire)) {
      worker.post({*adopted, DiscoveryActor::need, 1});
    }
  }
  if (auto made = make_office(identity, adopt); !made || automatic_) {
    return made;
  }
  warn_without(key_);
  return make_node(provider, worker, adopt);
}

/// Of those that were there at first, where nobody told this process to look for more: the kernel
/// takes its time to list all, and this is a thread that moves data.
Result<std::vector<fabric::NetInterface>> ProcessMesh::cables_now(
    const fabric::Provider& provider) const {
  if (!automatic_) {
    return list_mesh_interfaces(config_.mesh_ifname);
  }
  const auto used = provider.interfaces();
  std::vector<fabric::NetInterface> now;
  for (const fabric::NetInterface& one : own_) {
    const auto found = std::ranges::find(*used, one.ifindex, &fabric::NetInterface::ifindex);
    if (found == used->end() || found->up) {
      now.push_back(found == used->end() ? one : *found);
    }
  }
  return now;
}

/// Other processes of the same user lend what their jobs have in common with other hosts.
Result<void> ProcessMesh::make_office(const Discovery::Identity& identity, const Adopt& adopt) {
  if (key_ != nullptr) {
    return {};
  }
  TicketOffice::Options office;
  office.port = static_cast<uint16_t>(config_.mesh_port);
  office.node = identity.node;
  office.incarnation = identity.incarnation;
  office.job = job_;
  office.user = geteuid();
  const auto adopted = adopt(std::make_unique<TicketOffice>(std::move(office)));
  if (!adopted) {
    return adopted.error();
  }
  const std::lock_guard lock(node_mutex_);
  office_ = *adopted;
  return {};
}

Result<void> ProcessMesh::make_node(fabric::Provider& provider, Worker& worker,
                                    const Adopt& adopt) {
  RelayNode::Tell tell;
  {
    const std::lock_guard lock(node_mutex_);
    if (discovery_) {
      tell = [&worker, to = *discovery_](bool relays) {
        worker.post({to, DiscoveryActor::relays, relays ? 1U : 0U});
      };
    }
  }
  RelayOptions relayed =
      relay_options(config_, routes_->self().value_or(mesh_identity(own_, true, 1).node));
  relayed.key = key_;
  relayed.job = job_;
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
  search_.seeks.store(false, std::memory_order_release);
  search_.since.store(Instant{}, std::memory_order_release);
  search_.found.store(false, std::memory_order_release);
  bool taken = false;
  if (part_ == Part::inlined && !fixed_ && !links_) {
    if (auto opened = open_links(&taken); !opened && !taken) {
      if (!automatic_) {
        return opened;
      }
      NHA_LOG_INFO("only hosts to which a cable leads are reached: {}", opened.error().message());
      return {};
    }
  }
  Worker& worker = engine.worker(0);
  if (expected_ && takes_part()) {
    const Duration apart =
        fixed_ ? Duration(0) : std::chrono::milliseconds(2 * config_.mesh_hello_ms);
    auto watch =
        worker.adopt(std::make_unique<ShapeWatch>(ShapeWatch::Options{board_, *expected_, apart}));
    if (!watch) {
      return watch.error();
    }
  }
  {
    const std::lock_guard lock(node_mutex_);
    worker_ = &worker;
    node_.reset();
    discovery_.reset();
    client_.reset();
    office_.reset();
    drained_ = false;
    handing_over_ = false;
  }
  if (part_ == Part::inlined && !taken) {
    return make_speaker(provider, worker, [&](std::unique_ptr<Actor> actor) {
      return worker.adopt(std::move(actor));
    });
  }
  if (!takes_part()) {
    return {};
  }
  const auto adopted = worker.adopt(make_client(provider, worker));
  if (!adopted) {
    return adopted.error();
  }
  const std::lock_guard lock(node_mutex_);
  client_ = *adopted;
  return {};
}

std::unique_ptr<MeshClient> ProcessMesh::make_client(fabric::Provider& provider, Worker& worker) {
  MeshClient::Options client;
  client.port = static_cast<uint16_t>(config_.mesh_port);
  client.interval = std::chrono::milliseconds(config_.mesh_hello_ms);
  client.dead = std::chrono::milliseconds(config_.mesh_dead_ms);
  client.board = board_;
  client.tickets = key_ == nullptr ? tickets_ : nullptr;
  client.job = key_ == nullptr ? job_ : nullptr;
  client.key = key_;
  client.seeks = search_.seeks.load(std::memory_order_acquire);
  if (!fixed_) {
    // Without discovery on it, this host would be lost to all others.
    client.on_silence = [this, &provider, &worker](Context& context) {
      if (key_ == nullptr && tickets_->newest()) {
        NHA_LOG_WARN_LIMITED(
            "the relay node of this host is gone, and this process has no key of the cluster "
            "(HA_NCCL_MESH_KEY_FILE) to take its place: it waits for the node");
        return false;
      }
      bool other = false;
      if (!open_links(&other)) {
        return false;
      }
      if (!automatic_) {
        NHA_LOG_WARN("the relay node of this host is gone: this process relays from now on");
      }
      return make_speaker(
                 provider, worker,
                 [&](std::unique_ptr<Actor> actor) { return context.add_actor(std::move(actor)); })
          .ok();
    };
  }
  return std::make_unique<MeshClient>(std::move(client));
}

/// Their connections find other ways, or this host's again when its node relays.
bool ProcessMesh::hand_over(fabric::Provider& provider, Worker& worker) {
  const std::lock_guard lock(node_mutex_);
  if (!discovery_) {
    return false;  // it has not begun yet
  }
  if (!node_) {
    give_place(provider, worker);
    return true;
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
  for (std::optional<ActorId>* one : {&node_, &office_}) {
    if (*one) {
      context.remove_actor(*std::exchange(*one, std::nullopt));
    }
  }
  context.send_self({*std::exchange(discovery_, std::nullopt), DiscoveryActor::leave});
  if (auto added = context.add_actor(make_client(provider, worker)); added) {
    client_ = *added;
  } else {
    NHA_LOG_WARN("this process hears of no more routes: {}", added.error().message());
  }
}

void ProcessMesh::leave(Engine& engine, Duration limit) {
  std::unique_lock lock(node_mutex_);
  worker_ = nullptr;
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

}  // namespace nccl_ha::relay
