#include "actors/send_channel.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "runtime/base/check.h"

namespace nccl_ha {

SendChannel::SendChannel(uint64_t domain, fabric::Attachment at, Driver* driver,
                         const CounterPlace& counters, const fabric::RailDevices& devices)
    : Channel(domain, at, counters, "send", devices) {
  for (size_t i = 0; i < sends_max; ++i) {
    slots_[i].index = static_cast<uint16_t>(i);
    slots_[i].is_send = true;
    slots_[i].channel = this;
    slots_[i].driver = driver;
    free_[i] = static_cast<uint16_t>(sends_max - 1 - i);
  }
  free_count_ = sends_max;
}

size_t SendChannel::known_group(std::span<const CtsEntry> entries, uint64_t number) {
  const size_t count = entries[0].count;
  return count >= 1 && count <= entries.size() && entries[0].group == number ? count : 0;
}

/// `live`: a NIC may be writing the entries.
template <bool live, class Entry>
[[gnu::always_inline]] inline size_t SendChannel::take_group(std::span<Entry> entries) {
  const uint64_t number = published_.load(std::memory_order_relaxed);
  if (number - seen_group_ >= cts_slots) {
    seen_group_ = group_.load(std::memory_order_acquire);
    if (number - seen_group_ >= cts_slots) {
      return 0;
    }
  }
  auto& group = groups_[number % cts_slots];  // of which the caller knows nothing yet
  size_t count = 1;
  for (size_t i = 0; i < count; ++i) {
    if constexpr (live) {
      if (std::atomic_ref(entries[i].group).load(std::memory_order_acquire) != number) {
        return 0;
      }
    }
    group[i] = copy_of(entries[i]);
    if (live && !group[i].is_whole()) {
      return 0;
    }
    if (i == 0) {
      count = group[0].count;
      if (count < 1 || count > std::min(group_max, entries.size())) {
        return 0;
      }
    }
    if (group[i].group != number || group[i].position != i || group[i].count != count) {
      return 0;
    }
  }
  published_.store(number + 1, std::memory_order_release);
  return count;
}

[[gnu::hot]] size_t SendChannel::publish(std::span<const CtsEntry> entries) {
  return take_group<false>(entries);
}

[[gnu::hot]] size_t SendChannel::publish_there(std::span<CtsEntry> entries) {
  return take_group<true>(entries);
}

const CtsEntry* SendChannel::place_among(const std::array<CtsEntry, group_max>& group,
                                         int tag) const {
  const uint32_t count = group[0].count;
  for (uint32_t i = 0; i < count; ++i) {
    if ((taken_ >> i & 1U) == 0 && group[i].tag == tag) {
      return &group[i];
    }
  }
  return nullptr;
}

inline void SendChannel::take(const CtsEntry& place) {
  taken_ |= 1U << place.position;
  if (taken_ == (1U << place.count) - 1) {
    taken_ = 0;
    group_.store(place.group + 1, std::memory_order_release);
  }
}

/// As the receiver does it: of those with one tag the first one that was sent gets the first place
/// with that tag.  Whatever is sent after them comes after them.
void SendChannel::place_eager(uint64_t published) {
  for (size_t i = 0; i < unplaced_count_;) {
    const CtsEntry* place = place_for(unplaced_[i].tag, published);
    if (place == nullptr) {
      ++i;
      continue;
    }
    take(*place);
    const bool filled = taken_ == 0;
    std::copy(unplaced_.begin() + i + 1, unplaced_.begin() + unplaced_count_,
              unplaced_.begin() + i);
    --unplaced_count_;
    if (filled) {
      i = 0;  // the next group may have a place for those that were passed over
    }
  }
}

SendRequest* SendChannel::submit_eager(const CtsEntry* place, int tag, const void* data,
                                       size_t size) {
  const uint64_t number = eager_count_;
  if (staged_ == nullptr || size > eager_bytes_ || free_count_ == 0) {
    return nullptr;
  }
  if (number >= eager_slots && !slot_is_free(number)) {
    return nullptr;
  }
  EagerSlot& slot = staged_->eager[number % eager_slots];
  slot.head = {group_.load(std::memory_order_relaxed), tag, static_cast<uint16_t>(size)};
  if (place != nullptr) {
    slot.head.position = place->position;
    take(*place);
  } else if (slot.head.group == published_.load(std::memory_order_acquire)) {
    unplaced_[unplaced_count_++] = {number, tag};
  } else {
    return nullptr;  // it has no place in a group that is not full, and waits until that is
  }
  if (size != 0) {
    std::memcpy(slot.data.data(), data, size);
  }
  SendRequest& request = take_slot();
  request.size = static_cast<uint32_t>(size);
  request.bytes[0] = request.size;
  // Traces name an unplaced one by the group that it is probably for.
  request.group = slot.head.group + (place == nullptr ? unplaced_count_ - 1 : 0);
  request.position = place == nullptr ? 0 : place->position;
  ++eager_count_;
  request.state.store(RequestState::done, std::memory_order_relaxed);
  eager_submitted_.store(eager_count_, std::memory_order_release);
  return &request;
}

/// The message that was in its slot before has arrived, and the peer has told of its place: it has
/// been copied from there.
bool SendChannel::slot_is_free(uint64_t number) const {
  const uint64_t before = number - eager_slots;
  return eager_arrived_[number % eager_slots].load(std::memory_order_acquire) == before + 1 &&
         std::none_of(unplaced_.begin(), unplaced_.begin() + unplaced_count_,
                      [&](const Unplaced& one) { return one.number == before; });
}

inline SendRequest& SendChannel::take_slot() {
  SendRequest& request = slots_[free_[--free_count_]];
  open_about_.store(sends_max - free_count_, std::memory_order_relaxed);
  return request;
}

SendRequest* SendChannel::submit(const CtsEntry& place, const void* data, uint32_t size,
                                 uint32_t key, bool host_memory, const RailKeys& rail_keys) {
  if (free_count_ == 0) {
    return nullptr;
  }
  SendRequest& request = take_slot();
  request.data = static_cast<const std::byte*>(data);
  request.size = size;
  request.key = key;
  request.group = place.group;
  request.position = place.position;
  request.remote_address = place.address;
  request.remote_key = place.key;
  request.rail_keys = rail_keys;
  // By index: a copy of three words by std::copy_n is a call of memmove().
  static_assert(std::tuple_size_v<RailKeys> <= cts_shadows);
  for (size_t i = 0; i < rail_keys.size(); ++i) {
    request.remote_rail_keys[i] = place.shadow_keys[i];
  }
  request.no_speculative_placement = place.no_speculative_placement != 0;
  request.host_memory = host_memory;
  request.bytes[0] = size;
  request.state.store(RequestState::pending,
                      std::memory_order_release);  // Sender looks through all
  take(place);
  submitted_.push(request.index);
  return &request;
}

void SendChannel::prefetch_next() {
  if (free_count_ == 0) {
    return;
  }
  auto* bytes = reinterpret_cast<std::byte*>(&slots_[free_[free_count_ - 1]]);
  for (size_t at = 0; at < sizeof(SendRequest); at += 64) {
    __builtin_prefetch(bytes + at, 1);
  }
}

void SendChannel::release(SendRequest& request) {
  NHA_DASSERT(free_count_ < sends_max, "more requests released than there are");
  request.state.store(RequestState::free, std::memory_order_relaxed);
  free_[free_count_++] = request.index;
  open_about_.store(sends_max - free_count_, std::memory_order_relaxed);
}

}  // namespace nccl_ha
