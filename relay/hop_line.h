// Frames on one hop of a relayed path, in both directions.
//
// Each side has slots for what comes in, of which it tells the other where they are; the other one
// writes a frame straight into the next slot, with an immediate that says so, and no more frames
// than there are free slots.  Slots are used and become free in order, so that a count tells which.
// One thread.
#pragma once

#include <cstdint>
#include <optional>

#include "relay/frame.h"
#include "relay/frame_memory.h"
#include "runtime/fabric/path.h"

namespace nccl_ha::relay {

/// Where frames may be written: told to the neighbour when a session is set up.
struct SlotWindow {
  uint64_t address = 0;
  uint32_t key = 0;
  uint32_t slot_bytes = 0;
  uint16_t slots = 0;
};
inline constexpr uint16_t slots_min = 4;
inline constexpr uint16_t slots_max = 256;
/// So many may a neighbour ask for, of a host that itself asks for `own`.
constexpr uint16_t slots_accepted(uint16_t own) {
  return static_cast<uint16_t>(own < slots_max / 4 ? 4 * own : slots_max);
}

class HopLine {
 public:
  /// Of the posts that tell of free slots; no other id of the hop's may be it.
  static constexpr uint64_t credit_id = UINT64_MAX;

  explicit HopLine(fabric::Memory& memory) : memory_(memory) {}
  ~HopLine() { reset(); }
  HopLine(const HopLine&) = delete;
  HopLine& operator=(const HopLine&) = delete;

  /// What a hop must be made with: of posts, `posts` are the owner's own beside those for frames.
  void size(fabric::PathOptions& options, uint32_t posts) const;

  /// Slots for frames with pieces of at most that size.  The neighbour has at most `theirs_most`.
  Result<void> allocate(uint64_t domain, uint16_t slots, uint32_t chunk_bytes,
                        uint16_t theirs_most);
  void take(fabric::OwnedPath hop) { hop_ = std::move(hop); }
  fabric::Path* path() const { return hop_.path.get(); }
  SlotWindow window() const;
  /// Connects the hop, whose other side has these slots.
  Result<void> connect(std::span<const std::byte> address, const SlotWindow& theirs,
                       uint32_t chunk_bytes);
  /// No piece is longer from now on, in either direction: a host further on takes no longer ones.
  void agree(uint32_t chunk_bytes) { chunk_bytes_ = chunk_bytes; }

  // out
  bool ready() const { return hop_.path && hop_.path->state() == fabric::PathState::ready; }
  bool room() const { return sent_ - peer_freed_ < theirs_.slots; }
  /// Writes one frame into the next slot; false: not now.
  bool post(const fabric::Gather* gathers, uint32_t count, uint64_t id);
  /// Writes elsewhere; false: not now.
  bool post_beside(const fabric::WritePost& post);

  // in
  /// What the hop has completed: a slot with a frame; nullopt: nothing for the owner.
  struct Arrival {
    std::optional<uint32_t> slot;
    bool wrong = false;  ///< the neighbour breaks the rules
  };
  Arrival on_receive(const fabric::Completion& completion);
  /// A post that the hop has completed; false: it was none of the owner's.
  bool on_sent(const fabric::Completion& completion);
  /// nullopt: it is none, or its piece is longer than was agreed.
  std::optional<Frame> frame(uint32_t slot) const;
  std::byte* slot(uint32_t slot) { return memory_.place(slot); }
  fabric::Gather gather(uint32_t slot, size_t from, size_t length) {
    return memory_.gather(slot, from, length);
  }
  /// The oldest slot with a frame is free again.
  void release();
  uint16_t slots() const { return slots_; }
  /// Frames that were not released.
  uint64_t held() const { return received_ - freed_; }
  /// The neighbour knows of no free slot.
  bool full() const { return received_ - told_ >= slots_; }

  /// Posts that the hop has not completed: 0 once it is in error says that nobody touches anything.
  size_t in_hop() const { return posts_in_hop_ + receives_in_hop_; }
  size_t memory_bytes() const { return memory_.bytes(); }
  /// At the end of a turn.
  void reset() { hop_.reset(); }

 private:
  void tell_free();
  bool post_receive();

  FrameMemory memory_;
  fabric::OwnedPath hop_;
  SlotWindow theirs_;
  uint16_t slots_ = 0;
  uint16_t theirs_most_ = 0;
  uint32_t chunk_bytes_ = 0;  ///< of a frame's piece at most
  uint64_t sent_ = 0;         ///< frames
  uint64_t peer_freed_ = 0;   ///< of them
  uint64_t received_ = 0;
  uint64_t freed_ = 0;
  uint64_t told_ = 0;  ///< of the freed
  size_t posts_in_hop_ = 0;
  size_t receives_in_hop_ = 0;
};

}  // namespace nccl_ha::relay
