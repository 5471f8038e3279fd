#include "relay/discovery.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "runtime/base/mutation.h"

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
      states_(nodes_max, identity_.node),
      own_sequence_(first_sequence()) {}

uint64_t Discovery::first_sequence() {
  // Not that of an earlier life, which others may still know: they would keep what it said.
  return random_.next() % (sequence_jump_max / 2);
}

void Discovery::set_interfaces(const std::vector<MeshInterface>& interfaces, Instant now) {
  neighbours_.set_interfaces(interfaces, now);
  std::erase_if(answered_, [&](const auto& one) { return one.second <= now; });
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
  Neighbour* known = neighbours_.find(interface, *packet);
  if (known == nullptr || !comes_from(*known, from)) {
    ++counts_.refused;
    return;
  }
  if (!known->two_way && !mutated(Mutation::outsider_answered)) {
    known->asked = true;  // it may know before us that both directions work
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
  Neighbour* one = neighbours_.find(interface, packet);
  if (one == nullptr) {
    return;
  }
  if (change.up && (identity_.node < packet.sender || std::exchange(one->asked, false))) {
    // One of the two begins; its summary makes the other one send what is missing, both ways.
    send_summaries(*one, now);
    return;
  }
  compare_digests(*one, now);
}

/// With a key the seal says it.  Else whoever is on another cable could not answer from there.
bool Discovery::comes_from(const Neighbour& one, const fabric::SocketAddress& from) const {
  const auto address = IpAddress::from_sockaddr(from.get());
  return seal_.keyed() || (address && one.speaks_from(*address));
}

void Discovery::compare_digests(Neighbour& one, Instant now) {
  if (!one.two_way || one.digest == states_.digest()) {
    one.differs = 0;
  } else if (++one.differs >= differs_before_summary) {
    one.differs = 0;
    send_summaries(one, now);
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
    const Neighbour* itself = neighbours_.two_way(state.origin);
    const bool first_hand = itself != nullptr && from.node == state.origin;
    if (itself != nullptr && !first_hand && !mutated(Mutation::hearsay_believed)) {
      on_hearsay(*itself, state, now);
      continue;
    }
    const LinkStates::Verdict verdict = states_.offer(state, now, first_hand);
    if (verdict == LinkStates::Verdict::changed || verdict == LinkStates::Verdict::renewed) {
      flood(state.origin, interface);
    }
  }
}

/// A neighbour speaks for itself; it hears of what others say in its name, and outdoes that.  Where
/// its cable is cut it cannot: then that is believed when it is no neighbour any more.
void Discovery::on_hearsay(const Neighbour& itself, const LinkState& state, Instant now) {
  if (state.sequence <= states_.sequence(state.origin)) {
    return;
  }
  ++counts_.hearsay;
  hearsay_[state.origin] = state;
  answer(itself, encode(packet(itself.interface, StatesPacket{{state}})), now);
}

void Discovery::believe_hearsay(Instant now) {
  std::erase_if(hearsay_, [&](const auto& entry) {
    const auto& [node, state] = entry;
    if (neighbours_.two_way(node) != nullptr) {
      return state.sequence <= states_.sequence(node);
    }
    const LinkStates::Verdict verdict = states_.offer(state, now);
    if (verdict == LinkStates::Verdict::changed || verdict == LinkStates::Verdict::renewed) {
      flood(node, 0);
    }
    return true;
  });
}

void Discovery::on_own_state(const LinkState& state, Instant now) {
  // Of an earlier life, or of another host with our id: ours must be the newest.
  if (state.sequence > own_sequence_ && state.sequence < sequence_max &&
      (state.sequence - own_sequence_ <= sequence_outdone_max ||
       mutated(Mutation::any_jump_believed))) {
    own_sequence_ = state.sequence;
    originate_soon(now);
  }
}

void Discovery::on(const Neighbour& from, const SummaryPacket& packet, Instant now) {
  const LinkStates::Difference difference = states_.compare(packet);
  for (const auto& bytes : states_for(from, difference.they_lack, now)) {
    answer(from, bytes, now);
  }
  for (size_t at = 0; at < difference.we_lack.size(); at += request_nodes_max) {
    const size_t count = std::min(request_nodes_max, difference.we_lack.size() - at);
    const auto begin = difference.we_lack.begin() + static_cast<ptrdiff_t>(at);
    RequestPacket request{{begin, begin + static_cast<ptrdiff_t>(count)}};
    answer(from, encode(this->packet(from.interface, std::move(request))), now);
  }
}

void Discovery::on(const Neighbour& from, const RequestPacket& packet, Instant now) {
  for (const auto& bytes : states_for(from, packet.nodes, now)) {
    answer(from, bytes, now);
  }
}

DiscoveryPacket Discovery::packet(uint32_t interface, decltype(DiscoveryPacket::body) body) const {
  return {identity_.node, identity_.incarnation, std::move(body), interface};
}

void Discovery::send(uint32_t interface, const fabric::SocketAddress* to,
                     std::span<const std::byte> bytes) {
  const auto sealed = seal_.seal(bytes);
  ++counts_.packets_sent;
  counts_.bytes_sent += sealed.size();
  output_.send(interface, to, sealed);
}

void Discovery::answer(const Neighbour& to, std::span<const std::byte> bytes, Instant now) {
  Instant& paid = answered_[to.interface];
  paid = std::max(paid, now);
  if (paid - now > static_cast<int64_t>(answer_burst) * answer_per_byte &&
      !mutated(Mutation::answers_unbounded)) {
    ++counts_.withheld;  // digests go on to differ: what is missing is asked for again
    return;
  }
  paid += static_cast<int64_t>(bytes.size()) * answer_per_byte;
  send(to.interface, &to.address, bytes);
}

void Discovery::send_summaries(const Neighbour& to, Instant now) {
  for (SummaryPacket& summary : states_.summaries()) {
    ++counts_.summaries_sent;
    answer(to, encode(packet(to.interface, std::move(summary))), now);
  }
}

std::vector<std::vector<std::byte>> Discovery::states_for(const Neighbour& to,
                                                          std::span<const NodeId> nodes,
                                                          Instant now) const {
  StatesWriter writer(identity_.node, identity_.incarnation, to.interface);
  states_.write(nodes, now, writer);
  return writer.take();
}

void Discovery::flood(NodeId node, uint32_t not_on) {
  // Whoever else is on the interface that it came by has it from there.
  for (const Neighbour& one : neighbours_.all()) {
    if (one.interface != not_on && one.two_way) {
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
          return one.interface == cable.first && one.node == cable.second && one.two_way;
        });
    if (to == neighbours_.all().end()) {
      entry = floods_.erase(entry);
      continue;
    }
    if (!flood.nodes.empty() && flood.last + timing_.floods_apart <= now) {
      std::sort(flood.nodes.begin(), flood.nodes.end());
      flood.nodes.erase(std::unique(flood.nodes.begin(), flood.nodes.end()), flood.nodes.end());
      for (const auto& bytes : states_for(*to, flood.nodes, now)) {
        send(to->interface, &to->address, bytes);
      }
      flood.nodes.clear();
      flood.last = now;
    }
    ++entry;
  }
}

void Discovery::originate_soon(Instant now) {
  const Instant due = std::max(now + timing_.settle, last_originated_ + timing_.states_apart);
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
  state.sequence = ++own_sequence_;
  state.lifetime_ms = static_cast<uint32_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(timing_.lifetime).count());
  state.relays = identity_.relays && !left_;
  state.addresses = identity_.addresses;
  if (!left_) {
    state.links = own_links();
  }
  const auto tenth = static_cast<uint64_t>(timing_.refresh.count() / 10);
  originate_due_ = now + timing_.refresh - Duration(static_cast<int64_t>(random_.below(tenth + 1)));
  states_.offer(state, now, true);
  flood(identity_.node, 0);
}

void Discovery::send_hellos(Instant now) {
  for (const uint32_t interface : neighbours_.due(now)) {
    send(interface, nullptr,
         encode(packet(interface, neighbours_.hello_for(interface, states_.digest(), false))));
  }
}

void Discovery::tick(Instant now) {
  if (left_) {
    return;
  }
  if (neighbours_.expire(now)) {
    originate_soon(now);
  }
  believe_hearsay(now);
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
         encode(packet(own.number, neighbours_.hello_for(own.number, states_.digest(), true))));
  }
}

std::vector<std::vector<std::byte>> Discovery::answer_query(Instant now) const {
  StatesWriter writer(identity_.node, identity_.incarnation, 0);
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
  states.insert(states.begin(), encode(packet(0, std::move(all))));
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
