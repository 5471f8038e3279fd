// Registered memory of the providers that move bytes with the CPU.
//
// Keys are looked up by worker threads without a lock while other threads register and deregister.
// Deregistration is as strict as a NIC's: when remove() has returned, no worker reads or writes the
// region any more, so the caller may unmap it (NCCL does so at abort, with traffic still running).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/base/secret.h"

namespace nccl_ha::fabric {

/// Marks the stretches in which one worker touches registered memory.  remove() waits for the end
/// of a stretch that began before the key became invalid; a stretch is one bounded batch of work.
class MemoryGuard {
 public:
  void enter() { epoch_.fetch_add(1, std::memory_order_seq_cst); }
  void exit() { epoch_.fetch_add(1, std::memory_order_seq_cst); }

 private:
  friend class Memory;
  alignas(64) std::atomic<uint64_t> epoch_{0};  // odd: inside
};

class Memory {
 public:
  Memory();
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  /// Before the first key: what keys are drawn from, else kernel_secrets().
  void set_secrets(SecretSource& secrets) { secrets_ = &secrets; }
  /// Any thread.  `domain` ties the region to one connection.  The key is never 0, and no key tells
  /// of another one.
  Result<uint32_t> add(uint64_t domain, void* base, size_t length);
  /// Any thread.  Waits (bounded by one batch of a worker) until nobody uses the region.
  Result<void> remove(uint32_t key);

  /// Inside a guard only: the address itself when [address, address + length) lies in the region
  /// of `key` and the region belongs to `domain`; else nullptr.
  std::byte* resolve(uint32_t key, uint64_t domain, uint64_t address, uint64_t length) const;

  /// On the thread of `guard`, which is attached and not entered.  Copies to
  /// [address, address + bytes.size()) if that is as resolve() wants it; line by line where
  /// somebody polls it.  remove() waits for the end of it.
  [[nodiscard]] bool write(MemoryGuard& guard, uint32_t key, uint64_t domain, uint64_t address,
                           std::span<const std::byte> bytes, bool polled) const;

  /// Any thread, before the worker's first stretch / after its last.
  void attach(MemoryGuard* guard);
  void detach(MemoryGuard* guard);

  size_t size() const;

 private:
  static constexpr uint32_t index_bits = 20;
  static constexpr uint32_t chunk_entries = 1024;
  static constexpr size_t resting_places = 1024;
  static constexpr uint32_t chunks_max = (1U << index_bits) / chunk_entries;
  struct Entry {
    std::atomic<uint32_t> key{0};  // 0: free
    std::atomic<uint64_t> domain{0};
    std::atomic<uint64_t> base{0};
    std::atomic<uint64_t> length{0};
  };
  using Chunk = std::array<Entry, chunk_entries>;
  /// Of the keys of one place: begins where it is drawn, and does not come back before all others.
  struct Generation {
    uint16_t now = 0;
    uint16_t step = 1;  ///< odd
    uint32_t next();
  };
  const Entry* entry(uint32_t index) const;
  uint32_t take_fresh();

  mutable std::mutex mutex_;
  std::array<std::atomic<Chunk*>, chunks_max> chunks_{};
  std::vector<std::unique_ptr<Chunk>> owned_;
  std::deque<uint32_t> free_;    // oldest first, so that a key stays dead for long
  std::vector<uint32_t> fresh_;  ///< places that were never used, of the chunks that there are
  std::vector<Generation> generation_;
  SecretSource* secrets_ = &kernel_secrets();
  std::vector<MemoryGuard*> guards_;
  uint32_t used_ = 0;
  size_t live_ = 0;
};

}  // namespace nccl_ha::fabric
