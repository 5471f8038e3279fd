// Processes that keep processors busy beside a measurement, as data loaders beside a job do.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "runtime/base/result.h"

namespace nccl_ha::tools {

/// They end with it, and with the thread that started them.
class Neighbours {
 public:
  Neighbours() = default;
  ~Neighbours();
  Neighbours(const Neighbours&) = delete;
  Neighbours& operator=(const Neighbours&) = delete;

  Result<void> start(uint32_t count);

 private:
  std::vector<pid_t> pids_;
};

}  // namespace nccl_ha::tools
