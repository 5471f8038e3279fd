// Frames on one hop of a relayed path, in both directions.
//
// Each side has slots for what comes in, of which it tells the other where they are; the other one
// writes a frame straight into the next slot, with an immediate that says so, and no more frames
// than there are free slots.  Slots are used and become free in order, so that a count tells which.
// What carries the hop is the path's business: datagrams, or a queue pair.  One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

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

  explicit HopLine(HopSource& hops) : memory_(hops) {}
  ~HopLine() { reset(); }
  HopLine(const HopLine&) = delete;
  HopLine& operator=(const HopLine&) = delete;

  /// What a hop must be made with: of posts, `posts` are the owner's own beside those for frames.
  void size(fabric::PathOptions& options, uint32_t posts) const;

  /// Slots for frames with pieces of at most that size, for a hop that has yet to be made.  The
  /// neighbour has at most `theirs_most`.
  void allocate(uint16_t slots, uint32_t chunk_bytes, uint16_t theirs_most);
  /// A hop there that is made with these options, this one or one by which frames go on, reaches
  /// the slots.
  Result<void> enter(const HopPlace& place, fabric::PathOptions& options) {
    return memory_.enter(place, options);
  }
  /// `place`, which has been entered, is where it was made.
  void take(fabric::OwnedPath hop, const HopPlace& place) {
    hop_ = std::move(hop);
    place_ = place;
  }
  fabric::Path* path() const { return hop_.path.get(); }
  const HopPlace& place() const { return place_; }
  SlotWindow window() const;
  /// Connects the hop, whose other side has these slots.
  Result<void> connect(std::span<const std::byte> address, const SlotWindow& theirs,
                       uint32_t chunk_bytes);
  /// No piece is longer from now on, in either direction: a host further on takes no longer ones.
  void agree(uint32_t chunk_bytes) { chunk_bytes_ = chunk_bytes; }

  // out
  bool ready() const { return hop_.path && hop_.path->state() == fabric::PathState::ready; }
  bool room() const { return counts_.sent - counts_.peer_freed < theirs_.slots; }
  /// Writes one frame into the next slot; false: not now.
  bool post(const fabric::Gather* gathers, uint32_t count, uint64_t id);
  /// Writes elsewhere; false: not now.
  bool post_beside(const fabric::WritePost& post);

  /// Reads back through the device that carries the hop; invalid_usage: it has taken no such
  /// memory.
  Errc post_flush(const fabric::FlushPost& post, uint64_t domain);

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
  /// For another hop to write it from.
  fabric::Gather gather(uint32_t slot, size_t from, size_t length, const HopLine& by) const {
    return memory_.gather(slot, from, length, by.place_);
  }
  /// The oldest slot with a frame is free again.
  void release();
  uint16_t slots() const { return slots_; }
  /// Frames that were not released.
  uint64_t held() const { return counts_.received - counts_.freed; }
  /// The neighbour knows of no free slot.
  bool full() const { return counts_.received - counts_.told >= slots_; }

  /// Posts that the hop has not completed: 0 once it is in error says that nobody touches anything.
  size_t in_hop() const { return counts_.posts_in_hop + counts_.receives_in_hop; }
  size_t memory_bytes() const { return memory_.bytes(); }
  /// At the end of a turn, or before it was connected.
  void reset() {
    hop_.reset();
    counts_ = {};
  }

 private:
  void tell_free();
  bool post_receive();

  FrameMemory memory_;
  fabric::OwnedPath hop_;
  HopPlace place_;
  SlotWindow theirs_;
  uint16_t slots_ = 0;
  uint16_t theirs_most_ = 0;
  uint32_t chunk_bytes_ = 0;  ///< of a frame's piece at most
  /// Of the hop there is.
  struct Counts {
    uint64_t sent = 0;        ///< frames
    uint64_t peer_freed = 0;  ///< of them
    uint64_t received = 0;
    uint64_t freed = 0;
    uint64_t told = 0;  ///< of the freed
    size_t posts_in_hop = 0;
    size_t receives_in_hop = 0;
  };
  Counts counts_;
};

/// Setting a session up has failed, and not because this side ended it: if it was when the hop to
/// that neighbour, for which this side had asked, was to come up, another one is asked for next.
inline void blame_hop(HopSource& hops, const HopLine& line, NodeId neighbour, Instant now,
                      const std::string& why) {
  const fabric::Path* path = line.path();
  if (path != nullptr && path->state() != fabric::PathState::idle &&
      path->state() != fabric::PathState::ready) {
    hops.avoid(line.place(), neighbour, now, why);
  }
}

}  // namespace nccl_ha::relay
