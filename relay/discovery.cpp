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
/// A host of many jobs greets by some of their keys at a time.
constexpr size_t greetings_max = 32;
/// Of many that rest, one at least speaks early, and the others are then silent.
constexpr Duration crowd_told_within = std::chrono::milliseconds(50);

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

void Discovery::set_keys(std::shared_ptr<const KeyRing> keys, Instant now, KeysOf whose) {
  keys_of_ = whose;
  if (keys.get() != seal_.keys() && whose != KeysOf::cluster && !look_.crowded()) {
    look_.look_again(now);
    end_rest(now);
  }
  seal_.set_keys(std::move(keys), whose == KeysOf::job_or_nobody);
}

void Discovery::set_interfaces(const std::vector<MeshInterface>& interfaces, Instant now) {
  interfaces_ = interfaces;
  if (!std::exchange(begun_, true)) {
    look_.begin(identity_.looks, now);
  }
  look_.look_again(now);
  crowded_on_.clear();
  end_rest(now);
  if (!rests_) {
    neighbours_.set_interfaces(interfaces, now);
  }
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
  const auto packet =
      opened ? decode_packet(opened->packet) : Result<DiscoveryPacket>(opened.error());
  if (!packet || left_) {
    counts_.refused += packet ? 0 : 1;
    return;
  }
  if (const auto* hello = std::get_if<HelloPacket>(&packet->body)) {
    on_hello(interface, from, *packet, *hello, opened->key, now);
    if (packet->sender != identity_.node && !hello->leaves) {
      look_at(interface, *hello, now);
    }
    return;
  }
  Neighbour* known = neighbours_.find(interface, *packet);
  // With a key the seal says it.  Else whoever is on another cable could not answer from there.
  if (known == nullptr || (opened->key == 0 && !comes_from(*known, from))) {
    ++counts_.refused;
    return;
  }
  if (!known->two_way) {
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

/// Anybody may say hello without a key in a neighbour's name: as long as it speaks with one, it has
/// one.
void Discovery::note_key(uint32_t interface, const DiscoveryPacket& packet,
                         const HelloPacket& hello, uint32_t key, Instant now) {
  Neighbour* one = neighbours_.find(interface, packet);
  if (one == nullptr || one->number != hello.number) {
    return;
  }
  if (key != 0 || one->key == 0 || now - one->sealed >= one->dead) {
    one->key = key;
  }
  one->sealed = key != 0 ? now : one->sealed;
}

void Discovery::on_hello(uint32_t interface, const fabric::SocketAddress& from,
                         const DiscoveryPacket& packet, const HelloPacket& hello, uint32_t key,
                         Instant now) {
  const Neighbours::Change change = neighbours_.on_hello(interface, from, packet, hello, now);
  note_key(interface, packet, hello, key, now);  // what is answered is sealed with it
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

bool Discovery::comes_from(const Neighbour& one, const fabric::SocketAddress& from) const {
  const auto address = IpAddress::from_sockaddr(from.get());
  return address && one.speaks_from(*address);
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
    if (itself != nullptr && !first_hand) {
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
      state.sequence - own_sequence_ <= sequence_outdone_max) {
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

/// What a neighbour's last hello came with it has, and this host has it too.
void Discovery::send(const Neighbour& to, std::span<const std::byte> bytes) {
  const bool one_for_all = keys_of_ == KeysOf::cluster && seal_.keys() != nullptr;
  send(to.interface, &to.address, one_for_all ? seal_.keys()->first() : to.key, bytes);
}

void Discovery::send(uint32_t interface, const fabric::SocketAddress* to, uint32_t key,
                     std::span<const std::byte> bytes) {
  const auto sealed = seal_.seal(bytes, key);
  ++counts_.packets_sent;
  counts_.bytes_sent += sealed.size();
  output_.send(interface, to, sealed);
}

void Discovery::answer(const Neighbour& to, std::span<const std::byte> bytes, Instant now) {
  Instant& paid = answered_[to.interface];
  paid = std::max(paid, now);
  if (paid - now > static_cast<int64_t>(answer_burst) * answer_per_byte) {
    ++counts_.withheld;  // digests go on to differ: what is missing is asked for again
    return;
  }
  paid += static_cast<int64_t>(bytes.size()) * answer_per_byte;
  send(to, bytes);
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
        send(*to, bytes);
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
  if (!left_) {
    // Who has left has none any more: its host may begin anew under another name.
    state.addresses = identity_.addresses;
    state.links = own_links();
  }
  const auto tenth = static_cast<uint64_t>(timing_.refresh.count() / 10);
  originate_due_ = now + timing_.refresh - Duration(static_cast<int64_t>(random_.below(tenth + 1)));
  states_.offer(state, now, true);
  flood(identity_.node, 0);
}

/// With the keys that neighbours there have.  While there is none, with all, and then with one more
/// in turn: who comes later need not have the same.
std::vector<uint32_t> Discovery::keys_to_greet_with(uint32_t interface) {
  if (keys_of_ == KeysOf::cluster || seal_.keys() == nullptr) {
    return {seal_.keys() != nullptr ? seal_.keys()->first() : 0};
  }
  std::vector<uint32_t> all;
  if (keys_of_ == KeysOf::job_or_nobody) {
    all.push_back(0);
  }
  seal_.keys()->each([&](uint32_t number, const KeyRing::Key& key) {
    (void)key;
    all.push_back(number);
  });
  std::vector<uint32_t> chosen;
  for (const Neighbour& one : neighbours_.all()) {
    if (one.interface == interface && one.two_way &&
        std::find(chosen.begin(), chosen.end(), one.key) == chosen.end()) {
      chosen.push_back(one.key);
    }
  }
  if (all.empty()) {
    return all;
  }
  if (chosen.empty()) {
    for (size_t i = 0; i < std::min(all.size(), greetings_max); ++i) {
      chosen.push_back(all[++greetings_ % all.size()]);
    }
    return chosen;
  }
  const uint32_t more = all[++greetings_ % all.size()];
  if (std::find(chosen.begin(), chosen.end(), more) == chosen.end()) {
    chosen.push_back(more);
  }
  return chosen;
}

void Discovery::greet(uint32_t interface, bool leaves, Instant now) {
  for (const uint32_t key : keys_to_greet_with(interface)) {
    HelloPacket hello = neighbours_.hello_for(interface, states_.digest(), leaves);
    hello.seeks_ms = look_.seeks_ms(now);
    hello.looks = identity_.looks;
    hello.crowded = rests_ && crowded_on_.contains(interface);
    send(interface, nullptr, key, encode(packet(interface, std::move(hello))));
  }
}

void Discovery::send_hellos(Instant now) {
  for (const uint32_t interface : neighbours_.due(now)) {
    greet(interface, false, now);
  }
}

/// They are at no other end of this host's cables.
bool Discovery::knows_far_hosts() const {
  std::set<NodeId> near{identity_.node};
  for (const Neighbour& one : neighbours_.all()) {
    near.insert(one.node);
  }
  return std::ranges::any_of(states_.nodes(), [&](NodeId node) { return !near.contains(node); });
}

/// Somebody has said hello there.
void Discovery::look_at(uint32_t interface, const HelloPacket& hello, Instant now) {
  // One that rests remembers nobody: who speaks is the one whom it hears.
  const bool rested = rests_;
  MeshLook::Heard heard;
  heard.hosts = rested ? 1 : neighbours_.hosts_on(interface);
  heard.far = identity_.looks && (heard.hosts > 1 || hello.crowded) && knows_far_hosts();
  look_.on_hello(hello, heard, now);
  if (heard.hosts > 1 || hello.crowded) {
    crowded_on_.insert(interface);
  }
  begin_rest(now);
  end_rest(now);
  if (hello.crowded) {
    crowd_due_ = Instant::max();
  } else if (rested && rests_ && hello.looks && crowded_on_.contains(interface) &&
             crowd_due_ == Instant::max()) {
    const auto most = static_cast<uint64_t>(crowd_told_within.count());
    crowd_due_ = now + Duration(static_cast<int64_t>(random_.below(most)));
    crowd_interface_ = interface;
  }
}

/// All who rest have heard the one that looks; the first one speaks for all.
void Discovery::tell_crowd(Instant now) {
  if (crowd_due_ <= now) {
    crowd_due_ = Instant::max();
    greet(crowd_interface_, false, now);
  }
}

void Discovery::begin_rest(Instant now) {
  if (look_.rests() && !rests_) {
    rests_ = true;
    neighbours_.set_interfaces({}, now);
    floods_.clear();
    hearsay_.clear();
  }
}

void Discovery::end_rest(Instant now) {
  if (!look_.rests() && rests_) {
    rests_ = false;
    neighbours_.set_interfaces(interfaces_, now);
    originate_soon(now);
  }
}

void Discovery::need(bool needs, Instant now) {
  look_.need(needs);
  end_rest(now);
}

void Discovery::need_now(Instant now) {
  look_.need_now(now);
  end_rest(now);
}

void Discovery::tick(Instant now) {
  if (left_) {
    return;
  }
  look_.tick(now);
  begin_rest(now);
  if (rests_) {
    tell_crowd(now);
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
  if (rests_) {
    return crowd_due_;
  }
  Instant next =
      std::min({look_.next_deadline(), neighbours_.next_deadline(), originate_due_, expire_due_});
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
  if (rests_) {
    return;
  }
  originate(now);
  for (auto& [cable, flood] : floods_) {
    flood.last = now - timing_.floods_apart;
  }
  send_floods(now);
  for (const MeshInterface& own : neighbours_.interfaces()) {
    greet(own.number, true, now);
  }
}

std::vector<std::vector<std::byte>> Discovery::answer_query(Instant now) const {
  StatesWriter writer(identity_.node, identity_.incarnation, 0);
  const std::vector<NodeId> nodes = rests_ ? std::vector<NodeId>() : states_.nodes();
  states_.write(nodes, now, writer);
  std::vector<std::vector<std::byte>> states = writer.take();
  NeighboursPacket all;
  all.states = static_cast<uint32_t>(states.size());
  all.rests = rests_;
  all.of_job = identity_.looks;
  all.looks = !rests_ && !look_.takes_part();
  all.crowded = look_.crowded();
  if (keys_of_ == KeysOf::cluster && seal_.keys() != nullptr) {
    all.key_name = name_of_key(*seal_.keys()->find(seal_.keys()->first()));
  }
  all.open = seal_.keys() == nullptr || keys_of_ == KeysOf::job_or_nobody;
  for (const Neighbour& one : neighbours_.all()) {
    const auto address = IpAddress::from_sockaddr(one.address.get());
    if (one.two_way && address && all.entries.size() < neighbours_per_packet_max) {
      all.entries.push_back(
          {one.node, one.interface, one.peer_interface, one.key, one.address.port(), *address});
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
