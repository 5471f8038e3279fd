// Where probes come from and are written to, and where flushes read to: nobody looks at it.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>

#include "runtime/base/pages.h"
#include "runtime/base/result.h"
#include "runtime/fabric/path.h"

namespace nccl_ha::fabric::verbs {

class Device;

/// Registered memory of a protection domain.
class Scratch {
 public:
  explicit Scratch(const Device& device) : device_(device) {}
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  /// For queue pairs of `domain`.
  Result<void> open(ibv_pd* domain);
  bool is_open() const { return region_ != nullptr; }
  /// To send, at most bytes_max.
  Gather source(uint32_t bytes) const { return {memory_.data(), bytes, key()}; }
  /// To write to, for a peer too.
  std::byte* target() { return memory_.data() + bytes_max; }
  uint32_t key() const { return region_->lkey; }
  uint32_t remote_key() const { return region_->rkey; }

  static constexpr uint32_t bytes_max = 8192;  ///< of a source, and of a target

 private:
  const Device& device_;
  Pages memory_;
  ibv_mr* region_ = nullptr;
};

}  // namespace nccl_ha::fabric::verbs
