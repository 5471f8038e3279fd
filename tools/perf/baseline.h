// An earlier run to compare with: the JSON that it wrote.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "tools/perf/options.h"
#include "tools/perf/report.h"

namespace nccl_ha::tools {

/// This run against the earlier one at one size.
struct Compared {
  uint64_t bytes = 0;
  double then_us = 0;  ///< the median of its rounds: of a time, for latency of the p50
  double now_us = 0;
  double ratio = 0;            ///< now_us / then_us: less than 1 is faster
  double p = 1;                ///< see rank_sum_p()
  bool enough_rounds = false;  ///< for p to say anything
};

/// The first plugin's rounds of an earlier run, by size.
class Baseline {
 public:
  /// Reads the file of `--json`.  One that cannot be read, or that is of another operation or
  /// another number of ranks, is an error.
  static Result<Baseline> read(const std::string& path, const PerfOptions& options, uint32_t ranks);
  /// The same of a document; errors name `path`.
  static Result<Baseline> of(const nlohmann::json& document, const std::string& path,
                             const PerfOptions& options, uint32_t ranks);

  /// The sizes that both have.
  std::vector<Compared> compare(const PerfOptions& options, const std::vector<Row>& rows) const;

  const std::string& title() const { return title_; }

 private:
  std::map<uint64_t, std::vector<double>> rounds_us_;
  std::string title_;
};

/// Lines below the table.
std::string compared_text(const Baseline& baseline, const std::vector<Compared>& all);
nlohmann::json compared_json(const Baseline& baseline, const std::vector<Compared>& all);

}  // namespace nccl_ha::tools
