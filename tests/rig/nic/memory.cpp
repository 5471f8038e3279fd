#include "tests/rig/nic/memory.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "tests/rig/nic/firmware.h"

namespace nccl_ha::emulated {
namespace {

/// In the order of the addresses, as a NIC writes: protocol LL128 looks at the last word of 128
/// bytes while they come.  memcpy() has no such order.
void put(uint64_t address, const char* bytes, size_t length, bool careful) {
  if (careful) {
    const iovec ours{const_cast<char*>(bytes), length};
    const iovec theirs{reinterpret_cast<void*>(address), length};
    static_cast<void>(process_vm_writev(getpid(), &ours, 1, &theirs, 1, 0));
    return;
  }
  auto* to = reinterpret_cast<char*>(address);
  size_t done = 0;
  if (address % sizeof(uint64_t) == 0) {
    for (; done + sizeof(uint64_t) <= length; done += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, bytes + done, sizeof word);
      __atomic_store_n(reinterpret_cast<uint64_t*>(to + done), word, __ATOMIC_RELEASE);
    }
  }
  for (; done < length; ++done) {
    __atomic_store_n(to + done, bytes[done], __ATOMIC_RELEASE);
  }
}

}  // namespace

Region* Memory::add(std::unique_ptr<Region> region) {
  next_key_ += 0x11;
  region->lkey = next_key_ << 8U;  // the low bits are a variant: no two keys are neighbours
  region->rkey = region->lkey;
  Region* raw = region.get();
  regions_[raw->lkey] = std::move(region);
  return raw;
}

void Memory::remove(Region* region) {
  land();
  push_to_gpus(UINT64_MAX);  // nothing is written once this returns
  regions_.erase(region->lkey);
}

void Memory::revoke(size_t left) {
  if (regions_.size() > left) {
    land();
    push_to_gpus(UINT64_MAX);
  }
  while (regions_.size() > left) {
    revoked_.insert(regions_.extract(std::prev(regions_.end())));
  }
}

Region* Memory::find(uint32_t key, uint64_t address, uint64_t length, const ibv_pd* domain,
                     uint32_t access) {
  const auto found = regions_.find(key);
  if (found == regions_.end()) {
    counters_.revoked += revoked_.count(key);
    return nullptr;
  }
  Region& region = *found->second;
  const auto start = reinterpret_cast<uint64_t>(region.addr);
  const bool inside =
      address >= start && length <= region.length && address - start <= region.length - length;
  return inside && region.pd == domain && (region.access & access) == access ? &region : nullptr;
}

void Memory::write(const Region& region, uint64_t address, const char* bytes, size_t length,
                   bool careful) {
  if (length == 0) {
    return;
  }
  if (region.on_device) {
    for_gpus_.push_back({now_ns() + static_cast<uint64_t>(settings_.gpu_late.count()), address,
                         std::vector<char>(bytes, bytes + length), careful});
    return;
  }
  if (!settings_.any_order) {
    put(address, bytes, length, careful);
    return;
  }
  const uint64_t due = now_ns() + static_cast<uint64_t>(settings_.late.count());
  for (size_t done = 0; done < length;) {
    const size_t part =
        std::min<size_t>(length - done, settings_.tear - (address + done) % settings_.tear);
    blocks_.push_back(
        {due, address + done, std::vector<char>(bytes + done, bytes + done + part), careful});
    done += part;
  }
  // Some show now, the others later; which is drawn.
  for (size_t i = blocks_.size(); i > 1; --i) {
    std::swap(blocks_[i - 1], blocks_[draw(seed_, ++drawn_) % i]);
  }
  for (size_t keep = blocks_.size() / 2; blocks_.size() > keep; blocks_.pop_back()) {
    const Waiting& one = blocks_.back();
    put(one.address, one.bytes.data(), one.bytes.size(), one.careful);
  }
}

void Memory::land() {
  for (; !blocks_.empty(); blocks_.pop_back()) {
    const Waiting& one = blocks_.back();
    put(one.address, one.bytes.data(), one.bytes.size(), one.careful);
  }
}

void Memory::push_to_gpus(uint64_t due) {
  for (; !for_gpus_.empty() && for_gpus_.front().due <= due; for_gpus_.pop_front()) {
    const Waiting& one = for_gpus_.front();
    put(one.address, one.bytes.data(), one.bytes.size(), one.careful);
  }
}

uint64_t Memory::next_due() const {
  uint64_t due = for_gpus_.empty() ? UINT64_MAX : for_gpus_.front().due;
  for (const Waiting& one : blocks_) {
    due = std::min(due, one.due);
  }
  return due;
}

void Memory::land_what_is_due(uint64_t now) {
  if (!blocks_.empty() && next_due() <= now) {
    land();
  }
  push_to_gpus(now);
}

}  // namespace nccl_ha::emulated
