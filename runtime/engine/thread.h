// Starting threads without exceptions.
#pragma once

#include <system_error>
#include <thread>
#include <utility>

#include "runtime/base/result.h"

namespace nccl_ha {

/// Any thread.  An error where the host gives no further thread.
template <class Body>
Result<std::thread> start_thread(Body&& body) {
  try {
    return std::thread(std::forward<Body>(body));
  } catch (const std::system_error& error) {
    return fail(
        Errc::system,
        "cannot start a thread; limits are RLIMIT_NPROC (ulimit -u), RLIMIT_AS (ulimit -v), "
        "kernel.threads-max and a control group's pids.max",
        error.code().value());
  }
}

}  // namespace nccl_ha
