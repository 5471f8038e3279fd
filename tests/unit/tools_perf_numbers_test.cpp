// What nccl-ha perf makes of its measurements: batches, comparisons, the table's width.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tools/common/rank_sum.h"
#include "tools/perf/baseline.h"
#include "tools/perf/pace.h"
#include "tools/perf/report.h"

namespace nccl_ha::tools {
namespace {

using nlohmann::json;

TEST(Pace, batches_grow_and_end_with_the_time) {
  for (const double each_s : {1e-6, 1e-3, 0.3, 5.0}) {
    uint64_t done = 0;
    uint64_t batches = 0;
    double now = 0;
    while (const uint64_t more = next_batch(done, now, 2)) {
      done += more;
      now += static_cast<double>(more) * each_s;
      ++batches;
    }
    EXPECT_GE(now, 2) << each_s;
    EXPECT_LE(now, 2 + each_s * 1.01) << each_s;
    EXPECT_LE(batches, 130U) << each_s << ": the ranks agree before each";
  }
  EXPECT_EQ(next_batch(0, 100, 2), 1U) << "one is measured in any case";
  EXPECT_EQ(next_batch(5, 0, 2), 5U) << "a clock that stands still";
}

TEST(Pace, what_becomes_slow_near_the_end_ends_in_time_nevertheless) {
  for (const double begin : {1.5, 1.9, 1.99}) {
    for (const double times : {5.0, 40.0}) {
      uint64_t done = 0;
      double now = 0;
      while (const uint64_t more = next_batch(done, now, 2)) {
        done += more;
        now += static_cast<double>(more) * (now < begin ? 1e-5 : times * 1e-5);
      }
      EXPECT_LE(now, 2 + times * 2 / 100.0) << "the last batch, " << times << " times slower";
    }
  }
}

// By counting: of the 252 ways to choose 5 of 10 two are as far apart as can be.
TEST(RankSum, has_the_values_that_counting_gives) {
  EXPECT_NEAR(rank_sum_p({1, 2, 3, 4, 5}, {6, 7, 8, 9, 10}), 2.0 / 252, 1e-12);
  EXPECT_NEAR(rank_sum_p({6, 7, 8, 9, 10}, {1, 2, 3, 4, 5}), 2.0 / 252, 1e-12);
  EXPECT_NEAR(rank_sum_p({1, 2, 3}, {4, 5, 6}), 2.0 / 20, 1e-12);
  EXPECT_NEAR(rank_sum_p({1, 2, 3, 5}, {4, 6, 7, 8}), 4.0 / 70, 1e-12);
  EXPECT_EQ(rank_sum_p({1, 4}, {2, 3}), 1);
  EXPECT_EQ(rank_sum_p({7, 7, 7}, {7, 7, 7}), 1) << "ties";
  EXPECT_EQ(rank_sum_p({}, {1}), 1);
}

TEST(RankSum, counting_and_the_approximation_meet) {
  std::vector<double> low;
  std::vector<double> high;
  for (int i = 0; i < 30; ++i) {
    low.push_back(i);
    high.push_back(i + 8.5);
  }
  const double counted = rank_sum_p(low, high);
  low.push_back(14.2);
  high.push_back(23.3);
  const double approximated = rank_sum_p(low, high);
  EXPECT_LT(counted, 0.05);
  EXPECT_NEAR(std::log(approximated), std::log(counted), 0.5);
}

TEST(RankSum, four_of_each_are_the_least_that_can_show_a_difference) {
  EXPECT_GT(rank_sum_p({1, 2, 3}, {4, 5, 6}), 0.05);
  EXPECT_LT(rank_sum_p({1, 2, 3, 4}, {5, 6, 7, 8}), 0.05);
  EXPECT_EQ(rank_sum_least, 4U);
}

json run_of(const std::vector<double>& times_us) {
  json rounds = json::array();
  for (const double time : times_us) {
    rounds.push_back({{"time_us", time}});
  }
  return {{"operation", "all_reduce"},
          {"ranks", 2},
          {"version", "1.0"},
          {"results", {{{"bytes", 1024}, {"plugins", {{{"rounds", rounds}}}}}}}};
}

Row row_of(uint64_t bytes, const std::vector<double>& times_us) {
  Row row;
  row.bytes = bytes;
  row.cells.resize(1);
  for (const double time : times_us) {
    row.cells[0].rounds.emplace_back().time_s = time * 1e-6;
  }
  return row;
}

TEST(Baseline, tells_a_difference_from_chance) {
  const PerfOptions options;
  const auto baseline = Baseline::of(run_of({10, 11, 12, 13, 14}), "f", options, 2);
  ASSERT_TRUE(baseline) << baseline.error().message();
  const auto compared = baseline->compare(
      options, {row_of(512, {1}), row_of(1024, {5, 6, 7, 8, 9}), row_of(2048, {1})});
  ASSERT_EQ(compared.size(), 1U) << "the one size of both";
  EXPECT_DOUBLE_EQ(compared[0].ratio, 7.0 / 12);
  EXPECT_NE(compared_text(*baseline, compared).find(" faster\n"), std::string::npos);
  const auto verdict_of = [&](const std::vector<double>& now) {
    return compared_json(*baseline,
                         baseline->compare(options, {row_of(1024, now)}))["sizes"][0]["verdict"];
  };
  EXPECT_EQ(verdict_of({15, 16, 17, 18, 19}), "slower");
  EXPECT_EQ(verdict_of({10.5, 11.5, 12.5, 13.5, 9}), "no difference shown");
  EXPECT_EQ(verdict_of({1, 1, 1}), "too few rounds to tell");
  EXPECT_NE(compared_text(*baseline, {}).find("no size is in both"), std::string::npos);
}

TEST(Baseline, of_something_else_is_refused) {
  PerfOptions options;
  const auto said = [&](const json& document, uint32_t ranks = 2) {
    const auto read = Baseline::of(document, "old.json", options, ranks);
    return read ? std::string("accepted") : read.error().message();
  };
  EXPECT_NE(said(run_of({1}), 3).find("old.json: it is of 2 ranks, not of 3"), std::string::npos);
  EXPECT_NE(said(run_of({})).find("no rounds"), std::string::npos);
  for (const char* text : {"[]", "{}", "3", R"({"operation": 5})",
                           R"({"operation": "all_reduce", "ranks": 2, "results": [{}]})"}) {
    EXPECT_NE(said(json::parse(text)).find("it is not what `nccl-ha perf --json` writes"),
              std::string::npos)
        << text << ": " << said(json::parse(text));
  }
  options.op = OpKind::alltoall;
  EXPECT_NE(said(run_of({1})).find("it is of all_reduce, not of alltoall"), std::string::npos);
}

TEST(Table, is_as_wide_as_the_manual_says) {
  PerfOptions options;
  EXPECT_EQ(table_width(options, 1), 94U);
  options.percentiles = true;
  EXPECT_EQ(table_width(options, 1), 127U);
  options.op = OpKind::latency;
  EXPECT_LE(table_width(options, 1), 80U);
  EXPECT_EQ(width_text(94, 80), "# the table is 94 columns wide, this terminal 80\n");
  EXPECT_EQ(width_text(94, 94), "");
  EXPECT_EQ(width_text(94, 0), "") << "no terminal";
}

}  // namespace
}  // namespace nccl_ha::tools
