// What keeps queue pairs of one connection from another's memory.
#pragma once

#include <infiniband/verbs.h>

#include <memory>
#include <optional>

#include "runtime/base/result.h"
#include "runtime/fabric/verbs/scratch.h"

namespace nccl_ha::fabric::verbs {

/// Queue pairs of a protection domain reach what is registered with it, and nothing else.  Kept by
/// them and by what is registered.
class ProtectionDomain {
 public:
  static Result<std::shared_ptr<ProtectionDomain>> open(const Device& device);
  ~ProtectionDomain();
  ProtectionDomain(const ProtectionDomain&) = delete;
  ProtectionDomain& operator=(const ProtectionDomain&) = delete;
  ibv_pd* get() const { return domain_; }
  Scratch& scratch() { return *scratch_; }

 private:
  explicit ProtectionDomain(const Device& device) : device_(device) {}
  const Device& device_;
  ibv_pd* domain_ = nullptr;
  std::optional<Scratch> scratch_;
};

}  // namespace nccl_ha::fabric::verbs
