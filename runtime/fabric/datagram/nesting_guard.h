// A stretch in which registered memory is touched; nests.  One thread.
#pragma once

#include "runtime/fabric/memory.h"

namespace nccl_ha::fabric {

class NestingGuard {
 public:
  MemoryGuard& guard() { return guard_; }
  int depth() const { return depth_; }
  void enter() {
    if (depth_++ == 0) {
      guard_.enter();
    }
  }
  void exit() {
    if (--depth_ == 0) {
      guard_.exit();
    }
  }

 private:
  MemoryGuard guard_;
  int depth_ = 0;
};

class GuardScope {
 public:
  explicit GuardScope(NestingGuard& guard) : guard_(guard) { guard_.enter(); }
  ~GuardScope() { guard_.exit(); }
  GuardScope(const GuardScope&) = delete;
  GuardScope& operator=(const GuardScope&) = delete;

 private:
  NestingGuard& guard_;
};

}  // namespace nccl_ha::fabric
