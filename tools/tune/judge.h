// How sure it is that one setting is faster than another.
#pragma once

#include <string>
#include <vector>

namespace nccl_ha::tools {

/// Of ratios of bandwidths, each of two rounds that followed each other: their geometric mean, and
/// the interval that holds the true one with 95%.
struct RatioEstimate {
  double mean = 1;
  double low = 0;
  double high = 0;
  size_t rounds = 0;
  /// Surely more than 1; surely less.
  bool faster() const { return low > 1; }
  bool slower() const { return rounds > 1 && high < 1; }
};

/// With fewer nothing is sure: of two ratios the interval would reach over all that can be
/// measured.
inline constexpr size_t rounds_least = 3;

/// By Student's t for the logarithms of the ratios; with less than rounds_least of them the
/// interval is from 0 to infinity.
RatioEstimate estimate_ratio(const std::vector<double>& ratios);

/// The two-sided 95% quantile of Student's t.
double student_t95(size_t degrees);

}  // namespace nccl_ha::tools
