// Where all processes of a lab live.
#pragma once

#include <sys/types.h>

#include "tools/common/process.h"

namespace nccl_ha::tools::lab {

/// The namespaces of processes, network and, without root, of users that a lab runs in.  Processes
/// started after enter() end when the process that entered does, however that happens: the kernel
/// kills a process namespace together with its first process, which waits for exactly that.
class Containment {
 public:
  ~Containment();
  /// Moves this process's network and its children-to-be.  Once per process, single-threaded.
  Result<void> enter();
  /// What a child that does not exec must close: while it is open, the lab lives.
  void let_go() { lifeline_.reset(); }

 private:
  Fd lifeline_;
  pid_t first_ = -1;
};

}  // namespace nccl_ha::tools::lab
