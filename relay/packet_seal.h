// Shows that a packet of discovery comes from a host with the cluster's key, or one of the same
// job, and that it came only once.
//
// A seal, little-endian, follows the packet: its number u64 of those of its sender, key u32, tag 16
// bytes over all before it.  Pure; one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ha/replay_window.h"
#include "relay/packet.h"
#include "runtime/base/keyed_hash.h"

namespace nccl_ha::relay {

inline constexpr size_t packet_seal_bytes = sizeof(uint64_t) + sizeof(uint32_t) + tag_bytes;

class PacketSeal {
 public:
  struct Counts {
    uint64_t forged = 0;    ///< without a seal, or with one of another key
    uint64_t repeated = 0;  ///< or too old to tell
  };
  PacketSeal();
  /// Null: packets are as they are.  `open`: those without a seal are listened to as well.
  void set_keys(std::shared_ptr<const KeyRing> keys, bool open = false) {
    keys_ = std::move(keys);
    open_ = open;
  }
  const KeyRing* keys() const { return keys_.get(); }

  /// With the key of that number; 0: as it is.
  std::vector<std::byte> seal(std::span<const std::byte> packet, uint32_t key);
  struct Opened {
    std::span<const std::byte> packet;  ///< without its seal
    uint32_t key = 0;                   ///< the number of the key that it came with; 0: none
  };
  /// An error: it is not to be listened to.
  Result<Opened> open(std::span<const std::byte> sealed, Instant now);

  const Counts& counts() const { return counts_; }

 private:
  std::shared_ptr<const KeyRing> keys_;
  bool open_ = false;
  uint64_t sent_ = 0;
  // No clock is common to all hosts: numbers tell, and a sender is remembered as long as there is
  // room.
  ha::ReplayWindow window_;
  Counts counts_;
};

}  // namespace nccl_ha::relay
