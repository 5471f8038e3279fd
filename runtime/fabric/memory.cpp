#include "runtime/fabric/memory.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>
#include <utility>

#include "runtime/fabric/copy_lines.h"

namespace nccl_ha::fabric {

Memory::Memory() = default;
Memory::~Memory() = default;

const Memory::Entry* Memory::entry(uint32_t index) const {
  const Chunk* chunk = chunks_[index / chunk_entries].load(std::memory_order_acquire);
  return chunk == nullptr ? nullptr : &(*chunk)[index % chunk_entries];
}

uint32_t Memory::Generation::next() {
  constexpr unsigned mask = (1U << (32 - index_bits)) - 1;
  do {
    now = static_cast<uint16_t>((now + step) & mask);
  } while (now == 0);
  return now;
}

/// A place that was never used, which of them is drawn; mutex_ is held.
uint32_t Memory::take_fresh() {
  if (fresh_.empty()) {
    fresh_.reserve(chunk_entries);
    generation_.resize(used_ + chunk_entries);
    owned_.push_back(std::make_unique<Chunk>());
    chunks_[used_ / chunk_entries].store(owned_.back().get(), std::memory_order_release);
    fresh_.resize(chunk_entries);  // for which there is memory
    std::iota(fresh_.begin(), fresh_.end(), used_);
  }
  const uint64_t drawn = secrets_->draw().told();
  std::swap(fresh_[drawn % fresh_.size()], fresh_.back());
  const uint32_t index = fresh_.back();
  fresh_.pop_back();
  ++used_;
  generation_[index] = {static_cast<uint16_t>(drawn >> 48), static_cast<uint16_t>(drawn >> 32 | 1)};
  return index;
}

Result<uint32_t> Memory::add(uint64_t domain, void* base, size_t length) {
  const auto start = reinterpret_cast<uint64_t>(base);
  if (base == nullptr || start + length < start) {
    return fail(Errc::invalid_argument, "memory registration: null or wrapping address range");
  }
  std::lock_guard lock(mutex_);
  uint32_t index = 0;
  // A freed place rests before it is used again: with its 12 generation bits, a key then comes back
  // only after millions of registrations.
  if (free_.size() > resting_places || (!free_.empty() && used_ == (1U << index_bits))) {
    index = free_.front();
    free_.pop_front();
  } else {
    if (used_ == (1U << index_bits)) {
      return fail(Errc::no_memory, "memory registration: 1048576 regions are registered already");
    }
    index = take_fresh();
  }
  Entry& slot = (*owned_[index / chunk_entries])[index % chunk_entries];
  slot.domain.store(domain, std::memory_order_relaxed);
  slot.base.store(start, std::memory_order_relaxed);
  slot.length.store(length, std::memory_order_relaxed);
  const uint32_t key = (generation_[index].next() << index_bits) | index;
  slot.key.store(key, std::memory_order_seq_cst);
  ++live_;
  return key;
}

Result<void> Memory::remove(uint32_t key) {
  std::unique_lock lock(mutex_);
  const uint32_t index = key & ((1U << index_bits) - 1);
  if (key == 0 || entry(index) == nullptr) {
    return fail(Errc::invalid_argument, "memory deregistration: unknown key");
  }
  Entry& slot = (*owned_[index / chunk_entries])[index % chunk_entries];
  if (slot.key.load(std::memory_order_relaxed) != key) {
    return fail(Errc::invalid_argument, "memory deregistration: key is stale or was never given");
  }
  slot.key.store(0, std::memory_order_seq_cst);
  // A worker that entered before the store may still use the old key; one that enters after it
  // sees 0 (both sides are sequentially consistent).
  for (MemoryGuard* guard : guards_) {
    const uint64_t epoch = guard->epoch_.load(std::memory_order_seq_cst);
    if ((epoch & 1) != 0) {
      while (guard->epoch_.load(std::memory_order_seq_cst) == epoch) {
        sched_yield();
      }
    }
  }
  --live_;
  try {
    free_.push_back(index);
  } catch (const std::bad_alloc&) {
    return {};  // the key is dead all the same, and its place stays unused
  }
  return {};
}

std::byte* Memory::resolve(uint32_t key, uint64_t domain, uint64_t address, uint64_t length) const {
  const Entry* slot = entry(key & ((1U << index_bits) - 1));
  if (key == 0 || slot == nullptr || slot->key.load(std::memory_order_seq_cst) != key) {
    return nullptr;
  }
  const uint64_t base = slot->base.load(std::memory_order_relaxed);
  const uint64_t size = slot->length.load(std::memory_order_relaxed);
  if (slot->domain.load(std::memory_order_relaxed) != domain || address < base ||
      address - base > size || length > size - (address - base)) {
    return nullptr;
  }
  return reinterpret_cast<std::byte*>(address);
}

bool Memory::write(MemoryGuard& guard, uint32_t key, uint64_t domain, uint64_t address,
                   std::span<const std::byte> bytes, bool polled) const {
  guard.enter();
  std::byte* to = resolve(key, domain, address, bytes.size());
  if (to != nullptr && polled) {
    copy_lines(to, bytes.data(), bytes.size());
  } else if (to != nullptr) {
    std::memcpy(to, bytes.data(), bytes.size());
  }
  guard.exit();
  return to != nullptr;
}

void Memory::attach(MemoryGuard* guard) {
  std::lock_guard lock(mutex_);
  guards_.push_back(guard);
}

void Memory::detach(MemoryGuard* guard) {
  std::lock_guard lock(mutex_);
  std::erase(guards_, guard);
}

size_t Memory::size() const {
  std::lock_guard lock(mutex_);
  return live_;
}

}  // namespace nccl_ha::fabric
