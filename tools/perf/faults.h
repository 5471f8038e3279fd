// Faults that a benchmark injects into its lab while it runs, and what each of them cost.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/random.h"
#include "tools/lab/request.h"
#include "tools/lab/state.h"

namespace nccl_ha::tools {

/// One step of `--fault`: a request to the lab and when, counted from the beginning of its round.
struct FaultStep {
  lab::Request request;
  std::string text;
  std::string file;  ///< not before this is there, from when on the round counts anew; empty: none
  Duration earliest{};
  Duration latest{};  ///< drawn anew for each round
};

/// "cut rail0 --for 300ms@0.5s..1s, heal@5s", "cut rail0@/a/file, heal@1s".
Result<std::vector<FaultStep>> parse_faults(std::string_view text);

/// Longest plan times rounds.
inline constexpr size_t faults_max = 500;

/// A stretch in which a rank's transfer saw nothing complete.
struct Gap {
  Instant begin;
  Instant end;
};

/// A fault that happened.
struct FaultReport {
  std::string what;
  Instant at;
  Duration stall{};  ///< the longest gap after it and before the next one
};

/// Carries out a plan on a thread of its own.
class FaultRunner {
 public:
  FaultRunner(std::vector<FaultStep> plan, uint32_t rounds, uint64_t seed);
  ~FaultRunner();
  FaultRunner(const FaultRunner&) = delete;
  FaultRunner& operator=(const FaultRunner&) = delete;

  /// Begins; an error when this process runs in no lab.
  Result<void> start();
  /// False once all steps have been carried out and what they did is over, or one was refused.
  bool active();
  /// What was done, with the stalls that follow from `gaps`; an error when a step was refused.
  Result<std::vector<FaultReport>> finish(const std::vector<Gap>& gaps);

 private:
  void run();
  /// Waits until then; false when it is to end.
  bool wait_until(Instant when);
  bool wait_for(const std::string& file);

  const std::vector<FaultStep> plan_;
  const uint32_t rounds_;
  Random random_;
  SteadyClock clock_;
  lab::KnownLab lab_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  bool over_ = false;
  std::vector<FaultReport> done_;
  Error refused_;
  std::thread thread_;
};

/// Value at a share of a sorted, non-empty list (nearest rank).
Duration percentile(const std::vector<Duration>& sorted, double share);

}  // namespace nccl_ha::tools
