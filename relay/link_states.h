// What this host knows of all others: the newest link state of each, until it is too old.
//
// Pure; one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "relay/link_state.h"
#include "relay/packet.h"
#include "runtime/base/clock.h"

namespace nccl_ha::relay {

class LinkStates {
 public:
  /// Beyond `nodes_max` hosts, one that two-way cables join to `self` takes the place of one that
  /// none do; others are not entered.
  LinkStates(size_t nodes_max, NodeId self) : nodes_max_(nodes_max), self_(self) {}

  enum class Verdict : uint8_t {
    changed,  ///< newer, and it says something else
    renewed,  ///< newer, and it says the same
    known,    ///< what we have
    older,    ///< we know better
    refused,  ///< too many hosts, no lifetime left, or a number that the host cannot have reached
  };
  /// `from_itself`: its own host said it, which knows how far it has come.
  Verdict offer(const LinkState& state, Instant now, bool from_itself = false);
  /// Forgets what was not renewed in time; true: some.
  bool expire(Instant now);

  /// The same on two hosts that know the same, and else hardly ever.
  uint64_t digest() const { return digest_; }
  size_t size() const { return states_.size(); }
  /// 0: nothing is known of it.
  uint64_t sequence(NodeId node) const;
  /// Grows when a host came, went or says something else.
  uint64_t revision() const { return revision_; }
  uint64_t refused() const { return refused_; }

  /// Puts those of `nodes` that are known into packets.
  void write(std::span<const NodeId> nodes, Instant now, StatesWriter& out) const;
  std::vector<NodeId> nodes() const;
  std::vector<LinkState> decoded(Instant now) const;

  /// All that is known, in summaries of which each begins where the one before ends.
  std::vector<SummaryPacket> summaries() const;
  struct Difference {
    std::vector<NodeId> they_lack;
    std::vector<NodeId> we_lack;
  };
  Difference compare(const SummaryPacket& theirs) const;

  /// With what the allocator is asked for, not what it adds.
  size_t memory_bytes() const;

 private:
  struct Stored {
    uint64_t sequence = 0;
    Instant heard{};
    Instant expires{};
    std::vector<std::byte> encoded;
  };
  static uint32_t lifetime_left(const Stored& stored, Instant now);
  static bool believable(const Stored& known, uint64_t sequence, Instant now);
  bool make_room(const LinkState& state, Instant now);

  size_t nodes_max_;
  NodeId self_;
  std::set<NodeId> joined_;  ///< by two-way cables to this host, when last looked at
  Instant joined_due_{};
  std::map<NodeId, Stored> states_;
  uint64_t digest_ = 0;
  uint64_t revision_ = 0;
  uint64_t refused_ = 0;
};

}  // namespace nccl_ha::relay
