#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/counter_files.h"
#include "tools/report/mask.h"
#include "tools/tune/judge.h"
#include "tools/tune/measure.h"
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

TEST(AddressMask, AnAddressBehindAnInterfaceIsTakenOut) {
  AddressMask mask;
  EXPECT_EQ(mask.mask("NET/Socket : Using [0]eth0:192.168.1.5<0>"),
            "NET/Socket : Using [0]eth0:address-1<0>");
  EXPECT_EQ(mask.mask("lo:::1<0> eth0:fe80::2%eth0 eb0:192.168.1.5"),
            "lo:address-2<0> eth0:address-3%eth0 eb0:address-1");
  EXPECT_EQ(mask.mask("192.168.1.5-192.168.1.7"), "address-1-address-4");
}

TEST(AddressMask, ALongLineOfDigitsTakesNoLongTime) {
  AddressMask mask;
  std::string digits;
  while (digits.size() < (1U << 19)) {
    digits += "aaaaa:";  // no group of an address has five
  }
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(mask.mask(digits).size(), digits.size());
  // Were each length of the line tried, this would take minutes.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST(AddressMask, ThePeerOfALabelIsAHost) {
  AddressMask mask;
  const std::string label = "send-connection to 198.18.0.2 (h2, pid 25)";
  mask.add_hosts_of("x (, pid 1) (not a host, pid 2) " + label);
  EXPECT_EQ(mask.mask(label), "send-connection to address-1 (host-1, pid 25)");
  EXPECT_EQ(mask.mask("h2:25 h2 a host, pid 2"), "host-1:25 h2 a host, pid 2");
  EXPECT_EQ(mask.mask("{\"host\": \"h2\"}"), "{\"host\": \"host-1\"}");
}

TEST(TuneJudge, SureOnlyWhereTheIntervalLeavesOneOut) {
  EXPECT_TRUE(estimate_ratio({1.1, 1.12, 1.09, 1.11, 1.1}).faster());
  EXPECT_FALSE(estimate_ratio({1.5, 0.7, 1.4, 0.8, 1.3}).faster());
  EXPECT_TRUE(estimate_ratio({0.9, 0.91, 0.89, 0.9}).slower());
  EXPECT_FALSE(estimate_ratio({1.2}).faster());
  EXPECT_FALSE(estimate_ratio({}).slower());
  EXPECT_NEAR(estimate_ratio({2, 0.5}).mean, 1, 1e-9);
  EXPECT_TRUE(std::isinf(estimate_ratio({1.2, 1.21}).high)) << "two rounds say nothing of chance";
  EXPECT_FALSE(estimate_ratio({1.2, 1.2}).faster());
  EXPECT_TRUE(std::isfinite(estimate_ratio({1.2, 1.21, 1.19}).high));
  EXPECT_NEAR(student_t95(4), 2.776, 1e-3);
}

TEST(TunePlan, EveryChoiceIsASettingWithAValue) {
  const std::vector<int> cpus{0, 1, 2, 3, 4, 5, 6, 7};
  for (const bool rdma : {false, true}) {
    for (const TuneAxis& axis : tune_axes(8, cpus, rdma)) {
      EXPECT_GT(axis.choices.size(), 1U) << axis.name;
      for (const TunedEnvironment& choice : axis.choices) {
        EXPECT_NE(environment_text(choice).find("HA_NCCL_"), std::string::npos);
      }
    }
  }
  EXPECT_EQ(environment_text(merged({{"A", "1"}, {"B", "2"}}, {{"B", "3"}})), "A=1 B=3");
}

TEST(TunePlan, OnlyProcessorsThatMayBeUsedAreNamed) {
  const std::vector<int> cpus{32, 33, 38, 39};
  std::vector<std::string> pinned;
  for (const TuneAxis& axis : tune_axes(cpus.size(), cpus, false)) {
    for (const TunedEnvironment& choice : axis.choices) {
      if (axis.name == "pinning") {
        pinned.push_back(environment_text(choice));
      }
    }
  }
  EXPECT_EQ(pinned,
            (std::vector<std::string>{"HA_NCCL_PROGRESS_CPUS=39", "HA_NCCL_PROGRESS_CPUS=38,39"}));
}

class TuneStateTest : public test::CounterFiles {};

TEST_F(TuneStateTest, OnlyTrialsOfTheSameLoadAreUsedAgain) {
  const std::string path = folder_ + "/state.jsonl";
  TuneLoad load;
  TuneTrial trial{"window", {{"A", "1"}}, {}, {1.1, 1.2}, 3, "", load_text(load)};
  ASSERT_EQ(append_trial(path, trial), "");
  ASSERT_EQ(load_trials(path, load_text(load)).size(), 1U);
  load.operation = "all_gather";
  EXPECT_EQ(load_trials(path, load_text(load)).size(), 0U);
  load.operation = "all_reduce";
  load.ranks = 4;
  EXPECT_EQ(load_trials(path, load_text(load)).size(), 0U);
  load.ranks = 2;
  trial.failure = "it could not start";
  ASSERT_EQ(append_trial(path, trial), "");
  EXPECT_EQ(load_trials(path, load_text(load)).size(), 1U) << "what failed is tried again";
}

TEST_F(TuneStateTest, ATornLineCostsOnlyItself) {
  const std::string path = folder_ + "/state.jsonl";
  const std::string of = load_text({});
  const TuneTrial trial{"window", {{"A", "1"}}, {}, {1.1, 1.2}, 3, "", of};
  ASSERT_EQ(append_trial(path, trial), "");
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 5);
  ASSERT_EQ(append_trial(path, trial), "");
  EXPECT_EQ(load_trials(path, of).size(), 1U);
}

}  // namespace
}  // namespace nccl_ha::tools
