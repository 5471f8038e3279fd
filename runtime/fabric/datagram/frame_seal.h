// Shows that a frame comes from the path's peer, that nobody changed it, and that it came only
// once; with encryption also that nobody else can read its payload.
//
// A seal, little-endian, follows the payload: the frame's number u64 of those that its sender
// sealed on this path, and a tag of 16 bytes over the header and the payload.  Each direction has a
// key of its own, of what both ends of the control stream share and of both paths' numbers and
// tokens, so that it is no other path's, nor that of an earlier path.  Pure; one thread.
#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "runtime/base/aead.h"
#include "runtime/fabric/datagram/wire.h"

namespace nccl_ha::fabric {

class FrameSeal {
 public:
  /// Packets may overtake each other by so many, as those of the command channel do: twice the
  /// largest window (HA_NCCL_DGRAM_WINDOW).
  static constexpr uint64_t numbers = 16384;

  FrameSeal(const SharedKey& shared, const WireAddress& own, const WireAddress& peer);

  bool encrypts() const { return encrypts_; }
  /// Of a frame whose parts, the encoded header first, go out as they are.
  void close(std::span<const iovec> frame, std::span<std::byte, seal_bytes> seal);
  /// Of a whole frame in one piece, seal included, whose payload is encrypted where it lies if it
  /// is to be.
  void close(std::span<std::byte> frame);
  /// The payload of a whole frame as it came, which lies in `plain` if it was encrypted; nullopt:
  /// it is not the peer's, or came before.  `plain` has room for all of it.
  std::optional<std::span<const std::byte>> open(std::span<const std::byte> frame,
                                                 std::span<std::byte> plain);

 private:
  bool fresh(uint64_t number) const;
  void mark(uint64_t number);

  const bool encrypts_;
  const Aead out_;
  const Aead in_;
  uint64_t sent_ = 0;
  uint64_t newest_ = 0;        ///< that came
  std::bitset<numbers> seen_;  ///< of the newest and those before it, each at its remainder
};

}  // namespace nccl_ha::fabric
