#include <gtest/gtest.h>

#include "tools/report/mask.h"
#include "tools/tune/judge.h"
#include "tools/tune/plan.h"

namespace nccl_ha::tools {
namespace {

TEST(AddressMask, TheSameAddressIsAlwaysTheSameWord) {
  AddressMask mask;
  EXPECT_EQ(mask.mask("from 10.1.2.3:4000 to 10.1.2.4, again 10.1.2.3."),
            "from address-1:4000 to address-2, again address-1.");
  EXPECT_EQ(mask.mask("fe80::1%eth0 02:00:5e:10:00:01 0000:0000:0000:0000:0000:ffff:0a01:0203"),
            "address-3%eth0 address-4 address-5");
}

TEST(AddressMask, OtherNumbersStay) {
  AddressMask mask;
  for (const char* text : {"12:34:56.789", "version 1.2.3", "0000:03:00.0", "1.5 ms", "mlx5_0:1",
                           "deadbeef", "a.b.c"}) {
    EXPECT_EQ(mask.mask(text), text);
  }
}

TEST(AddressMask, HostsStandByThemselves) {
  AddressMask mask;
  mask.add_host("node");
  mask.add_host("node-17");
  mask.add_host("a");
  EXPECT_EQ(mask.mask("node-17:123 (node) nodes a"), "host-1:123 (host-2) nodes a");
}

TEST(TuneJudge, SureOnlyWhereTheIntervalLeavesOneOut) {
  EXPECT_TRUE(estimate_ratio({1.1, 1.12, 1.09, 1.11, 1.1}).faster());
  EXPECT_FALSE(estimate_ratio({1.5, 0.7, 1.4, 0.8, 1.3}).faster());
  EXPECT_TRUE(estimate_ratio({0.9, 0.91, 0.89, 0.9}).slower());
  EXPECT_FALSE(estimate_ratio({1.2}).faster());
  EXPECT_FALSE(estimate_ratio({}).slower());
  EXPECT_NEAR(estimate_ratio({2, 0.5}).mean, 1, 1e-9);
  EXPECT_NEAR(student_t95(4), 2.776, 1e-3);
}

TEST(TunePlan, EveryChoiceIsASettingWithAValue) {
  for (const bool rdma : {false, true}) {
    for (const TuneAxis& axis : tune_axes(8, rdma)) {
      EXPECT_GT(axis.choices.size(), 1U) << axis.name;
      for (const TunedEnvironment& choice : axis.choices) {
        EXPECT_NE(environment_text(choice).find("HA_NCCL_"), std::string::npos);
      }
    }
  }
  EXPECT_EQ(environment_text(merged({{"A", "1"}, {"B", "2"}}, {{"B", "3"}})), "A=1 B=3");
}

}  // namespace
}  // namespace nccl_ha::tools
