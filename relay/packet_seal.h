// Shows that a packet of discovery comes from a host with the cluster's key, and that it came only
// once.
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
  bool keyed() const { return keys_ != nullptr; }
  /// Null: packets are as they are.
  void set_keys(std::shared_ptr<const KeyRing> keys) { keys_ = std::move(keys); }

  std::vector<std::byte> seal(std::span<const std::byte> packet);
  /// The packet without its seal; an error: it is not to be listened to.
  Result<std::span<const std::byte>> open(std::span<const std::byte> sealed, Instant now);

  const Counts& counts() const { return counts_; }

 private:
  std::shared_ptr<const KeyRing> keys_;
  uint64_t sent_ = 0;
  // No clock is common to all hosts: numbers tell, and a sender is remembered as long as there is
  // room.
  ha::ReplayWindow window_;
  Counts counts_;
};

}  // namespace nccl_ha::relay
