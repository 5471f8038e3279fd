#include "tests/rig/runs/mesh_stage.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "relay/mesh_settings.h"
#include "relay/relay_factory.h"
#include "runtime/fabric/datagram/udp_factory.h"

namespace nccl_ha::rig {
namespace {

std::shared_ptr<KeyFile> make_key(uint64_t seed) {
  KeyRing::Key key;
  key.fill(static_cast<std::byte>(seed));
  KeyRing keys;
  keys.add(1, key);
  return std::make_shared<KeyFile>(std::move(keys));
}

}  // namespace

/// What MeshRoutes knows, with the ports that a simulated network gives, and from the cable's own
/// address.
class MeshStage::Hops final : public relay::NextHops {
 public:
  Hops(MeshStage& stage, size_t host) : stage_(stage), host_(host) {}
  std::optional<relay::NextHop> find(relay::NodeId neighbour) const override {
    auto found = own().routes->find(neighbour);
    if (!found) {
      return found;
    }
    const sim::Ip there = sim::Endpoint::of(found->relay.get()).ip;
    const Host& other = stage_.hosts_[relay::number(neighbour) - 1];
    // Who is not there any more refuses, as its port would.
    found->relay.set_port(other.node != nullptr ? other.node->port() : uint16_t{1});
    for (const size_t cable : own().cables) {
      if (address(cable, relay::number(neighbour) - 1) == there) {
        found->local.storage = sim::Endpoint{address(cable, host_), 0}.to_sockaddr();
        found->local.length = sizeof(sockaddr_in);
      }
    }
    return found;
  }
  bool is_at(relay::NodeId neighbour, const IpAddress& from) const override {
    return own().routes->is_at(neighbour, from);
  }
  std::optional<relay::NodeId> self() const override { return id(host_); }
  bool any() const override { return own().routes->any(); }
  std::vector<relay::NodeId> relays_to(relay::NodeId destination, const relay::Way& way) override {
    return own().routes->relays_to(destination, way);
  }
  void refused(relay::NodeId destination, const relay::Way& way) override {
    ++stage_.ended_.ways_refused;
    own().routes->refused(destination, way);
  }

 private:
  const Host& own() const { return stage_.hosts_[host_]; }
  MeshStage& stage_;
  size_t host_;
};

MeshStage::MeshStage(const MeshScenario& scenario, std::function<void(const std::string&)> trace)
    : scenario_(scenario),
      trace_(std::move(trace)),
      key_(scenario.cluster_key ? make_key(scenario.seed) : nullptr),
      hosts_(scenario.hosts),
      plugs_(world_, scenario.seed),
      world_(scenario.seed) {
  world_.network().all.delay = std::chrono::microseconds(50);
  std::vector<std::vector<uint32_t>> interface_of(scenario.cables.size(),
                                                  std::vector<uint32_t>(scenario.hosts));
  for (size_t i = 0; i < hosts_.size(); ++i) {
    Host& host = hosts_[i];
    host.cables = scenario.cables_of(i);
    for (const size_t cable : host.cables) {
      host.addresses.push_back(address(cable, i));
      interface_of[cable][i] = static_cast<uint32_t>(host.addresses.size());
    }
    host.board = std::make_shared<relay::TopologyBoard>();
    host.routes =
        std::make_shared<relay::MeshRoutes>(host.board, relay::route_options(scenario.config), 1);
    host.next = std::make_shared<Hops>(*this, i);
  }
  for (size_t i = 0; i < scenario.cables.size(); ++i) {
    const MeshScenario::Cable& cable = scenario.cables[i];
    plugs_.add_cable(address(i, cable.one), interface_of[i][cable.one], address(i, cable.other),
                     interface_of[i][cable.other]);
    set_cable(i, !cable.late, !cable.late);
  }
  for (size_t i = 0; i < hosts_.size(); ++i) {
    if (!scenario.late[i] && !hosts_[i].addresses.empty()) {
      start(i);
    }
  }
  links_.resize(scenario.links.size());
  traffic_.resize(scenario.links.size());
  over_cable_.resize(scenario.links.size());
}

MeshStage::~MeshStage() { end_links(); }

void MeshStage::end_links() {
  for (auto& link : links_) {
    if (link && link->accepted()) {
      link->close_sender();
      link->close_receiver();
    }
  }
  traffic_.clear();
  links_.clear();
}

void MeshStage::start(size_t number) {
  Host& host = hosts_[number];
  if (host.process != nullptr) {
    return;
  }
  ++host.lives;
  relay::RelayPath::Options own;
  own.self = id(number);
  own.chunk_bytes = static_cast<uint32_t>(scenario_.config.mesh_chunk_bytes);
  own.slots = static_cast<uint16_t>(scenario_.config.mesh_slots);
  own.relays_max = static_cast<size_t>(scenario_.config.mesh_max_hops);
  const bool by_itself = !scenario_.by_itself.empty() && scenario_.by_itself[number];
  host.seeks = false;
  if (!scenario_.by_itself.empty()) {
    host.job = std::make_shared<relay::JobKeys>();
    host.job->add(scenario_.seed);
    host.job->set_open(!by_itself);
  }
  own.keys.cluster = key_;
  own.keys.job = host.job;
  auto tie = std::make_shared<sim::ProcessTiePtr>();
  world_.kinds.clear();
  world_.kinds.push_back(relay::relay_fabric(
      host.next, own,
      [this, tie](const fabric::SocketAddress& local) -> Result<std::unique_ptr<fabric::PacketIo>> {
        return world_.network().open_packets(sim::Endpoint::of(local.get()).ip, *tie);
      }));
  host.process = *world_.add_process(host.addresses, scenario_.config);
  *tie = host.process->tie;
  host.process->management = management(number);
  world_.network().same_host_as(host.addresses.front(), host.process->management);
  host.hops.push_back(std::make_unique<relay::ProviderHops>(*host.process->provider));
  Worker& worker = host.process->engine->worker(0);

  relay::DiscoveryActor::Options discovery;
  discovery.identity.node = id(number);
  discovery.identity.incarnation = static_cast<uint32_t>(number * 1000) + host.lives;
  discovery.identity.name = "h" + std::to_string(number);
  discovery.identity.addresses = addresses_of(number);
  discovery.identity.relays = false;  // until the node says that it listens
  discovery.identity.looks = by_itself;
  discovery.timing = *relay::discovery_timing(scenario_.config);
  discovery.links = std::make_unique<SimMeshLinks>(plugs_, host.addresses, host.process->tie);
  discovery.interfaces = [own = *host.process->provider->interfaces()] { return own; };
  discovery.board = host.board;
  discovery.key = key_;
  discovery.job = host.job;
  if (by_itself) {
    discovery.on_takes_part = [this, number](Context& context) {
      const sim::Process* process = hosts_[number].process;
      if (process == nullptr || !process->engine) {
        return;  // it is being killed, or the run ends
      }
      static_cast<void>(make_node(number, [&](std::unique_ptr<Actor> actor) {
        return context.add_actor(std::move(actor));
      }));
    };
  }
  auto announcer = std::make_unique<relay::DiscoveryActor>(std::move(discovery));
  host.discovery = announcer.get();
  host.discovery_actor = *worker.adopt(std::move(announcer));

  if (!by_itself) {
    host.node_actor = *make_node(
        number, [&](std::unique_ptr<Actor> actor) { return worker.adopt(std::move(actor)); });
  }
  tell(fmt::format("host {} is on{}", number, by_itself ? ", by itself" : ""));
}

Result<ActorId> MeshStage::make_node(
    size_t number, const std::function<Result<ActorId>(std::unique_ptr<Actor>)>& adopt) {
  Host& host = hosts_[number];
  Worker& worker = host.process->engine->worker(0);
  relay::RelayOptions options = relay::relay_options(scenario_.config, id(number));
  options.key = key_;
  options.job = host.job;
  auto node = std::make_unique<relay::RelayNode>(
      *host.hops.back(), *host.next, options, "0",
      [&worker, actor = host.discovery_actor, may = scenario_.relays[number]](bool relays) {
        Message message{};
        message.to = actor;
        message.kind = relay::DiscoveryActor::relays;
        message.arg = relays && may ? 1 : 0;
        worker.context().send_self(message);
      });
  relay::RelayNode* made = node.get();
  auto adopted = adopt(std::move(node));
  if (adopted) {
    host.node = made;
    host.node_actor = *adopted;
  }
  return adopted;
}

std::vector<IpAddress> MeshStage::addresses_of(size_t host) const {
  std::vector<IpAddress> addresses;
  for (const sim::Ip own : hosts_[host].addresses) {
    const auto storage = sim::Endpoint{own, 0}.to_sockaddr();
    auto address = *IpAddress::from_sockaddr(reinterpret_cast<const sockaddr*>(&storage));
    address.prefix_len = 16;
    addresses.push_back(address);
  }
  return addresses;
}

void MeshStage::note_end(Host& host) {
  if (host.node != nullptr) {
    const RelayCounters& counts = host.node->counts();
    ended_.sessions += counts.opened;
    ended_.refused += counts.refused;
    ended_.bytes += counts.bytes;
    ended_.held_back += counts.held_back;
    ended_.stalls += counts.stalls;
  }
  host.process = nullptr;
  host.node = nullptr;
  host.ending = false;
  host.board->publish(nullptr);
}

void MeshStage::kill(size_t number) {
  Host& host = hosts_[number];
  if (host.process != nullptr) {
    sim::Process& process = *host.process;
    note_end(host);
    world_.kill_process(process);
    tell(fmt::format("host {} is killed", number));
  }
}

void MeshStage::drain(size_t number, Duration within) {
  Host& host = hosts_[number];
  if (host.process == nullptr || host.node == nullptr || std::exchange(host.ending, true)) {
    return;
  }
  const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(within);
  host.process->engine->worker(0).post(
      {host.node_actor, relay::RelayNode::drain, static_cast<uint32_t>(limit.count())});
  tell(fmt::format("host {} drains", number));
}

void MeshStage::set_cable(size_t number, bool there, bool back) {
  const MeshScenario::Cable& cable = scenario_.cables[number];
  sim::Link link = scenario_.usual;
  link.cut = !there;
  world_.network().set_link(address(number, cable.one), address(number, cable.other), link);
  link.cut = !back;
  world_.network().set_link(address(number, cable.other), address(number, cable.one), link);
}

void MeshStage::tell_link(size_t number, bool up) {
  const MeshScenario::Cable& cable = scenario_.cables[number];
  for (const size_t host : {cable.one, cable.other}) {
    if (const sim::Process* process = hosts_[host].process) {
      world_.tell_link(*process, address(number, host), up);
    }
  }
}

void MeshStage::slow_cable(size_t number, Duration delay) {
  const MeshScenario::Cable& cable = scenario_.cables[number];
  sim::Link link = scenario_.usual;
  link.delay += delay;
  world_.network().set_link(address(number, cable.one), address(number, cable.other), link);
  world_.network().set_link(address(number, cable.other), address(number, cable.one), link);
}

SimLink::Dialling MeshStage::dialling(size_t from, size_t to, bool relayed) {
  SimLink::Dialling how;
  const auto add = [&](sim::Ip own, sim::Ip there, bool for_rejoin) {
    Route route;
    route.from = sim::Endpoint{own, 0}.to_sockaddr();
    route.to = sim::Endpoint{there, 0}.to_sockaddr();
    route.for_rejoin = for_rejoin;
    how.routes.push_back(route);
  };
  for (const size_t cable : hosts_[from].cables) {
    const MeshScenario::Cable& ends = scenario_.cables[cable];
    if (!relayed && (ends.one == to || ends.other == to)) {
      add(address(cable, from), address(cable, to), false);
    }
  }
  add(management(from), management(to), !relayed);
  const auto ways = [this, from, to] {
    return fabric::RailDevices::ways_of(0, hosts_[from].routes->ways(addresses_of(to)));
  };
  how.kind = relayed ? relay::relay_kind : fabric::datagram_kind;
  how.devices = relayed ? ways() : fabric::RailDevices();
  how.relays.kind = relay::relay_kind;
  how.relays.routes = {how.routes.back()};
  how.relays.routes.front().for_rejoin = false;
  how.relays.ways = [this, from, to, ways]() -> std::optional<fabric::RailDevices> {
    const bool lead =
        hosts_[from].routes->reach(addresses_of(to)) == relay::MeshRoutes::Reach::relays;
    return lead ? std::optional(ways()) : std::nullopt;
  };
  return how;
}

/// As the plugin's connect(): when it is known which way leads there.
bool MeshStage::begin_link(size_t number) {
  using Reach = relay::MeshRoutes::Reach;
  const MeshScenario::Ends& ends = scenario_.links[number];
  // A listener is there before anybody knows of it, which takes a turn of its process here.
  if (!world_.runs(*hosts_[ends.from].process) || !world_.runs(*hosts_[ends.to].process)) {
    return false;
  }
  const Reach reach = hosts_[ends.from].routes->reach(addresses_of(ends.to));
  if (reach != Reach::cable && reach != Reach::relays) {
    if (Host& from = hosts_[ends.from]; !std::exchange(from.seeks, true)) {
      from.process->engine->worker(0).post({from.discovery_actor, relay::DiscoveryActor::need, 1});
    }
    return false;
  }
  const SimLink::Dialling how = dialling(ends.from, ends.to, reach == Reach::relays);
  over_cable_[number] = reach == Reach::cable;
  ended_.over_relays += reach == Reach::relays ? 1 : 0;
  ended_.both_ways += how.devices.are_ways && how.devices.count > 1 ? 1 : 0;
  tell(fmt::format("connection {} begins, over {}", number,
                   reach == Reach::cable    ? "a cable"
                   : how.devices.count == 1 ? "relays"
                                            : "relays on two ways at once"));
  links_[number] =
      std::make_unique<SimLink>(world_, *hosts_[ends.from].process, *hosts_[ends.to].process, how);
  return true;
}

bool MeshStage::step_connecting() {
  bool all = true;
  for (size_t i = 0; i < links_.size(); ++i) {
    if (!links_[i] && !begin_link(i)) {
      all = false;
      continue;
    }
    all = (links_[i]->step_connecting() || links_[i]->failed()) && all;
  }
  return all;
}

void MeshStage::make_traffic(const std::function<double()>& released) {
  for (size_t i = 0; i < links_.size(); ++i) {
    if (!links_[i] || !links_[i]->connected() || links_[i]->sender().phase() != Phase::ready) {
      continue;
    }
    TransferPlan plan = scenario_.plan;
    plan.seed = scenario_.seed * 64 + i;
    if (!scenario_.all_at_once) {
      plan.released = [released, groups = plan.groups] {
        return std::max<uint64_t>(1,
                                  static_cast<uint64_t>(static_cast<double>(groups) * released()));
      };
    }
    traffic_[i] = std::make_unique<Traffic>(*links_[i], plan);
  }
}

void MeshStage::tell_views() const {
  for (size_t host = 0; host < hosts_.size(); ++host) {
    const auto view = hosts_[host].board->read();
    std::string known;
    for (size_t i = 0; view && i < view->topology.nodes().size(); ++i) {
      const relay::TopologyNode& node = view->topology.nodes()[i];
      known += fmt::format("; {}{} to", relay::text(node.id), node.relays ? "" : " (no relay)");
      for (const relay::TopologyLink& link : view->topology.links(static_cast<uint32_t>(i))) {
        known += " " + relay::text(view->topology.nodes()[link.node].id);
      }
    }
    const relay::Discovery* discovery =
        hosts_[host].process != nullptr ? hosts_[host].discovery->discovery() : nullptr;
    const std::string refused =
        discovery == nullptr
            ? ""
            : fmt::format(" ({} packets refused, {} forged, {} repeated)",
                          discovery->counts().refused, discovery->seal_counts().forged,
                          discovery->seal_counts().repeated);
    tell(fmt::format("host {} has {} neighbours{} and knows{}", host,
                     view ? view->neighbours.size() : 0, refused,
                     known.empty() ? " nothing" : known));
  }
}

bool MeshStage::neighbours_know() {
  for (size_t i = 0; i < scenario_.cables.size(); ++i) {
    const auto [one, other, late] = scenario_.cables[i];
    const bool works = !world_.network().link(address(i, one), address(i, other)).cut &&
                       !world_.network().link(address(i, other), address(i, one)).cut;
    for (const auto& [from, to] : {std::pair(one, other), std::pair(other, one)}) {
      const auto view = hosts_[from].node == nullptr || hosts_[to].node == nullptr
                            ? nullptr
                            : hosts_[from].board->read();
      const auto own = std::ranges::find(hosts_[from].cables, i) - hosts_[from].cables.begin();
      const auto is_there = [&, to = to](const relay::Neighbour& known) {
        return known.node == id(to) && known.interface == static_cast<uint32_t>(own + 1);
      };
      if (works && view && std::ranges::none_of(view->neighbours, is_there)) {
        return false;
      }
    }
  }
  return true;
}

MeshStage::Seen MeshStage::seen() const {
  Seen seen = ended_;
  for (const Host& host : hosts_) {
    if (host.node != nullptr) {
      const RelayCounters& counts = host.node->counts();
      seen.sessions += counts.opened;
      seen.refused += counts.refused;
      seen.bytes += counts.bytes;
      seen.held_back += counts.held_back;
      seen.stalls += counts.stalls;
    }
  }
  return seen;
}

}  // namespace nccl_ha::rig
