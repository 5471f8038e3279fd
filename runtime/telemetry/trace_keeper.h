// Writes dumps of this process's counters and flight recorders when something went wrong, or when
// it is asked to by a signal.
//
// A thread of its own sleeps until somebody asks, so that whoever moves data only says that there
// is something to keep.  A disk or a server that does not answer holds up that thread and nobody
// else: it is left behind then.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include "runtime/base/config.h"
#include "runtime/base/process_life.h"
#include "runtime/base/result.h"
#include "runtime/telemetry/counter_file.h"
#include "runtime/telemetry/trace_dump.h"
#include "runtime/telemetry/trace_schedule.h"
#include "runtime/telemetry/trace_signal.h"

namespace nccl_ha {

class TraceKeeper {
 public:
  struct Options {
    std::string directory;                 ///< where dumps go
    std::chrono::milliseconds interval{};  ///< between two dumps that nobody asked for
    uint64_t bytes_max = 0;                ///< of all dumps of this user in it
    bool on_signal = true;                 ///< SIGUSR2
    /// The directory may be one that stops answering.  The library stays loaded then, as it could
    /// not be unloaded around a thread that hangs (runtime/base/own_thread.h).
    bool may_hang = false;
    std::chrono::milliseconds settle{50};        ///< TraceSchedule::Limits
    std::chrono::milliseconds stop_limit{2000};  ///< for what is still to be written at the end
    std::function<Result<void>(const std::string& path, std::span<const std::byte>)> write =
        write_trace;
  };
  static Options options_of(const Config& config);

  /// Null: there is nothing to dump, or none are wanted; with a line in the log where something
  /// failed.
  static std::unique_ptr<TraceKeeper> start(std::shared_ptr<CounterFile> file,
                                            const Options& options);
  /// Writes what was asked for before, also what was to wait.  Takes Options::stop_limit at most.
  ~TraceKeeper();
  TraceKeeper(const TraceKeeper&) = delete;
  TraceKeeper& operator=(const TraceKeeper&) = delete;

  /// Any thread, at any time; neither blocks nor allocates.
  void ask(TraceCause cause);

  /// How many dumps were written.
  uint64_t written() const;

 private:
  class Writer;
  explicit TraceKeeper(std::shared_ptr<Writer> writer);

  const std::shared_ptr<Writer> writer_;  ///< shared with the thread
  const MadeHere owner_;
  std::optional<TraceSignal> signal_;
  std::thread thread_;
};

}  // namespace nccl_ha
