#include "relay/neighbours.h"

#include <algorithm>

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

Neighbour* Neighbours::enter(uint32_t interface, const DiscoveryPacket& packet,
                             uint32_t peer_interface) {
  const bool ours = std::any_of(interfaces_.begin(), interfaces_.end(),
                                [&](const MeshInterface& own) { return own.number == interface; });
  if (!ours) {
    return nullptr;
  }
  const auto known = std::find_if(neighbours_.begin(), neighbours_.end(), [&](const auto& one) {
    return one.interface == interface && one.node == packet.sender &&
           one.peer_interface == peer_interface;
  });
  if (known != neighbours_.end()) {
    return &*known;
  }
  const auto there = std::count_if(neighbours_.begin(), neighbours_.end(),
                                   [&](const auto& one) { return one.interface == interface; });
  if (static_cast<size_t>(there) >= heard_max) {
    ++refused_;
    return nullptr;
  }
  Neighbour made;
  made.node = packet.sender;
  made.interface = interface;
  made.peer_interface = peer_interface;
  neighbours_.push_back(made);
  return &neighbours_.back();
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
  Neighbour* one = enter(interface, packet, hello.interface);
  if (one == nullptr) {
    return change;
  }
  const bool was_two_way = one->two_way;
  const fabric::SocketAddress was_at = one->address;
  if (hello.leaves) {
    neighbours_.erase(neighbours_.begin() + (one - neighbours_.data()));
    change.down = was_two_way;
    ++revision_;
    return change;
  }
  if (one->incarnation != packet.incarnation) {
    // Another life of its process, which knows nothing.  The first hello of a neighbour is answered
    // at once, so that both know each other after one round trip.
    one->incarnation = packet.incarnation;
    one->two_way = false;
    one->address = from;
    one->differs = 0;
    answer_soon(interface, now);
  }
  if (now - one->heard > one->dead / 2) {
    one->address = from;  // it may speak from several; the one that goes on is kept
  }
  if (one->address == from) {
    one->heard = now;
  }
  one->dead = std::clamp<Duration>(std::chrono::milliseconds(hello.dead_ms), dead_min, dead_max);
  one->digest = hello.digest;
  const bool two_way = std::find(hello.heard.begin(), hello.heard.end(),
                                 Heard{self_, incarnation_, interface}) != hello.heard.end();
  if (two_way && !one->two_way) {
    answer_soon(interface, now);  // it may not know that yet
  }
  one->two_way = two_way;
  change.up = one->two_way && !was_two_way;
  change.down = !one->two_way && was_two_way;
  revision_ += change.up || change.down || (two_way && !(one->address == was_at)) ? 1 : 0;
  return change;
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

HelloPacket Neighbours::hello_for(uint32_t interface, uint64_t digest, bool leaves) const {
  HelloPacket hello;
  hello.interface = interface;
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

Neighbour* Neighbours::find(uint32_t interface, NodeId node, uint32_t incarnation) {
  for (Neighbour& one : neighbours_) {
    if (one.interface == interface && one.node == node && one.incarnation == incarnation) {
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
