// Writes dumps of this process's counters and flight recorders when something went wrong, or when
// it is asked to by a signal.
//
// A thread of its own sleeps until somebody asks, so that whoever moves data only says that there
// is something to keep.
#pragma once

#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "runtime/base/config.h"
#include "runtime/base/result.h"
#include "runtime/telemetry/counter_file.h"

namespace nccl_ha {

/// Why a dump is made.
enum class TraceCause : uint8_t { failure, failover, signal };

class TraceKeeper {
 public:
  struct Options {
    std::string directory;                 ///< where dumps go
    std::chrono::milliseconds interval{};  ///< between two dumps that nobody asked for
    uint64_t bytes_max = 0;                ///< of all dumps of this user in it
    bool on_signal = true;                 ///< SIGUSR2
  };
  static Options options_of(const Config& config);

  /// Null: there is nothing to dump, or none are wanted; with a line in the log where something
  /// failed.
  static std::unique_ptr<TraceKeeper> start(std::shared_ptr<CounterFile> file,
                                            const Options& options);
  /// Writes what was asked for before.
  ~TraceKeeper();
  TraceKeeper(const TraceKeeper&) = delete;
  TraceKeeper& operator=(const TraceKeeper&) = delete;

  /// Any thread, at any time; neither blocks nor allocates.
  void ask(TraceCause cause);

  /// How many dumps were written.
  uint64_t written() const { return written_.load(std::memory_order_acquire); }

 private:
  TraceKeeper(std::shared_ptr<CounterFile> file, const Options& options, int fd);
  void run();
  void write(uint64_t causes);
  void take_signal();
  void leave_signal();

  const std::shared_ptr<CounterFile> file_;
  const Options options_;
  const int fd_;  ///< of eventfd(2): the thread sleeps on it
  const int owner_pid_;
  std::atomic<uint32_t> causes_{0};  ///< bits of TraceCause
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> written_{0};
  std::optional<std::chrono::steady_clock::time_point> last_failure_;
  std::optional<std::chrono::steady_clock::time_point> last_failover_;
  uint64_t left_out_ = 0;  ///< since the last one, by the limit of the rate
  size_t signal_place_ = SIZE_MAX;
  std::thread thread_;
};

}  // namespace nccl_ha
