// What the connecting side's actor shares with its caller.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "actors/channel.h"
#include "actors/cts_entry.h"
#include "actors/eager.h"
#include "actors/index_ring.h"
#include "actors/request.h"

namespace nccl_ha {

/// Sending side of a connection.
class SendChannel final : public Channel {
 public:
  /// `driver`: of its requests; null: nobody calls test() for them.
  SendChannel(uint64_t domain, fabric::Attachment at, Driver* driver = nullptr,
              const CounterPlace& counters = {}, const fabric::RailDevices& devices = {});

  /// Caller.  Finds the place for a message with `tag` in the oldest incomplete group.  nullptr:
  /// the peer has not posted a matching receive yet.
  const CtsEntry* match(int tag) {
    // Asked once: a group that is published meanwhile would have a place for this message, though
    // not for those before it.
    const uint64_t published = published_.load(std::memory_order_acquire);
    if (unplaced_count_ != 0) [[unlikely]] {
      place_eager(published);
    }
    return place_for(tag, published);
  }
  /// Caller.  Takes the place found by match() and puts a request into the ring; nullptr when
  /// all slots are in use.  The driver is told next.
  SendRequest* submit(const CtsEntry& place, const void* data, uint32_t size, uint32_t key,
                      bool host_memory = true, const RailKeys& rail_keys = {});
  /// Caller.  Copies a small message of host memory, which the actor gives away at once; the
  /// request is done.  `place`: what match() found; null: nothing.  nullptr: not this one, or not
  /// now.
  SendRequest* submit_eager(const CtsEntry* place, int tag, const void* data, size_t size);
  /// Caller.  Of an eager message, at most; 0: none is.
  size_t eager_bytes() const { return eager_bytes_; }
  /// Caller.  Sends come in batches: what the next one writes is on its way to this processor
  /// before it is asked for.
  void prefetch_next();
  void release(SendRequest& request);  ///< caller, after done
  size_t open() const { return sends_max - free_count_; }

  // Actor's side.
  /// Before the connection is ready: where eager messages are copied to, and of how many bytes they
  /// are at most.
  void allow_eager(std::shared_ptr<DataTables> staged, uint32_t bytes) {
    staged_ = std::move(staged);
    eager_bytes_ = bytes;
  }
  uint64_t eager_submitted() const { return eager_submitted_.load(std::memory_order_acquire); }
  /// The peer has it: its slot may be used again once its place is known.
  void eager_arrived(uint64_t number) {
    eager_arrived_[number % eager_slots].store(number + 1, std::memory_order_release);
  }
  bool next_submitted(uint16_t* index) { return submitted_.pop(index); }
  bool any_submitted() const { return submitted_.any(); }
  /// How many requests the caller has open, about: whoever plans ahead may look at any time.
  size_t open_about() const { return open_about_.load(std::memory_order_relaxed); }
  SendRequest& slot(uint16_t index) { return slots_[index]; }
  /// Of which the caller has submitted every send.
  uint64_t filled_groups() const { return group_.load(std::memory_order_acquire); }
  uint64_t published_groups() const { return published_.load(std::memory_order_relaxed); }
  /// Makes the group at the head of `entries` visible to the caller; of how many entries it is.  0:
  /// it makes no sense, or the peer announced more open groups than a connection may have.  The
  /// memory may be the peer's to write: what is judged and used is a copy.
  [[nodiscard]] size_t publish(std::span<const CtsEntry> entries);
  /// The same when a NIC may be writing there right now: 0 as well unless all of it has arrived.
  [[nodiscard]] size_t publish_if_there(std::span<CtsEntry> entries) {
    const bool any = std::atomic_ref(entries.front().group).load(std::memory_order_relaxed) ==
                     published_.load(std::memory_order_relaxed);
    return any ? publish_there(entries) : 0;
  }
  /// The copies of a group that was published and is not out of date; the rest is another's.
  std::span<const CtsEntry> entries_of(uint64_t group) const { return groups_[group % cts_slots]; }
  /// Of how many entries the group at the head of `entries` is, if it is group `number`, which was
  /// published before; else 0.
  [[nodiscard]] static size_t known_group(std::span<const CtsEntry> entries, uint64_t number);

 private:
  /// An eager message of which the caller does not know the place.
  struct Unplaced {
    uint64_t number = 0;
    int tag = 0;
  };
  [[gnu::noinline]] void place_eager(uint64_t published);
  const CtsEntry* place_for(int tag, uint64_t published) const {
    const uint64_t number = group_.load(std::memory_order_relaxed);
    return number >= published ? nullptr : place_in(groups_[number % cts_slots], tag);
  }
  const CtsEntry* place_in(const std::array<CtsEntry, group_max>& group, int tag) const {
    if (group[0].count == 1) [[likely]] {
      return group[0].tag == tag ? group.data() : nullptr;
    }
    return place_among(group, tag);
  }
  const CtsEntry* place_among(const std::array<CtsEntry, group_max>& group, int tag) const;
  void take(const CtsEntry& place);
  SendRequest& take_slot();
  bool slot_is_free(uint64_t number) const;
  size_t publish_there(std::span<CtsEntry> entries);
  template <bool live, class Entry>
  size_t take_group(std::span<Entry> entries);

  std::array<SendRequest, sends_max> slots_;
  IndexRing<sends_max> submitted_;
  alignas(64) std::atomic<uint64_t> published_{0};
  uint64_t seen_group_ = 0;  ///< actor's: group_ as last looked at, which is seldom
  alignas(64) std::array<std::array<CtsEntry, group_max>, cts_slots> groups_{};
  // caller only, but for group_
  alignas(64) std::atomic<uint64_t> group_{0};  ///< the group being filled
  uint32_t taken_ = 0;                          ///< its positions already used
  std::shared_ptr<DataTables> staged_;          ///< null: there are no eager messages
  uint32_t eager_bytes_ = 0;
  uint64_t eager_count_ = 0;
  size_t unplaced_count_ = 0;
  std::array<Unplaced, eager_slots> unplaced_{};  ///< in their order
  std::array<uint16_t, sends_max> free_;
  size_t free_count_ = 0;
  std::atomic<size_t> open_about_{0};  ///< sends_max - free_count_
  alignas(64) std::atomic<uint64_t> eager_submitted_{0};
  /// Of each slot: the number after that of the last message that arrived.
  std::array<std::atomic<uint64_t>, eager_slots> eager_arrived_{};
};

}  // namespace nccl_ha
