// Which connections of which clients an agent knows, and which slot of its table each flow has.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "ha/flow.h"
#include "runtime/base/result.h"

namespace nccl_ha::ha {

/// Whether a user who holds `own` of `total` may have one more, when others hold `others`: at most
/// half of what those leave, so that something is left for who comes next.
constexpr bool within_share(size_t own, size_t others, size_t total) {
  return others < total && own < (total - others + 1) / 2;
}

/// All connections of a flow share a slot.  A slot that becomes free is used again as late as can
/// be.  Owner thread only.
class FlowRegistry {
 public:
  using Client = uint64_t;  ///< a process, by the number that the agent gave it
  using User = uint32_t;    ///< by its number; 0, which is root, has no share but all
  struct Limits {
    uint32_t slots = 4096;
    uint32_t connections_per_client = 16384;
  };
  struct Entered {
    uint32_t slot = 0;
    bool first = false;  ///< of its flow
  };
  struct Left {
    Flow flow;
    uint32_t slot = 0;
    bool last = false;  ///< of its flow: the slot is free
  };

  explicit FlowRegistry(const Limits& limits);

  /// no_memory: no slot is free, the user's share of them is taken, or the client has too many
  /// connections; invalid_argument: the client has one of that number, or the flow has no
  /// addresses. Nothing changes then.  A slot is of the user who took it, until its flow ends.
  Result<Entered> enter(Client client, uint64_t connection, const Flow& flow, User user = 0);
  /// invalid_argument: the client has no such connection.
  Result<Left> leave(Client client, uint64_t connection);
  /// All of a client, which is gone; its flows that ended.
  std::vector<Left> drop(Client client);

  /// Who has more keeps them.
  void set_connections_per_client(uint32_t most) { limits_.connections_per_client = most; }
  size_t connections() const { return connections_; }
  size_t flows() const { return slot_of_.size(); }
  size_t free_slots() const { return free_.size(); }
  /// nullptr: no connection has the flow.
  const uint32_t* slot_of(const Flow& flow) const;
  uint32_t connections_of(uint32_t slot) const { return slots_[slot].connections; }
  /// In the order of their addresses.
  const std::map<Flow, uint32_t>& all() const { return slot_of_; }

 private:
  struct Slot {
    Flow flow;
    uint32_t connections = 0;
    User user = 0;
  };
  Left release(uint32_t slot);

  Limits limits_;
  std::vector<Slot> slots_;
  std::deque<uint32_t> free_;  ///< the one that became free longest ago comes first
  std::map<Flow, uint32_t> slot_of_;
  std::map<User, size_t> taken_;                            ///< slots
  std::map<Client, std::map<uint64_t, uint32_t>> clients_;  ///< slots of their connections
  size_t connections_ = 0;
};

}  // namespace nccl_ha::ha
