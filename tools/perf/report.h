// The table and the JSON that `nccl-ha perf` prints.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tools/perf/options.h"

namespace nccl_ha::tools {

/// Describes one plugin of the run, from its ranks' ready message.
struct PluginInfo {
  std::string asked;  ///< as on the command line
  std::string name;
  std::string file;
  int abi = 0;
  std::string device;
  int speed_mbps = 0;
  std::string settings;  ///< that were given for it alone: "NAME=VALUE NAME=VALUE"
};
/// One of several by its letter, as in the table, with what is set for it: "A: HA", "B: HA, X=1".
std::string plugin_label(const std::vector<PluginInfo>& plugins, size_t index);

/// One round of one plugin at one size.
struct Round {
  double time_s = 0;
  double cpu_s = 0;
  uint64_t wrong = 0;
  uint64_t iterations = 0;
  std::string finding;
  double min_us = 0;  ///< of iterations, as the next four: each of the slowest rank
  double p50_us = 0;
  double mean_us = 0;
  double p99_us = 0;
  double max_us = 0;
  std::vector<std::pair<std::string, double>> faults;  ///< each with its stall in milliseconds
};

/// All rounds of one plugin at one size, and their medians.
struct Cell {
  std::vector<Round> rounds;

  double median_time_s() const;
  double median_cpu_s() const;
  double median_p50_us() const;
  double median_p99_us() const;
  double min_us() const;
  double median_mean_us() const;
  double max_us() const;
  uint64_t wrong() const;
};

/// One size.
struct Row {
  uint64_t bytes = 0;
  uint64_t count = 0;
  std::vector<Cell> cells;  ///< one or two plugins
};

/// Derived numbers of one cell.
struct Speeds {
  double algbw_gigabytes_per_s = 0;  ///< 10^9 bytes per second
  double busbw_gigabytes_per_s = 0;
  double cpu_s_per_gb = 0;  ///< processor time of all ranks per 10^9 bytes of the size column
};
Speeds speeds(const PerfOptions& options, uint32_t ranks, const Row& row, const Cell& cell);

/// First plugin against second: bandwidths divided (more than 1: the first is faster), or half
/// round-trip medians divided (less than 1: the first is faster).  0 when it cannot be told.
double ratio(const PerfOptions& options, const Row& row);

/// For a terminal of `columns` (0: none), that it may be narrower than the table.
std::string header_text(const PerfOptions& options, uint32_t ranks, uint32_t hosts,
                        const std::vector<PluginInfo>& plugins, size_t columns);
/// Of the table, in columns.
size_t table_width(const PerfOptions& options, size_t plugins);
/// A line that says so if a terminal of `columns` (0: none) is narrower; or nothing.
std::string width_text(size_t table, size_t columns);
std::string row_text(const PerfOptions& options, uint32_t ranks, const Row& row);
/// What the faults of a run cost; empty when there were none.
std::string faults_text(const Round& round);
/// Averages and the verdict.
std::string footer_text(const PerfOptions& options, uint32_t ranks, const std::vector<Row>& rows,
                        const std::vector<PluginInfo>& plugins, bool complete);

/// Everything above, for programs.
nlohmann::json report_json(const PerfOptions& options, uint32_t ranks, uint32_t hosts,
                           const std::vector<Row>& rows, const std::vector<PluginInfo>& plugins,
                           bool ok, const std::vector<std::string>& errors);

/// Median of a non-empty list; the mean of the middle two when their number is even.
double median(std::vector<double> values);

}  // namespace nccl_ha::tools
