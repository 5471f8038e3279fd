// The place of a path in a connection; the path in it may be replaced.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "ha/path_health.h"
#include "runtime/fabric/provider.h"

namespace nccl_ha {

/// Where control messages arrive over a lane, and where those for the peer wait until they are
/// sent. Registered memory; the layout of `incoming` is wire format.
struct ControlBox {
  static constexpr size_t slots = 4;  ///< a message's place is its number modulo this
  static constexpr size_t slot_bytes = 1024;
  using Slots = std::array<std::array<std::byte, slot_bytes>, slots>;
  Slots incoming{};
  Slots outgoing{};
};

/// A memory table by the keys of the lane's device.
struct LaneTables {
  uint32_t source_key = 0;   ///< ours, whose content this side writes to the peer's
  uint32_t written_key = 0;  ///< ours, that the peer writes
  uint32_t table_key = 0;    ///< the peer's, that this side writes
};

struct Lane {
  fabric::OwnedPath owned;    ///< path: null while there is none
  bool decided = false;       ///< in the handshake: it came up, or failed
  bool usable = false;        ///< new work may be posted
  bool shadow = false;        ///< over other NICs than the connection's own
  bool rejected = false;      ///< a shadow's device does not take the connection's memory
  bool foreign_keys = false;  ///< memory is named by keys of this lane's devices, told separately
  std::optional<Error> early_failure;  ///< of the handshake's path, also why there is none
  uint32_t epoch = 0;                  ///< its state machine's, here for the data path
  uint32_t writes_open = 0;   ///< posted, not completed, with flushes, without unsignaled ones
  uint32_t credits_open = 0;  ///< receives posted and not completed
  uint32_t credits_owed = 0;  ///< receives used and not replaced yet
  uint64_t bytes_open = 0;    ///< of data posted and not completed
  LaneTables tables;
  fabric::Attachment at;
  sockaddr_storage local{};  ///< datagrams: the interface's address

  // Control messages, where failover is on.
  std::unique_ptr<ControlBox> box;
  uint32_t box_source_key = 0;
  uint32_t box_written_key = 0;
  uint64_t peer_box = 0;  ///< 0: the peer takes none here
  uint32_t peer_box_key = 0;
  uint32_t control_next = 0;  ///< number of the next message to write
  uint32_t control_open = 0;  ///< messages written and not completed
  /// The numbers of those, in the order of posting: the latest of `control_posted` writes.
  std::array<uint32_t, ControlBox::slots> control_under_way{};
  uint32_t control_posted = 0;
  /// Until a write has completed, a repetition of it may still land on its place at the peer.
  bool control_place_is_free() const {
    const auto oldest = control_under_way[(control_posted - control_open) % ControlBox::slots];
    return control_open == 0 || control_next < oldest + ControlBox::slots;
  }
  bool control_due = false;  ///< something found no room
  bool confirm_due = false;  ///< once the one under way is done
  uint32_t confirms_open = 0;
  // Heartbeats.
  ha::PathHealth health;
  uint32_t heartbeats_open = 0;
  uint64_t progress_seen = 0;  ///< its path's, at the last look
  uint64_t marks = 0;          ///< heartbeats and control messages that came here

  fabric::Path& path() { return *owned.path; }
  ha::PathHealth::Open open() const { return {writes_open, heartbeats_open, bytes_open}; }
  bool drained() const { return writes_open == 0 && credits_open == 0; }
};

}  // namespace nccl_ha
