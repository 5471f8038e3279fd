// The place of a path in a connection; the path in it may be replaced.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "actors/control.h"
#include "ha/path_health.h"
#include "runtime/base/pages.h"
#include "runtime/fabric/provider.h"
#include "runtime/telemetry/counter_file.h"

namespace nccl_ha {

/// Where control messages arrive over a lane, and where those for the peer wait until they are
/// sent. Registered memory; the layout of `incoming` is wire format.
struct alignas(page_bytes) ControlBox {
  static constexpr size_t slots = 4;  ///< a message's place is its number modulo this
  static constexpr size_t slot_bytes = 1024;
  using Slots = std::array<std::array<std::byte, slot_bytes>, slots>;
  Slots incoming{};
  Slots outgoing{};
};

/// Control messages over one lane, where failover is on (ControlBoxes).
struct LaneControl {
  bool due = false;          ///< something found no room
  bool confirm_due = false;  ///< once the one under way is done
  uint32_t confirms_open = 0;
  uint32_t heartbeats_open = 0;
  uint64_t peer_box = 0;  ///< 0: the peer takes none here
  uint32_t peer_key = 0;
  uint32_t next = 0;  ///< number of the next message to write
  uint32_t open = 0;  ///< messages written and not completed
  /// The numbers of those, in the order of posting: the latest of `posted` writes.
  std::array<uint32_t, ControlBox::slots> under_way{};
  uint32_t posted = 0;
  uint64_t marks = 0;  ///< heartbeats and control messages that came here
  /// Heartbeats and confirmations of one epoch, in the order in which they are sent and arrive.
  struct Numbers {
    uint32_t epoch = UINT32_MAX;
    uint32_t count = 0;
    uint32_t next(uint32_t of_epoch) {
      count = epoch == of_epoch ? count + 1 : 0;
      epoch = of_epoch;
      return count;
    }
  };
  Numbers sent_numbers;
  Numbers received_numbers;
  std::shared_ptr<ControlBox> box;
  std::shared_ptr<fabric::OwnMemory> known;  ///< the box, to the lane's device
  uint32_t source_key = 0;
  uint32_t written_key = 0;

  /// Until a write has completed, a repetition of it may still land on its place at the peer.
  bool place_is_free() const {
    const auto oldest = under_way[(posted - open) % ControlBox::slots];
    return open == 0 || next < oldest + ControlBox::slots;
  }
};

/// Memory tables by the keys of the lane's device.
struct LaneTables {
  // Where the keys of ours come from.
  std::shared_ptr<fabric::OwnMemory> source;
  std::shared_ptr<fabric::OwnMemory> written;
  uint32_t source_key = 0;  ///< ours, whose content this side writes to the peer's
  RemoteTable own;          ///< ours, that the peer writes
  RemoteTable peer;         ///< the peer's, that this side writes
};

struct Lane {
  fabric::OwnedPath owned;    ///< path: null while there is none
  bool usable = false;        ///< new work may be posted
  bool shadow = false;        ///< over NICs that stand by
  bool rejected = false;      ///< elsewhere(): that device does not take the connection's memory
  bool foreign_keys = false;  ///< memory is named by keys of this lane's devices, told separately
  bool unproven = false;      ///< a device may still write what the peer had sent over its path
  bool decided = false;       ///< before the connection is used: it came up, or failed
  uint8_t rail = 0;           ///< of the connection's device; 0: the first one, or a shadow
  uint8_t shadow_number = 0;  ///< among the shadows, in the order in which they take over
  uint8_t key_slot = 0;       ///< elsewhere(): its keys' place in a CtsEntry
  uint32_t epoch = 0;         ///< its state machine's, here for the data path
  uint32_t writes_open = 0;   ///< posted, not completed, with flushes, without unsignaled ones
  uint32_t credits_open = 0;  ///< receives posted and not completed
  uint32_t credits_owed = 0;  ///< receives used and not replaced yet
  uint64_t bytes_open = 0;    ///< of data posted and not completed
  LaneTables tables;
  LaneControl control;
  ha::PathHealth health;
  uint64_t progress_seen = 0;  ///< its path's, when its health was last looked at
  fabric::PathTraits traits;   ///< its path's
  fabric::Attachment at;
  sockaddr_storage local{};            ///< the address that the path is made at
  std::optional<Error> early_failure;  ///< of the handshake's path, also why there is none
  CounterBlock<PathCounters> counters;

  void set_usable(bool on) {
    usable = on;
    counters->usable.set(on ? 1 : 0);
  }
  fabric::Path& path() { return *owned.path; }
  /// A write was posted; `head`: of its bytes, those that are none of a message.
  void count_write(uint32_t bytes, uint32_t head = 0) {
    ++writes_open;
    bytes_open += bytes;
    counters->writes.add();
    counters->bytes_sent.add(bytes - head);
  }
  /// Over another NIC than the connection's first one.
  bool elsewhere() const { return shadow || rail != 0; }
  /// On another rail of the connection's device.
  bool on_other_rail() const { return rail != 0; }
  ha::PathHealth::Open open() const { return {writes_open, control.heartbeats_open, bytes_open}; }
  bool drained() const { return writes_open == 0 && credits_open == 0; }
  /// Usable, and the peer takes control messages and heartbeats here.
  bool carries_control() const { return usable && control.peer_box != 0; }
};

}  // namespace nccl_ha
