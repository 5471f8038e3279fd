#include "relay/neighbours.h"

#include <algorithm>
#include <set>

namespace nccl_ha::relay {
namespace {

/// What a neighbour asks for is kept within these.
constexpr Duration dead_min = std::chrono::milliseconds(50);
constexpr Duration dead_max = std::chrono::seconds(60);

uint16_t milliseconds_of(Duration time) {
  const auto count = std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
  return static_cast<uint16_t>(std::clamp<int64_t>(count, 1, UINT16_MAX));
}

}  // namespace

void Neighbours::set_interfaces(const std::vector<MeshInterface>& interfaces, Instant now) {
  std::vector<Schedule> schedules(interfaces.size());
  for (size_t i = 0; i < interfaces.size(); ++i) {
    const auto known =
        std::find_if(interfaces_.begin(), interfaces_.end(),
                     [&](const MeshInterface& own) { return own.number == interfaces[i].number; });
    if (known != interfaces_.end()) {
      schedules[i] = schedules_[static_cast<size_t>(known - interfaces_.begin())];
    } else {
      schedules[i] = {now - timing_.hello, now};
    }
  }
  interfaces_ = interfaces;
  schedules_ = std::move(schedules);
  const size_t gone = std::erase_if(neighbours_, [&](const Neighbour& one) {
    return std::none_of(interfaces_.begin(), interfaces_.end(),
                        [&](const MeshInterface& own) { return own.number == one.interface; });
  });
  revision_ += gone > 0 ? 1 : 0;
}

Neighbour* Neighbours::enter(uint32_t interface, const DiscoveryPacket& packet, Instant now) {
  const bool ours = std::any_of(interfaces_.begin(), interfaces_.end(),
                                [&](const MeshInterface& own) { return own.number == interface; });
  Neighbour* known = find(interface, packet);
  if (!ours || known != nullptr || !make_room(interface)) {
    return known;
  }
  Neighbour made;
  made.node = packet.sender;
  made.incarnation = packet.incarnation;
  made.interface = interface;
  made.peer_interface = packet.interface;
  made.since = now;
  neighbours_.push_back(made);
  // The first hello of a life of a neighbour's process, which knows nothing, is answered at once,
  // so that both know each other after one round trip.
  answer_soon(interface, now);
  return &neighbours_.back();
}

/// Names are free to invent: whoever does not hear us gives way, the oldest first.
bool Neighbours::make_room(uint32_t interface) {
  const auto there = std::count_if(neighbours_.begin(), neighbours_.end(),
                                   [&](const auto& one) { return one.interface == interface; });
  if (static_cast<size_t>(there) < heard_max) {
    return true;
  }
  ++refused_;
  auto oldest = neighbours_.end();
  for (auto one = neighbours_.begin(); one != neighbours_.end(); ++one) {
    if (one->interface == interface && !one->two_way &&
        (oldest == neighbours_.end() || one->since < oldest->since)) {
      oldest = one;
    }
  }
  if (oldest == neighbours_.end()) {
    return false;
  }
  neighbours_.erase(oldest);
  return true;
}

bool Neighbour::speaks_from(const IpAddress& from) const {
  const auto same = [&](const IpAddress& one) { return one.same_as(from); };
  const auto first = IpAddress::from_sockaddr(address.get());
  return (first && same(*first)) || std::any_of(addresses.begin(), addresses.end(), same);
}

Neighbours::Change Neighbours::on_hello(uint32_t interface, const fabric::SocketAddress& from,
                                        const DiscoveryPacket& packet, const HelloPacket& hello,
                                        Instant now) {
  Change change;
  if (packet.sender == self_) {
    // Our own, come back through a switch, or a host that took the same id.
    duplicates_ += packet.incarnation == incarnation_ ? 0 : 1;
    return change;
  }
  const bool names_us = std::find(hello.heard.begin(), hello.heard.end(),
                                  Heard{self_, incarnation_, interface}) != hello.heard.end();
  if (hello.leaves && !names_us) {
    return change;
  }
  Neighbour* one = hello.leaves ? find(interface, packet) : enter(interface, packet, now);
  if (one == nullptr || hello.number < one->number) {
    return change;
  }
  one->number = hello.number;
  const bool was_two_way = one->two_way;
  const fabric::SocketAddress was_at = one->address;
  if (hello.leaves) {
    neighbours_.erase(neighbours_.begin() + (one - neighbours_.data()));
    change.down = was_two_way;
    ++revision_;
    return change;
  }
  if (now - one->heard > one->dead / 2) {
    one->address = from;  // it may speak from several; the one that goes on is kept
  }
  if (one->address == from) {
    one->heard = now;
  }
  one->dead = std::clamp<Duration>(std::chrono::milliseconds(hello.dead_ms), dead_min, dead_max);
  one->digest = hello.digest;
  if (const auto own = IpAddress::from_sockaddr(from.get());
      own && names_us && !one->speaks_from(*own) && one->addresses.size() < addresses_max) {
    one->addresses.push_back(*own);
  }
  if (names_us && !one->two_way) {
    answer_soon(interface, now);  // it may not know that yet
  }
  one->two_way = names_us;
  change.up = one->two_way && !was_two_way;
  change.down = !one->two_way && was_two_way;
  revision_ += change.up || change.down || (names_us && !(one->address == was_at)) ? 1 : 0;
  if (change.up) {
    change.down = end_earlier_lives(interface, packet);
  }
  return change;
}

/// True: one of them heard us.
bool Neighbours::end_earlier_lives(uint32_t interface, const DiscoveryPacket& packet) {
  bool heard = false;
  std::erase_if(neighbours_, [&](const Neighbour& one) {
    const bool earlier = one.interface == interface && one.node == packet.sender &&
                         one.peer_interface == packet.interface &&
                         one.incarnation != packet.incarnation;
    heard = heard || (earlier && one.two_way);
    return earlier;
  });
  return heard;
}

bool Neighbours::expire(Instant now) {
  bool lost = false;
  std::erase_if(neighbours_, [&](const Neighbour& one) {
    const bool silent = now - one.heard >= one.dead;
    lost = lost || (silent && one.two_way);
    return silent;
  });
  revision_ += lost ? 1 : 0;
  return lost;
}

Duration Neighbours::jittered() {
  // Up to a tenth less, so that hosts that began together do not go on together.
  const auto tenth = static_cast<uint64_t>(timing_.hello.count() / 10);
  return timing_.hello - Duration(static_cast<int64_t>(random_.below(tenth + 1)));
}

void Neighbours::answer_soon(uint32_t interface, Instant now) {
  for (size_t i = 0; i < interfaces_.size(); ++i) {
    if (interfaces_[i].number == interface) {
      schedules_[i].next =
          std::min(schedules_[i].next, std::max(now, schedules_[i].last + answers_apart));
    }
  }
}

std::vector<uint32_t> Neighbours::due(Instant now) {
  std::vector<uint32_t> due;
  for (size_t i = 0; i < interfaces_.size(); ++i) {
    if (schedules_[i].next <= now) {
      schedules_[i] = {now, now + jittered()};
      due.push_back(interfaces_[i].number);
    }
  }
  return due;
}

size_t Neighbours::hosts_on(uint32_t interface) const {
  std::set<NodeId> hosts;
  for (const Neighbour& one : neighbours_) {
    if (one.interface == interface) {
      hosts.insert(one.node);
    }
  }
  return hosts.size();
}

HelloPacket Neighbours::hello_for(uint32_t interface, uint64_t digest, bool leaves) {
  HelloPacket hello;
  hello.number = ++hellos_;
  hello.hello_ms = milliseconds_of(timing_.hello);
  hello.dead_ms = milliseconds_of(timing_.dead);
  hello.leaves = leaves;
  hello.digest = digest;
  for (const Neighbour& one : neighbours_) {
    if (one.interface == interface && hello.heard.size() < heard_max) {
      hello.heard.push_back({one.node, one.incarnation, one.peer_interface});
    }
  }
  return hello;
}

Instant Neighbours::next_deadline() const {
  Instant next = Instant::max();
  for (const Schedule& schedule : schedules_) {
    next = std::min(next, schedule.next);
  }
  for (const Neighbour& one : neighbours_) {
    next = std::min(next, one.heard + one.dead);
  }
  return next;
}

Neighbour* Neighbours::find(uint32_t interface, const DiscoveryPacket& packet) {
  for (Neighbour& one : neighbours_) {
    if (one.interface == interface && one.node == packet.sender &&
        one.incarnation == packet.incarnation && one.peer_interface == packet.interface) {
      return &one;
    }
  }
  return nullptr;
}

const Neighbour* Neighbours::two_way(NodeId node) const {
  for (const Neighbour& one : neighbours_) {
    if (one.node == node && one.two_way) {
      return &one;
    }
  }
  return nullptr;
}

size_t Neighbours::memory_bytes() const {
  return sizeof *this + neighbours_.capacity() * sizeof(Neighbour) +
         schedules_.capacity() * (sizeof(Schedule) + sizeof(MeshInterface));
}

}  // namespace nccl_ha::relay
