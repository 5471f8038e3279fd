// Starting threads without exceptions.
#pragma once

#include <cerrno>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "runtime/base/log.h"
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
  } catch (const std::bad_alloc&) {
    return fail(Errc::system, {}, ENOMEM);
  }
}

/// What a thread of the library's own is given to do: an exception that memory is out ends here, as
/// no thread of the host's may end by it.
template <class Body>
void run_to_its_end(Body&& body, const char* what) {
  try {
    body();
  } catch (const std::bad_alloc&) {
    NHA_LOG_WARN_LIMITED("out of memory for {}", what);
  }
}

}  // namespace nccl_ha
