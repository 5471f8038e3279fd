// Whether this thread is in a turn of a worker, where nothing may wait for a device's firmware.
#pragma once

#include <utility>

namespace nccl_ha {

/// While one lives, what this thread does holds up the data of all connections of a worker.  Nests,
/// and one with `is` false is an exception within another.
class DataTurn {
 public:
  explicit DataTurn(bool is = true) : before_(std::exchange(here, is)) {}
  ~DataTurn() { here = before_; }
  DataTurn(const DataTurn&) = delete;
  DataTurn& operator=(const DataTurn&) = delete;

  static bool is_here() { return here; }

 private:
  // NCCL opens the plugin with dlopen(), where this is found by a call unless it says so.
  [[gnu::tls_model("initial-exec")]] static inline constinit thread_local bool here = false;

  const bool before_;
};

}  // namespace nccl_ha
