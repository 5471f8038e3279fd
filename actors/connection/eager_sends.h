// Eager messages that a sender has on their way (actors/eager.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "actors/connection/lane_chooser.h"
#include "actors/connection/path_set.h"
#include "actors/connection/side.h"
#include "actors/connection/state.h"
#include "actors/eager.h"
#include "actors/send_channel.h"
#include "ha/ledger.h"

namespace nccl_ha {

/// Writes the copies that the caller made into the peer's slots, once more after a failover, until
/// each is acknowledged.  One thread.
class EagerSends {
 public:
  /// `tables`: where the copies lie.
  EagerSends(const ConnectionParts& parts, SendChannel& channel, LaneChooser& chooser,
             const DataTables& tables);

  /// post() has something to do.
  bool due() const { return waits_ || channel_.eager_submitted() != taken_; }
  /// What the caller gave away, and what a lane that was fenced may not have brought, as far as
  /// there is room.
  void post();
  /// Messages that the peer is not known to have, though the caller may believe them sent.
  bool any_open() const { return done_ != channel_.eager_submitted(); }
  /// How many messages the peer has, without a gap.
  uint64_t done() const { return done_; }

  /// Of a write: it was posted here.
  static bool is_of(uint64_t id) { return id - first_id < eager_slots; }
  /// True: no message is open any more.
  bool on_acknowledged(uint64_t id, size_t lane);
  bool holds(size_t lane) const;
  /// After the fence: whatever the lane held goes again.  How many messages; `bytes` is added to.
  uint32_t take_back(size_t lane, uint64_t& bytes);

 private:
  /// Of a message in slot n: this and n.  Those of chunks are below.
  static constexpr uint64_t first_id = uint64_t{1} << 32;

  struct Message {
    uint64_t number = 0;
    uint64_t group = 0;  ///< that it is probably for, by which traces name it
    uint8_t lane = ha::ChunkLedger::nobody;
    bool open = false;   ///< the peer is not known to have it
    bool again = false;  ///< it may have it, and read it at any time
  };
  void take_submitted();
  [[nodiscard]] bool post(Message& message);
  size_t lane_for(uint32_t bytes);
  uint32_t bytes_of(const Message& message) const {
    return tables_.eager[message.number % eager_slots].head.bytes;
  }

  ConnectionState& state_;
  PathSet& paths_;
  Liveness& liveness_;
  SendChannel& channel_;
  LaneChooser& chooser_;
  const DataTables& tables_;
  std::array<Message, eager_slots> messages_{};
  uint64_t taken_ = 0;       ///< of the caller
  uint64_t done_ = 0;        ///< every one below has arrived
  uint64_t next_group_ = 0;  ///< after that of the last one
  bool waits_ = false;       ///< some wait for room or for a path
};

}  // namespace nccl_ha
