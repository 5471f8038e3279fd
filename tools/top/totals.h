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
  /// A process's sum: what it has counted is both together.  A block that was given back is used
  /// again at last, and its values begin anew.
  struct Kept {
    uint64_t before = 0;
    uint64_t now = 0;
  };
  using Process = std::map<Series, Kept>;

  bool restore(const std::string& state);
  void take_file(const CounterSnapshot& snapshot, Process& process);

  bool state_read_ = true;
  std::map<std::string, Process> processes_;
  std::map<Series, uint64_t> ended_;
  std::map<Series, uint64_t> levels_;  ///< as they are now, and the most of what has a maximum
};

}  // namespace nccl_ha::tools
