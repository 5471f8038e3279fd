// What a sender knows of the receiver's keys for a fallback path over another device.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "actors/channel.h"
#include "ha/mutation.h"

namespace nccl_ha {

/// The keys of open groups by position, each with the epoch of the path that it is for.  One
/// thread.
class ShadowKeyTable {
 public:
  /// `entries` of group `number` may lie where the peer's NIC writes: each is copied, and a copy
  /// that is a mixture of two writes tells nothing: the completion of the later one comes.
  void note(uint64_t number, std::span<const CtsEntry> entries) {
    for (size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].shadow_key != 0) [[unlikely]] {
        note(number, i, entries[ha::mutated(ha::Mutation::key_of_first_buffer) ? 0 : i]);
      }
    }
  }

  /// 0: not told yet for the path of that epoch.
  uint32_t key(uint64_t number, uint32_t position, uint32_t epoch) const {
    const Group& group = groups_[number % cts_slots];
    const Told& told = group.keys[position];
    const bool current = told.epoch == epoch || ha::mutated(ha::Mutation::keys_of_old_path);
    return group.number == number && current ? told.key : 0;
  }

 private:
  struct Told {
    uint32_t key = 0;
    uint32_t epoch = 0;
  };
  struct Group {
    uint64_t number = UINT64_MAX;
    std::array<Told, group_max> keys{};
  };
  [[gnu::noinline]] void note(uint64_t number, size_t position, const CtsEntry& there) {
    Group& group = groups_[number % cts_slots];
    if (group.number != number) {
      group = {};
      group.number = number;
    }
    const CtsEntry entry = copy_of(there);
    if (entry.is_whole() && entry.group == number && position < group_max) {
      group.keys[position] = {entry.shadow_key, entry.shadow_epoch};
    }
  }

  std::array<Group, cts_slots> groups_{};
};

}  // namespace nccl_ha
