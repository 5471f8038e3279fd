#include "tools/tune/judge.h"

#include <array>
#include <cmath>
#include <limits>

namespace nccl_ha::tools {

double student_t95(size_t degrees) {
  // Gosset's distribution, from the usual tables; the normal one's beyond them.
  constexpr std::array table = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306,
                                2.262,  2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
                                2.110,  2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064,
                                2.060,  2.056, 2.052, 2.048, 2.045, 2.042};
  if (degrees == 0) {
    return std::numeric_limits<double>::infinity();
  }
  return degrees <= table.size() ? table[degrees - 1] : 2.0;
}

RatioEstimate estimate_ratio(const std::vector<double>& ratios) {
  std::vector<double> logs;
  double sum = 0;
  for (const double ratio : ratios) {
    if (std::isfinite(ratio) && ratio > 0) {
      logs.push_back(std::log(ratio));
      sum += logs.back();
    }
  }
  RatioEstimate estimate;
  estimate.rounds = logs.size();
  if (logs.empty()) {
    return estimate;
  }
  const auto count = static_cast<double>(logs.size());
  const double mean = sum / count;
  estimate.mean = std::exp(mean);
  estimate.high = std::numeric_limits<double>::infinity();
  if (logs.size() < rounds_least) {
    return estimate;
  }
  double squares = 0;
  for (const double value : logs) {
    squares += (value - mean) * (value - mean);
  }
  const double error = std::sqrt(squares / (count - 1) / count) * student_t95(logs.size() - 1);
  estimate.low = std::exp(mean - error);
  estimate.high = std::exp(mean + error);
  return estimate;
}

}  // namespace nccl_ha::tools
