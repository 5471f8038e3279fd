#include "tests/support/mesh_network.h"

#include <algorithm>
#include <set>

#include "relay/job_keys.h"

namespace nccl_ha::test {
namespace {

fabric::SocketAddress address_of_host(size_t host) {
  IpAddress address;
  address.bytes = {10, static_cast<uint8_t>(host >> 16), static_cast<uint8_t>(host >> 8),
                   static_cast<uint8_t>(host)};
  fabric::SocketAddress made;
  made.length = address.to_sockaddr(1, &made.storage);
  return made;
}

size_t host_at(const fabric::SocketAddress& address) {
  const auto bytes = IpAddress::from_sockaddr(address.get())->bytes;
  return static_cast<size_t>(bytes[1]) << 16 | static_cast<size_t>(bytes[2]) << 8 | bytes[3];
}

}  // namespace

size_t MeshNetwork::add_hosts(size_t count) {
  const size_t first = hosts_.size();
  hosts_.resize(first + count);
  for (size_t i = first; i < hosts_.size(); ++i) {
    IpAddress address;
    address.bytes = {10, 1, static_cast<uint8_t>(i >> 8), static_cast<uint8_t>(i)};
    hosts_[i].network = this;
    hosts_[i].number = i;
    hosts_[i].id = relay::make_node_id({address}, "machine");
  }
  return first;
}

size_t MeshNetwork::add_cable(size_t one, size_t other, uint32_t speed_mbps) {
  Cable cable;
  cable.speed_mbps = speed_mbps;
  for (const size_t number : {one, other}) {
    plug(cable, number);
  }
  cables_.push_back(cable);
  return cables_.size() - 1;
}

void MeshNetwork::add_switch(const std::vector<size_t>& hosts) {
  Cable cable;
  cable.is_switch = true;
  cable.speed_mbps = 200000;
  for (const size_t number : hosts) {
    plug(cable, number);
  }
  cables_.push_back(cable);
}

void MeshNetwork::plug(Cable& cable, size_t number) {
  Host& host = hosts_[number];
  host.plugs.emplace_back(cables_.size(), cable.ends.size());
  cable.ends.push_back({number, static_cast<uint32_t>(host.plugs.size()), false});
}

void MeshNetwork::start(size_t number) {
  Host& host = hosts_[number];
  relay::Discovery::Identity identity;
  identity.node = host.id;
  identity.incarnation = static_cast<uint32_t>(number * 1000 + ++host.lives);
  identity.name = "h" + std::to_string(number);
  identity.looks = looks;
  host.discovery = std::make_unique<relay::Discovery>(identity, timing, random_.next(), host);
  if (const auto own = communicators.find(number); own != communicators.end()) {
    relay::JobKeys keys;
    for (const uint64_t id : own->second) {
      keys.add(id);
    }
    host.discovery->set_keys(keys.current(), now_, relay::Discovery::KeysOf::job);
  }
  plug_again(number);
}

void MeshNetwork::plug_again(size_t number) {
  Host& host = hosts_[number];
  std::vector<relay::MeshInterface> interfaces;
  for (size_t i = 0; i < host.plugs.size(); ++i) {
    interfaces.push_back({static_cast<uint32_t>(i + 1), "if" + std::to_string(i),
                          cables_[host.plugs[i].first].speed_mbps});
  }
  host.discovery->set_interfaces(interfaces, now_);
  wake_later(host);
}

void MeshNetwork::start_all(Duration within) {
  for (size_t i = 0; i < hosts_.size(); ++i) {
    const auto after =
        Duration(static_cast<int64_t>(random_.below(static_cast<uint64_t>(within.count()) + 1)));
    events_.add(now_ + after, [this, i] { start(i); });
  }
}

void MeshNetwork::kill(size_t host) { hosts_[host].discovery.reset(); }

void MeshNetwork::stop(size_t host) {
  hosts_[host].discovery->leave(now_);
  kill(host);
}

void MeshNetwork::cut_from(size_t cable, size_t host, bool cut) {
  for (End& end : cables_[cable].ends) {
    end.cut = end.host == host ? cut : end.cut;
  }
}

void MeshNetwork::Host::send(uint32_t interface, const fabric::SocketAddress* to,
                             std::span<const std::byte> packet) {
  const auto& [plugged, end] = plugs.at(interface - 1);
  const Cable& cable = network->cables_[plugged];
  if (cable.cut || cable.ends[end].cut || network->random_.chance(network->loss)) {
    return;
  }
  for (const End& other : cable.ends) {
    if (other.host == number || (to != nullptr && host_at(*to) != other.host)) {
      continue;
    }
    network->events_.add(
        network->now_ + network->delay,
        [network = network, to = other.host, there = other.interface, from = this->number,
         bytes = std::vector(packet.begin(), packet.end())]() mutable {
          network->deliver(to, there, from, std::move(bytes));
        });
  }
}

void MeshNetwork::deliver(size_t host, uint32_t interface, size_t from,
                          std::vector<std::byte> bytes) {
  Host& to = hosts_[host];
  if (to.discovery) {
    to.discovery->receive(interface, address_of_host(from), bytes, now_);
    wake_later(to);
  }
}

void MeshNetwork::inject(size_t host, uint32_t interface, std::span<const std::byte> bytes,
                         std::optional<size_t> from) {
  deliver(host, interface, from.value_or(hosts_.size()), {bytes.begin(), bytes.end()});
}

void MeshNetwork::wake_later(Host& host) {
  const Instant due = std::max(now_, host.discovery->next_deadline());
  if (due < host.wakes) {
    host.wakes = due;
    events_.add(due, [this, number = host.number, due] {
      Host& woken = hosts_[number];
      if (woken.wakes == due) {
        tick(woken);
      }
    });
  }
}

void MeshNetwork::tick(Host& host) {
  host.wakes = Instant::max();
  if (host.discovery) {
    host.discovery->tick(now_);
    wake_later(host);
  }
}

bool MeshNetwork::run_until(const std::function<bool()>& done, Duration limit, Duration apart) {
  const Instant end = now_ + limit;
  Instant asked = now_;
  while (true) {
    if (done()) {
      return true;
    }
    if (now_ >= end) {
      return false;
    }
    asked = std::min(asked + apart, end);
    while (!events_.empty() && events_.due() <= asked) {
      now_ = std::max(now_, events_.due());
      events_.take()();
    }
    now_ = asked;
  }
}

void MeshNetwork::run(Duration time) {
  static_cast<void>(run_until([] { return false; }, time, time));
}

bool MeshNetwork::works(const Cable& cable) const {
  return !cable.is_switch && !cable.cut && !cable.ends[0].cut && !cable.ends[1].cut &&
         on(cable.ends[0].host) && on(cable.ends[1].host);
}

std::vector<size_t> MeshNetwork::reachable(size_t host) const {
  std::set<size_t> seen{host};
  std::vector<size_t> found{host};
  for (size_t at = 0; at < found.size(); ++at) {
    for (const auto& [number, end] : hosts_[found[at]].plugs) {
      const Cable& cable = cables_[number];
      if (works(cable) && seen.insert(cable.ends[1 - end].host).second) {
        found.push_back(cable.ends[1 - end].host);
      }
    }
  }
  return found;
}

bool MeshNetwork::converged() {
  std::set<size_t> left;
  for (size_t i = 0; i < hosts_.size(); ++i) {
    if (on(i)) {
      left.insert(i);
    }
  }
  while (!left.empty()) {
    const std::vector<size_t> part = reachable(*left.begin());
    size_t ends_there = 0;
    for (const size_t host : part) {
      left.erase(host);
      for (const auto& [number, end] : hosts_[host].plugs) {
        ends_there += works(cables_[number]) ? 1 : 0;
      }
    }
    // Who has the same digest knows the same, so that looking at one of them is enough.
    const relay::Discovery& first = *hosts_[part.front()].discovery;
    if (!std::all_of(part.begin(), part.end(), [&](size_t host) {
          return hosts_[host].discovery->states().digest() == first.states().digest();
        })) {
      return false;
    }
    const relay::Topology seen = first.topology(now_);
    const auto own = seen.find(first.identity().node);
    if (!own) {
      return false;
    }
    const auto component = seen.component(*own);
    size_t ends_seen = 0;
    for (const uint32_t node : component) {
      ends_seen += seen.links(node).size();
    }
    if (component.size() != part.size() || ends_seen != ends_there) {
      return false;
    }
  }
  return true;
}

MeshNetwork::Cost MeshNetwork::cost() const {
  Cost cost;
  for (const Host& host : hosts_) {
    if (host.discovery) {
      cost.packets += host.discovery->counts().packets_sent;
      cost.bytes += host.discovery->counts().bytes_sent;
      cost.memory_max = std::max(cost.memory_max, host.discovery->memory_bytes());
    }
  }
  return cost;
}

}  // namespace nccl_ha::test
