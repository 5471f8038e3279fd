// `nccl-ha stat --textfile`: what the processes of a host count, for a time series database. Labels
// that grow without end, as numbers of processes, are summed over; what ended processes have
// counted stays in the sums.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "tools/top/reading.h"

namespace nccl_ha::tools {

class CounterTotals {
 public:
  /// `state`: what state() gave the last time; what cannot be read begins anew.
  explicit CounterTotals(const std::string& state);

  /// False: there was a state, and it cannot be read.
  bool state_read() const { return state_read_; }
  void take(const CounterReading& reading);
  /// In Prometheus's text format, in base units.
  std::string metrics(const std::string& host) const;
  std::string state() const;

 private:
  using Series = std::pair<std::string, std::string>;  // "SCOPE_COUNTER", NIC or ""
  using Sums = std::map<Series, uint64_t>;
  struct Process {
    /// Of each block's counters: a path's block has another NIC's name once the path leads there,
    /// and what it counts from then on is that NIC's.
    std::map<std::pair<uint64_t, std::string>, uint64_t> last;
    Sums sums;
  };

  bool restore(const std::string& state);
  void take_file(const CounterSnapshot& snapshot, Process& process);
  static void add(const Sums& sums, Sums& to);

  bool state_read_ = true;
  std::map<std::string, Process> processes_;
  Sums ended_;
  Sums levels_;  ///< as they are now, and the most of what has a maximum
};

}  // namespace nccl_ha::tools
