// Where probes come from and go to, and where flushes read to: nobody looks at what is there.
#pragma once

#include <cstddef>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/fabric/path.h"
#include "runtime/fabric/verbs/device.h"

namespace nccl_ha::fabric::verbs {

/// Registered memory of a port.
class Scratch {
 public:
  explicit Scratch(Device& device) : device_(device) {}
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  Result<void> open();
  /// To send, at most bytes_max.
  Gather source(uint32_t bytes) const { return {memory_.data(), bytes, region_.local_key()}; }
  /// To write to.
  std::byte* target() { return memory_.data() + bytes_max; }
  uint32_t key() const { return region_.local_key(); }

  static constexpr uint32_t bytes_max = 8192;  ///< of a source, and of a target

 private:
  Device& device_;
  std::vector<std::byte> memory_;
  Region region_{};
};

}  // namespace nccl_ha::fabric::verbs
