#include "relay/link_states.h"

#include <algorithm>

#include "relay/topology.h"

namespace nccl_ha::relay {
namespace {

/// Within that time a host's number may go up by sequence_jump_max once.
constexpr Duration jump_apart = std::chrono::seconds(10);
/// While there is no room, who is joined to this host is looked at so often.
constexpr Duration joined_apart = std::chrono::seconds(1);

/// Added up over all hosts; the last step of splitmix64 spreads each over all bits.
uint64_t digest_of(NodeId node, uint64_t sequence) {
  uint64_t mixed = number(node) + sequence * 0x9E3779B97F4A7C15;
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9;
  mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB;
  return mixed ^ (mixed >> 31);
}

/// Apart from sequence and lifetime, which each renewal changes.
bool says_the_same(const std::vector<std::byte>& one, const std::vector<std::byte>& other) {
  constexpr size_t from = lifetime_offset + sizeof(uint32_t);
  return one.size() == other.size() &&
         std::equal(one.begin() + from, one.end(), other.begin() + from);
}

}  // namespace

/// Further than that no life of its host has come since: somebody invented it.
bool LinkStates::believable(const Stored& known, uint64_t sequence, Instant now) {
  const auto jumps = static_cast<uint64_t>(1 + (now - known.heard) / jump_apart);
  return (sequence - known.sequence) / sequence_jump_max < jumps;
}

/// Who is invented gives way to whoever is not.
bool LinkStates::make_room(const LinkState& state, Instant now) {
  if (states_.size() < nodes_max_) {
    return true;
  }
  if (now >= joined_due_) {
    joined_due_ = now + joined_apart;
    joined_.clear();
    const Topology topology = Topology::make(decoded(now));
    if (const auto own = topology.find(self_)) {
      for (const uint32_t node : topology.component(*own)) {
        joined_.insert(topology.nodes()[node].id);
      }
    }
  }
  const auto names_it = [&](const LinkRecord& link) {
    const auto peer = states_.find(link.neighbour);
    const auto theirs = joined_.contains(link.neighbour) && peer != states_.end()
                            ? decode_link_state(peer->second.encoded)
                            : Result<LinkState>(fail(Errc::invalid_argument, "no neighbour"));
    return theirs &&
           std::any_of(theirs->links.begin(), theirs->links.end(), [&](const LinkRecord& back) {
             return back.neighbour == state.origin && back.interface == link.peer_interface &&
                    back.peer_interface == link.interface;
           });
  };
  auto oldest = states_.end();
  for (auto one = states_.begin(); one != states_.end(); ++one) {
    if (!joined_.contains(one->first) &&
        (oldest == states_.end() || one->second.heard < oldest->second.heard)) {
      oldest = one;
    }
  }
  if (oldest == states_.end() || std::none_of(state.links.begin(), state.links.end(), names_it)) {
    return false;
  }
  digest_ -= digest_of(oldest->first, oldest->second.sequence);
  states_.erase(oldest);
  joined_.insert(state.origin);
  return true;
}

LinkStates::Verdict LinkStates::offer(const LinkState& state, Instant now, bool from_itself) {
  const auto found = states_.find(state.origin);
  if (found != states_.end() && state.sequence <= found->second.sequence) {
    return state.sequence == found->second.sequence ? Verdict::known : Verdict::older;
  }
  const bool is_new = found == states_.end();
  if (state.lifetime_ms == 0 || (is_new && !make_room(state, now)) ||
      (!is_new && !from_itself && !believable(found->second, state.sequence, now))) {
    ++refused_;
    return Verdict::refused;
  }
  Stored& stored = is_new ? states_[state.origin] : found->second;
  auto encoded = encode(state);
  const bool changed = is_new || !says_the_same(stored.encoded, encoded);
  digest_ += digest_of(state.origin, state.sequence) -
             (is_new ? 0 : digest_of(state.origin, stored.sequence));
  stored.sequence = state.sequence;
  stored.heard = now;
  stored.expires = now + std::chrono::milliseconds(state.lifetime_ms);
  stored.encoded = std::move(encoded);
  revision_ += changed ? 1 : 0;
  return changed ? Verdict::changed : Verdict::renewed;
}

bool LinkStates::expire(Instant now) {
  const size_t gone = std::erase_if(states_, [&](const auto& entry) {
    if (now < entry.second.expires) {
      return false;
    }
    digest_ -= digest_of(entry.first, entry.second.sequence);
    return true;
  });
  revision_ += gone > 0 ? 1 : 0;
  return gone > 0;
}

uint64_t LinkStates::sequence(NodeId node) const {
  const auto found = states_.find(node);
  return found == states_.end() ? 0 : found->second.sequence;
}

uint32_t LinkStates::lifetime_left(const Stored& stored, Instant now) {
  // One less at each host, so that what goes round ends.
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(stored.expires - now).count() - 1;
  return left <= 0 ? 0 : static_cast<uint32_t>(std::min<int64_t>(left, lifetime_max_ms));
}

void LinkStates::write(std::span<const NodeId> nodes, Instant now, StatesWriter& out) const {
  for (const NodeId node : nodes) {
    const auto found = states_.find(node);
    if (found == states_.end()) {
      continue;
    }
    if (const uint32_t left = lifetime_left(found->second, now); left > 0) {
      out.add(found->second.encoded, left);
    }
  }
}

std::vector<NodeId> LinkStates::nodes() const {
  std::vector<NodeId> out;
  out.reserve(states_.size());
  for (const auto& [node, stored] : states_) {
    out.push_back(node);
  }
  return out;
}

std::vector<LinkState> LinkStates::decoded(Instant now) const {
  std::vector<LinkState> out;
  out.reserve(states_.size());
  for (const auto& [node, stored] : states_) {
    if (auto state = decode_link_state(stored.encoded)) {
      state->lifetime_ms = lifetime_left(stored, now);
      out.push_back(std::move(*state));
    }
  }
  return out;
}

std::vector<SummaryPacket> LinkStates::summaries() const {
  std::vector<SummaryPacket> out(1);
  for (const auto& [node, stored] : states_) {
    if (out.back().entries.size() == summary_entries_max) {
      out.back().last = out.back().entries.back().node;
      SummaryPacket next;
      next.first = NodeId{number(out.back().last) + 1};
      out.push_back(std::move(next));
    }
    out.back().entries.push_back({node, stored.sequence});
  }
  out.back().last = NodeId{UINT64_MAX};
  return out;
}

LinkStates::Difference LinkStates::compare(const SummaryPacket& theirs) const {
  Difference difference;
  auto ours = states_.lower_bound(theirs.first);
  const auto end = states_.upper_bound(theirs.last);
  for (const SummaryPacket::Entry& entry : theirs.entries) {
    for (; ours != end && ours->first < entry.node; ++ours) {
      difference.they_lack.push_back(ours->first);
    }
    if (ours == end || ours->first != entry.node) {
      difference.we_lack.push_back(entry.node);
      continue;
    }
    if (ours->second.sequence > entry.sequence) {
      difference.they_lack.push_back(entry.node);
    } else if (ours->second.sequence < entry.sequence) {
      difference.we_lack.push_back(entry.node);
    }
    ++ours;
  }
  for (; ours != end; ++ours) {
    difference.they_lack.push_back(ours->first);
  }
  return difference;
}

size_t LinkStates::memory_bytes() const {
  // A node of a red-black tree: three pointers and a colour before the value.
  constexpr size_t tree_node = 4 * sizeof(void*) + sizeof(std::pair<const NodeId, Stored>);
  size_t bytes = sizeof *this;
  for (const auto& [node, stored] : states_) {
    bytes += tree_node + stored.encoded.capacity();
  }
  return bytes;
}

}  // namespace nccl_ha::relay
