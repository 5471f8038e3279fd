// Memory that paths use beside their users': a connection's tables, a relay's slots.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "runtime/base/result.h"
#include "runtime/fabric/memory.h"
#include "runtime/fabric/region_registry.h"

namespace nccl_ha::fabric {

/// Destroyed when no path uses it any more; the bytes are kept until no device does either.
class OwnMemory {
 public:
  OwnMemory() = default;
  virtual ~OwnMemory() = default;
  OwnMemory(const OwnMemory&) = delete;
  OwnMemory& operator=(const OwnMemory&) = delete;

  /// Makes it known, unless it is.  Called by whoever makes a path with it (PathOptions::memory),
  /// where its device may be asked.  no_memory: the device does not take it.
  virtual Result<void> enter() { return {}; }
  /// Once a path that was made with it has its address.
  virtual const RegionKeys& keys() const = 0;
};

/// Of paths whose bytes the processor moves: they know it at once.
class TableMemory final : public OwnMemory {
 public:
  /// `table` outlives it.  `domain` as in Memory::add().
  static Result<std::shared_ptr<OwnMemory>> make(Memory& table, uint64_t domain,
                                                 std::shared_ptr<void> bytes, size_t length) {
    auto made = std::make_shared<TableMemory>(table, std::move(bytes));
    auto key = table.add(domain, made->bytes_.get(), length);
    if (!key) {
      return key.error();
    }
    made->keys_ = {*key, *key, *key};
    return std::shared_ptr<OwnMemory>(std::move(made));
  }
  TableMemory(Memory& table, std::shared_ptr<void> bytes)
      : table_(table), bytes_(std::move(bytes)) {}
  ~TableMemory() override {
    if (keys_.handle != 0) {
      static_cast<void>(table_.remove(keys_.local_key));
    }
  }
  const RegionKeys& keys() const override { return keys_; }

 private:
  Memory& table_;
  std::shared_ptr<void> bytes_;
  RegionKeys keys_;
};

}  // namespace nccl_ha::fabric
