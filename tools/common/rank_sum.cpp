#include "tools/common/rank_sum.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <numeric>

namespace nccl_ha::tools {
namespace {

constexpr size_t exact_max = 60;

struct Ranked {
  std::vector<size_t> doubled;  ///< twice the rank of each value of all, in rising order
  size_t of_first = 0;          ///< the sum over the first group
};

Ranked ranked(const std::vector<double>& first, const std::vector<double>& second) {
  std::vector<std::pair<double, bool>> all;
  all.reserve(first.size() + second.size());
  for (const double value : first) {
    all.emplace_back(value, true);
  }
  for (const double value : second) {
    all.emplace_back(value, false);
  }
  std::sort(all.begin(), all.end());
  Ranked out;
  for (size_t begin = 0; begin < all.size();) {
    size_t end = begin;
    while (end < all.size() && all[end].first == all[begin].first) {
      ++end;
    }
    for (size_t i = begin; i < end; ++i) {
      out.doubled.push_back(begin + end + 1);  // ranks begin+1 to end, their middle twice
      out.of_first += all[i].second ? begin + end + 1 : 0;
    }
    begin = end;
  }
  return out;
}

}  // namespace

double rank_sum_p(const std::vector<double>& first, const std::vector<double>& second) {
  const size_t taken = first.size();
  const size_t count = taken + second.size();
  if (first.empty() || second.empty()) {
    return 1;
  }
  const Ranked ranks = ranked(first, second);
  const size_t total = std::accumulate(ranks.doubled.begin(), ranks.doubled.end(), size_t{0});
  const double middle = static_cast<double>(taken) * static_cast<double>(count + 1);
  const double off = std::abs(static_cast<double>(ranks.of_first) - middle);
  if (count > exact_max) {
    double square = 0;
    for (const size_t one : ranks.doubled) {
      const double from = static_cast<double>(one) - static_cast<double>(count + 1);
      square += from * from;
    }
    const auto n = static_cast<double>(count);
    const double variance =
        square / n * static_cast<double>(taken) * static_cast<double>(second.size()) / (n - 1);
    return variance > 0 ? std::erfc(off / std::sqrt(2 * variance)) : 1;
  }
  // ways[k][s]: in how many ways k of the ranks so far have the sum s.
  std::vector<std::vector<double>> ways(taken + 1, std::vector<double>(total + 1, 0));
  ways[0][0] = 1;
  for (const size_t one : ranks.doubled) {
    for (size_t k = taken; k > 0; --k) {
      for (size_t sum = total; sum >= one; --sum) {
        ways[k][sum] += ways[k - 1][sum - one];
      }
    }
  }
  double all = 0;
  double far = 0;
  for (size_t sum = 0; sum <= total; ++sum) {
    all += ways[taken][sum];
    far += std::abs(static_cast<double>(sum) - middle) >= off ? ways[taken][sum] : 0;
  }
  return far / all;
}

}  // namespace nccl_ha::tools
