// Registered memory for frames: places of equal size.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/fabric/memory.h"
#include "runtime/fabric/path.h"

namespace nccl_ha::relay {

/// Destroyed when no path uses it any more.
class FrameMemory {
 public:
  explicit FrameMemory(fabric::Memory& memory) : memory_(memory) {}
  ~FrameMemory() { release(); }
  FrameMemory(const FrameMemory&) = delete;
  FrameMemory& operator=(const FrameMemory&) = delete;

  Result<void> allocate(uint64_t domain, size_t places, size_t place_bytes) {
    release();
    bytes_.resize(places * place_bytes);
    place_bytes_ = place_bytes;
    auto key = memory_.add(domain, bytes_.data(), bytes_.size());
    if (!key) {
      return key.error();
    }
    key_ = *key;
    return {};
  }
  std::byte* place(size_t index) { return bytes_.data() + index * place_bytes_; }
  const std::byte* place(size_t index) const { return bytes_.data() + index * place_bytes_; }
  size_t place_bytes() const { return place_bytes_; }
  uint32_t key() const { return key_; }
  size_t bytes() const { return bytes_.size(); }
  fabric::Gather gather(size_t index, size_t from, size_t length) {
    return {place(index) + from, static_cast<uint32_t>(length), key_};
  }

 private:
  void release() {
    if (key_ != 0) {
      static_cast<void>(memory_.remove(key_));
      key_ = 0;
    }
  }

  fabric::Memory& memory_;
  std::vector<std::byte> bytes_;
  size_t place_bytes_ = 0;
  uint32_t key_ = 0;  ///< 0: not registered
};

}  // namespace nccl_ha::relay
