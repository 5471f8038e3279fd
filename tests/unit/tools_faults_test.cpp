#include <gtest/gtest.h>

#include "tools/perf/faults.h"

namespace nccl_ha::tools {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Faults, APlanIsRequestsAndTimes) {
  const auto plan = parse_faults("cut rail0 --for 300ms@0.5s..1s, heal@5s");
  ASSERT_TRUE(plan) << plan.error().what;
  ASSERT_EQ(plan->size(), 2U);
  EXPECT_EQ((*plan)[0].text, "cut rail0 --for 300ms");
  EXPECT_EQ((*plan)[0].request.verb, lab::Verb::cut);
  EXPECT_EQ((*plan)[0].request.lasts, "300ms");
  EXPECT_EQ((*plan)[0].earliest, Duration(milliseconds(500)));
  EXPECT_EQ((*plan)[0].latest, Duration(seconds(1)));
  EXPECT_EQ((*plan)[1].request.verb, lab::Verb::heal);
  EXPECT_EQ((*plan)[1].earliest, (*plan)[1].latest);
}

TEST(Faults, AStepMayWaitForAFile) {
  const auto plan = parse_faults("cut rail0 --for 1s@/tmp/a..b, heal@5s");
  ASSERT_TRUE(plan) << plan.error().what;
  ASSERT_EQ(plan->size(), 2U);
  EXPECT_EQ((*plan)[0].file, "/tmp/a..b");
  EXPECT_EQ((*plan)[0].text, "cut rail0 --for 1s");
  EXPECT_EQ((*plan)[0].latest, Duration(0));
  EXPECT_EQ((*plan)[1].file, "");
  EXPECT_EQ((*plan)[1].earliest, Duration(seconds(5)));
}

TEST(Faults, WhatMakesNoSenseIsSaidSo) {
  for (const char* bad : {"cut rail0", "cut rail0@", "cut rail0@soon", "cut rail0@2s..1s", "@1s",
                          "bend rail0@1s", "cut@1s", "cut rail0 --for never@1s"}) {
    const auto plan = parse_faults(bad);
    EXPECT_EQ(plan.code(), Errc::invalid_argument) << bad;
    EXPECT_NE(plan.error().what.find("--fault"), std::string::npos) << plan.error().what;
  }
  EXPECT_TRUE(parse_faults("")->empty());
}

TEST(Faults, PercentilesAreValuesThatOccurred) {
  std::vector<Duration> values;
  for (int i = 1; i <= 100; ++i) {
    values.emplace_back(i);
  }
  EXPECT_EQ(percentile(values, 0.5), Duration(50));
  EXPECT_EQ(percentile(values, 0.99), Duration(99));
  EXPECT_EQ(percentile(values, 1.0), Duration(100));
  EXPECT_EQ(percentile({Duration(7)}, 0.5), Duration(7));
}

TEST(Faults, WithoutALabThereIsNothingToBreak) {
  unsetenv("NHA_LAB");
  FaultRunner runner({}, 1, 1);
  const auto started = runner.start();
  ASSERT_FALSE(started);
  EXPECT_NE(started.error().what.find("nccl-ha lab run"), std::string::npos);
}

}  // namespace
}  // namespace nccl_ha::tools
