#include "relay/discovery.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace nccl_ha::relay {
namespace {

/// So often in a row a neighbour's digest must differ before summaries are sent: what is under way
/// has arrived by then.
constexpr unsigned differs_before_summary = 2;
/// How exactly lifetimes are kept.
constexpr Duration expire_apart = std::chrono::seconds(5);

}  // namespace

Discovery::Discovery(Identity identity, const Timing& timing, uint64_t seed,
                     DiscoveryOutput& output)
    : identity_(std::move(identity)),
      timing_(timing),
      random_(seed),
      output_(output),
      neighbours_(identity_.node, identity_.incarnation, timing.neighbours, random_.next()),
      states_(nodes_max),
      own_sequence_(first_sequence()) {}

uint64_t Discovery::first_sequence() {
  // Not that of an earlier life, which others may still know: they would keep what it said.
  return random_.next() >> 24;
}

void Discovery::set_interfaces(const std::vector<MeshInterface>& interfaces, Instant now) {
  neighbours_.set_interfaces(interfaces, now);
  if (expire_due_ == Instant::max()) {
    expire_due_ = now + expire_apart;
    last_originated_ = now - timing_.states_apart;
  }
  originate_soon(now);
}

void Discovery::set_addresses(std::vector<IpAddress> addresses, Instant now) {
  identity_.addresses = std::move(addresses);
  originate_soon(now);
}

void Discovery::set_relays(bool relays, Instant now) {
  if (identity_.relays != relays) {
    identity_.relays = relays;
    originate_soon(now);
  }
}

void Discovery::receive(uint32_t interface, const fabric::SocketAddress& from,
                        std::span<const std::byte> bytes, Instant now) {
  ++counts_.packets_received;
  counts_.bytes_received += bytes.size();
  const auto opened = seal_.open(bytes, now);
  const auto packet = opened ? decode_packet(*opened) : Result<DiscoveryPacket>(opened.error());
  if (!packet || left_) {
    counts_.refused += packet ? 0 : 1;
    return;
  }
  if (const auto* hello = std::get_if<HelloPacket>(&packet->body)) {
    on_hello(interface, from, *packet, *hello, now);
    return;
  }
  // It may know before us that both directions work.
  const Neighbour* known = neighbours_.find(interface, packet->sender, packet->incarnation);
  if (known == nullptr) {
    ++counts_.refused;
    return;
  }
  if (const auto* states = std::get_if<StatesPacket>(&packet->body)) {
    on(*known, *states, now);
  } else if (const auto* summary = std::get_if<SummaryPacket>(&packet->body)) {
    on(*known, *summary, now);
  } else if (const auto* request = std::get_if<RequestPacket>(&packet->body)) {
    on(*known, *request, now);
  } else {
    ++counts_.refused;  // queries are answered by whoever knows that they come from this host
  }
}

void Discovery::on_hello(uint32_t interface, const fabric::SocketAddress& from,
                         const DiscoveryPacket& packet, const HelloPacket& hello, Instant now) {
  const Neighbours::Change change = neighbours_.on_hello(interface, from, packet, hello, now);
  if (change.up || change.down) {
    originate_soon(now);
  }
  if (change.up && identity_.node < packet.sender) {
    // One of the two begins; its summary makes the other one send what is missing, both ways.
    if (const Neighbour* one = neighbours_.find(interface, packet.sender, packet.incarnation)) {
      send_summaries(*one);
    }
    return;
  }
  compare_digests(interface, packet);
}

void Discovery::compare_digests(uint32_t interface, const DiscoveryPacket& packet) {
  Neighbour* one = neighbours_.find(interface, packet.sender, packet.incarnation);
  if (one == nullptr || !one->two_way || one->digest == states_.digest()) {
    if (one != nullptr) {
      one->differs = 0;
    }
    return;
  }
  if (++one->differs >= differs_before_summary) {
    one->differs = 0;
    send_summaries(*one);
  }
}

void Discovery::on(const Neighbour& from, const StatesPacket& packet, Instant now) {
  const uint32_t interface = from.interface;
  for (const LinkState& state : packet.states) {
    ++counts_.states_received;
    if (state.origin == identity_.node) {
      on_own_state(state, now);
      continue;
    }
    const LinkStates::Verdict verdict = states_.offer(state, now);
    if (verdict == LinkStates::Verdict::changed || verdict == LinkStates::Verdict::renewed) {
      flood(state.origin, interface);
    }
  }
}

void Discovery::on_own_state(const LinkState& state, Instant now) {
  // Of an earlier life, or of another host with our id: ours must be the newest.  After the highest
  // number comes none: then it is taken back (originate()).
  if (state.sequence > own_sequence_ && state.sequence <= sequence_max && now >= silent_until_) {
    own_sequence_ = state.sequence;
    originate_soon(now);
  }
}

void Discovery::on(const Neighbour& from, const SummaryPacket& packet, Instant now) {
  const LinkStates::Difference difference = states_.compare(packet);
  send_states(from, difference.they_lack, now);
  for (size_t at = 0; at < difference.we_lack.size(); at += request_nodes_max) {
    const size_t count = std::min(request_nodes_max, difference.we_lack.size() - at);
    const auto begin = difference.we_lack.begin() + static_cast<ptrdiff_t>(at);
    RequestPacket request{{begin, begin + static_cast<ptrdiff_t>(count)}};
    const auto bytes = encode(DiscoveryPacket{identity_.node, identity_.incarnation, request});
    send(from.interface, &from.address, bytes);
  }
}

void Discovery::on(const Neighbour& from, const RequestPacket& packet, Instant now) {
  send_states(from, packet.nodes, now);
}

void Discovery::send(uint32_t interface, const fabric::SocketAddress* to,
                     std::span<const std::byte> bytes) {
  const auto sealed = seal_.seal(bytes);
  ++counts_.packets_sent;
  counts_.bytes_sent += sealed.size();
  output_.send(interface, to, sealed);
}

void Discovery::send_summaries(const Neighbour& to) {
  for (SummaryPacket& summary : states_.summaries()) {
    ++counts_.summaries_sent;
    send(to.interface, &to.address,
         encode(DiscoveryPacket{identity_.node, identity_.incarnation, std::move(summary)}));
  }
}

void Discovery::send_states(const Neighbour& to, std::span<const NodeId> nodes, Instant now) {
  StatesWriter writer(identity_.node, identity_.incarnation);
  states_.write(nodes, now, writer);
  for (const auto& packet : writer.take()) {
    send(to.interface, &to.address, packet);
  }
}

void Discovery::flood(NodeId node, uint32_t not_on) {
  // Whoever else is on the interface that it came by has it from there.  Those who may not hear us
  // get it too: when they do, their summary was the last thing that they needed.
  for (const Neighbour& one : neighbours_.all()) {
    if (one.interface != not_on) {
      floods_[{one.interface, one.node}].nodes.push_back(node);
    }
  }
}

void Discovery::send_floods(Instant now) {
  for (auto entry = floods_.begin(); entry != floods_.end();) {
    const Cable& cable = entry->first;
    Flood& flood = entry->second;
    const auto to =
        std::find_if(neighbours_.all().begin(), neighbours_.all().end(), [&](const Neighbour& one) {
          return one.interface == cable.first && one.node == cable.second;
        });
    if (to == neighbours_.all().end()) {
      entry = floods_.erase(entry);
      continue;
    }
    if (!flood.nodes.empty() && flood.last + timing_.floods_apart <= now) {
      std::sort(flood.nodes.begin(), flood.nodes.end());
      flood.nodes.erase(std::unique(flood.nodes.begin(), flood.nodes.end()), flood.nodes.end());
      send_states(*to, flood.nodes, now);
      flood.nodes.clear();
      flood.last = now;
    }
    ++entry;
  }
}

void Discovery::originate_soon(Instant now) {
  const Instant due =
      std::max({now + timing_.settle, last_originated_ + timing_.states_apart, silent_until_});
  originate_due_ = std::min(originate_due_, due);
}

std::vector<LinkRecord> Discovery::own_links() const {
  std::vector<LinkRecord> links;
  for (const Neighbour& one : neighbours_.all()) {
    if (!one.two_way) {
      continue;
    }
    LinkRecord link{one.node, one.interface, one.peer_interface, 0};
    for (const MeshInterface& own : neighbours_.interfaces()) {
      if (own.number == one.interface) {
        link.speed_mbps = own.speed_mbps;
      }
    }
    links.push_back(link);
  }
  std::sort(links.begin(), links.end(), [](const LinkRecord& a, const LinkRecord& b) {
    return std::tie(a.neighbour, a.interface, a.peer_interface) <
           std::tie(b.neighbour, b.interface, b.peer_interface);
  });
  links.resize(std::min(links.size(), links_max));
  return links;
}

void Discovery::originate(Instant now) {
  LinkState state;
  state.origin = identity_.node;
  state.name = clean_node_name(identity_.name);
  ++counts_.originated;
  last_originated_ = now;
  if (own_sequence_ >= sequence_max) {
    state.sequence = sequence_withdrawn;
    state.lifetime_ms = withdrawn_lifetime_ms;
    ++counts_.withdrawn;
    own_sequence_ = first_sequence();
    // By then nobody has it any more.
    silent_until_ = now + std::chrono::milliseconds(withdrawn_lifetime_ms) + 2 * expire_apart;
    originate_due_ = silent_until_;
  } else {
    state.sequence = ++own_sequence_;
    state.lifetime_ms = static_cast<uint32_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(timing_.lifetime).count());
    state.relays = identity_.relays && !left_;
    state.addresses = identity_.addresses;
    if (!left_) {
      state.links = own_links();
    }
    const auto tenth = static_cast<uint64_t>(timing_.refresh.count() / 10);
    originate_due_ =
        now + timing_.refresh - Duration(static_cast<int64_t>(random_.below(tenth + 1)));
  }
  states_.offer(state, now);
  flood(identity_.node, 0);
}

void Discovery::send_hellos(Instant now) {
  for (const uint32_t interface : neighbours_.due(now)) {
    send(interface, nullptr,
         encode(DiscoveryPacket{identity_.node, identity_.incarnation,
                                neighbours_.hello_for(interface, states_.digest(), false)}));
  }
}

void Discovery::tick(Instant now) {
  if (left_) {
    return;
  }
  if (neighbours_.expire(now)) {
    originate_soon(now);
  }
  if (expire_due_ <= now) {
    expire_due_ = now + expire_apart;
    states_.expire(now);
  }
  if (originate_due_ <= now) {
    originate(now);
  }
  send_hellos(now);
  send_floods(now);
}

Instant Discovery::next_deadline() const {
  if (left_) {
    return Instant::max();
  }
  Instant next = std::min({neighbours_.next_deadline(), originate_due_, expire_due_});
  for (const auto& [cable, flood] : floods_) {
    if (!flood.nodes.empty()) {
      next = std::min(next, flood.last + timing_.floods_apart);
    }
  }
  return next;
}

void Discovery::leave(Instant now) {
  if (left_) {
    return;
  }
  left_ = true;
  originate(now);
  for (auto& [cable, flood] : floods_) {
    flood.last = now - timing_.floods_apart;
  }
  send_floods(now);
  for (const MeshInterface& own : neighbours_.interfaces()) {
    send(own.number, nullptr,
         encode(DiscoveryPacket{identity_.node, identity_.incarnation,
                                neighbours_.hello_for(own.number, states_.digest(), true)}));
  }
}

std::vector<std::vector<std::byte>> Discovery::answer_query(Instant now) const {
  StatesWriter writer(identity_.node, identity_.incarnation);
  const std::vector<NodeId> nodes = states_.nodes();
  states_.write(nodes, now, writer);
  std::vector<std::vector<std::byte>> states = writer.take();
  NeighboursPacket all;
  all.states = static_cast<uint32_t>(states.size());
  for (const Neighbour& one : neighbours_.all()) {
    const auto address = IpAddress::from_sockaddr(one.address.get());
    if (one.two_way && address && all.entries.size() < neighbours_per_packet_max) {
      all.entries.push_back(
          {one.node, one.interface, one.peer_interface, one.address.port(), *address});
    }
  }
  states.insert(states.begin(),
                encode(DiscoveryPacket{identity_.node, identity_.incarnation, std::move(all)}));
  return states;
}

size_t Discovery::memory_bytes() const {
  size_t bytes = sizeof *this - sizeof neighbours_ - sizeof states_ + neighbours_.memory_bytes() +
                 states_.memory_bytes();
  for (const auto& [cable, flood] : floods_) {
    bytes += 4 * sizeof(void*) + sizeof(std::pair<const Cable, Flood>) +
             flood.nodes.capacity() * sizeof(NodeId);
  }
  return bytes;
}

}  // namespace nccl_ha::relay
