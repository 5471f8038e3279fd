#include "tests/support/relay_line.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "relay/provider_hops.h"

namespace nccl_ha::test {
namespace {

fabric::SocketAddress socket_address(sim::Ip ip, uint16_t port) {
  fabric::SocketAddress made;
  made.storage = sim::Endpoint{ip, port}.to_sockaddr();
  made.length = sizeof(sockaddr_in);
  return made;
}

}  // namespace

class RelayLine::Neighbours final : public relay::NextHops {
 public:
  Neighbours(RelayLine& line, size_t host) : line_(line), host_(host) {}
  std::optional<relay::NextHop> find(relay::NodeId neighbour) const override {
    for (const size_t other : {host_ - 1, host_ + 1}) {
      if (other < line_.hosts() && id(other) == neighbour) {
        // A simulated network gives ports as it likes.  Hosts at the ends have no node, and what is
        // known of one that was killed stays known.
        const Host& there = line_.hosts_[other];
        const size_t cable = std::min(host_, other);
        return relay::NextHop{
            socket_address(address(other, cable),
                           there.node != nullptr ? there.node->port() : there.port),
            socket_address(address(host_, cable), 0), line_.options_.jobs[0] != nullptr ? 1U : 0U};
      }
    }
    return std::nullopt;
  }
  bool is_at(relay::NodeId neighbour, const IpAddress& from) const override {
    const auto known = find(neighbour);
    const auto there = known ? IpAddress::from_sockaddr(known->relay.get())
                             : Result<IpAddress>(fail(Errc::remote, "no neighbour"));
    return there && there->same_as(from);
  }
  bool lives(relay::NodeId neighbour, uint32_t incarnation) const override {
    (void)neighbour;
    return incarnation == line_.options_.incarnation;
  }
  std::vector<relay::NodeId> relays_to(relay::NodeId destination, const relay::Way& way) override {
    (void)destination;
    (void)way;
    return line_.ways_[host_];
  }
  void refused(relay::NodeId destination, const relay::Way& way) override {
    (void)destination;
    (void)way;
    ++line_.hosts_[host_].refused;
  }

 private:
  RelayLine& line_;
  size_t host_;
};

Config RelayLine::quick_config() {
  Config config;
  config.connect_timeout_ms = 5000;
  config.dgram_dead_ms = 3000;
  config.counters_dir = "";
  return config;
}

sim::Ip RelayLine::address(size_t host, size_t cable) {
  return sim::ip(10, static_cast<uint8_t>(cable + 1), 0, static_cast<uint8_t>(host + 1));
}

RelayLine::RelayLine(const Options& options)
    : options_(options), hosts_(options.relays + 2), world_(options.seed) {
  world_.network().all.drop = options.loss;
  world_.network().all.duplicate = options.loss;
  world_.network().all.reorder = options.loss;
  for (size_t i = 0; i < hosts_.size(); ++i) {
    std::vector<sim::Ip> addresses;
    if (i > 0) {
      addresses.push_back(address(i, i - 1));
    }
    if (i + 1 < hosts_.size()) {
      addresses.push_back(address(i, i));
    }
    const size_t rdma = options.rdma ? std::min(options.rdma(i), addresses.size()) : 0;
    auto process = world_.add_process(addresses, options.config, rdma);
    if (!process) {
      throw std::runtime_error(process.error().message());
    }
    Host& host = hosts_[i];
    host.process = *process;
    host.hops = std::make_unique<relay::ProviderHops>(*host.process->provider);
    host.next = std::make_unique<Neighbours>(*this, i);
    if (i > 0 && i + 1 < hosts_.size()) {
      relay::RelayOptions relay = options.relay;
      relay.self = id(i);
      relay.key = options.keys[1];
      relay.job = options.jobs[1];
      auto node =
          std::make_unique<relay::RelayNode>(*host.hops, *host.next, relay, "0", options.tell);
      host.node = node.get();
      const auto actor = host.process->engine->worker(0).adopt(std::move(node));
      if (!actor) {
        throw std::runtime_error("no place for a relay node");
      }
      host.actor = *actor;
    }
  }
  static_cast<void>(world_.run_until([] { return false; }, std::chrono::milliseconds(1)));
}

RelayLine::~RelayLine() = default;

Context& RelayLine::context(size_t host) {
  return hosts_[host].process->engine->worker(0).context();
}

Result<std::unique_ptr<fabric::Path>> RelayLine::make_path(size_t host, fabric::PathOptions options,
                                                           fabric::PathOwner* owner,
                                                           std::optional<uint16_t> slots) {
  std::vector<fabric::Hop> route;
  for (size_t i = 1; i + 1 < hosts_.size(); ++i) {
    route.push_back(relay::hop_of_node(id(host == 0 ? i : hosts_.size() - 1 - i)));
  }
  options.route = route;
  return make_path_over(host, options, owner, slots);
}

Result<std::unique_ptr<fabric::Path>> RelayLine::make_path_over(size_t host,
                                                                const fabric::PathOptions& options,
                                                                fabric::PathOwner* owner,
                                                                std::optional<uint16_t> slots) {
  relay::RelayPath::Options own;
  own.self = id(host);
  own.chunk_bytes = options_.chunk_bytes;
  own.slots = slots.value_or(options_.slots);
  const auto& tickets = options_.tickets[host == 0 ? 0 : 1];
  own.keys = {tickets ? nullptr : options_.keys[0], tickets, options_.jobs[0]};
  own.relays_max = options_.relays_max;
  if (host + 1 == hosts_.size()) {
    own.slots = options_.last_slots != 0 ? options_.last_slots : own.slots;
    own.chunk_bytes = options_.last_chunk_bytes != 0 ? options_.last_chunk_bytes : own.chunk_bytes;
  }
  auto path = relay::RelayPath::make(context(host), *hosts_[host].hops, *hosts_[host].next, own,
                                     options, owner);
  if (!path) {
    return path.error();
  }
  return std::unique_ptr<fabric::Path>(std::move(*path));
}

void RelayLine::set_links(size_t cable, const sim::Link& link) {
  world_.network().set_link(address(cable, cable), address(cable + 1, cable), link);
  world_.network().set_link(address(cable + 1, cable), address(cable, cable), link);
}

void RelayLine::cut(size_t cable, bool cut) {
  sim::Link link = world_.network().all;
  link.cut = cut;
  set_links(cable, link);
}

void RelayLine::drop(size_t cable, double part) {
  sim::Link link = world_.network().all;
  link.drop = part;
  set_links(cable, link);
}

void RelayLine::unplug(size_t cable, bool unplugged) {
  cut(cable, unplugged);
  for (const size_t host : {cable, cable + 1}) {
    world_.tell_link(process(host), address(host, cable), !unplugged);
  }
}

void RelayLine::limit(size_t cable, uint64_t bytes_per_second) {
  sim::Link link = world_.network().all;
  link.rate = bytes_per_second;
  set_links(cable, link);
}

void RelayLine::cut_all() {
  for (size_t cable = 0; cable + 1 < hosts_.size(); ++cable) {
    cut(cable);
  }
}

void RelayLine::drain(size_t host, uint32_t limit_ms) {
  hosts_[host].process->engine->worker(0).post(
      {hosts_[host].actor, relay::RelayNode::drain, limit_ms});
}

void RelayLine::kill(size_t host) {
  if (hosts_[host].node != nullptr) {
    hosts_[host].port = hosts_[host].node->port();
  }
  hosts_[host].node = nullptr;  // goes with its engine
  world_.kill_process(*hosts_[host].process);
}

}  // namespace nccl_ha::test
