// What a sender knows of the receiver's keys for fallback paths over other devices.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "actors/cts_entry.h"

namespace nccl_ha {

/// The keys of open groups by position and shadow, each with the epoch of the path that it is for.
/// One thread.
class ShadowKeyTable {
 public:
  /// `entries` of group `number` may lie where the peer's NIC writes: each is copied, and a copy
  /// that is a mixture of two writes tells nothing: the completion of the later one comes.
  void note(uint64_t number, std::span<const CtsEntry> entries) {
    for (size_t i = 0; i < entries.size(); ++i) {
      if (names_any(entries[i])) {
        note(number, i, entries[i]);
      }
    }
  }

  /// The slots before that one are for rails, whose keys depend on no epoch (CtsEntry).
  void begin(size_t first_slot) { first_slot_ = first_slot; }
  /// For the shadow with that slot; 0: not told yet for the path of that epoch.
  uint32_t key(uint64_t number, uint32_t position, size_t shadow, uint32_t epoch) const {
    const Group& group = groups_[number % cts_slots];
    const Told& told = group.told[position];
    const bool current = told.epochs[shadow] == static_cast<uint16_t>(epoch);
    return group.number == number && current ? told.keys[shadow] : 0;
  }

 private:
  struct Told {
    std::array<uint32_t, cts_shadows> keys{};
    std::array<uint16_t, cts_shadows> epochs{};
  };
  struct Group {
    uint64_t number = UINT64_MAX;
    std::array<Told, group_max> told{};
  };
  bool names_any(const CtsEntry& entry) const {
    const auto keys = std::span(entry.shadow_keys).subspan(first_slot_);
    return std::any_of(keys.begin(), keys.end(), [](uint32_t key) { return key != 0; });
  }
  [[gnu::noinline]] void note(uint64_t number, size_t position, const CtsEntry& there) {
    Group& group = groups_[number % cts_slots];
    if (group.number != number) {
      group = {};
      group.number = number;
    }
    const CtsEntry entry = copy_of(there);
    if (entry.is_whole() && entry.group == number && position < group_max) {
      group.told[position] = {entry.shadow_keys, entry.shadow_epochs};
    }
  }

  size_t first_slot_ = 0;
  std::array<Group, cts_slots> groups_{};
};

}  // namespace nccl_ha
