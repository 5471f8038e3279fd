// Whether two groups of measurements differ.
#pragma once

#include <cstddef>
#include <vector>

namespace nccl_ha::tools {

/// Fewest measurements of each group with which a difference can show at all at 5 %.
inline constexpr size_t rank_sum_least = 4;

/// The two-sided p-value of Wilcoxon's rank-sum test (Mann and Whitney 1947): how likely ranks at
/// least this uneven are when both groups are of the same distribution.  Exact, with middle ranks
/// for ties, up to 60 values in all; a normal approximation beyond.  1 when a group is empty.
double rank_sum_p(const std::vector<double>& first, const std::vector<double>& second);

}  // namespace nccl_ha::tools
