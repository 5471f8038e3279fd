#include <gtest/gtest.h>

#include <thread>

#include "runtime/base/cpu.h"

namespace nccl_ha {
namespace {

TEST(Cpu, ParsesProcessorLists) {
  auto list = parse_cpu_list("0-3,8");
  ASSERT_TRUE(list);
  EXPECT_EQ(*list, (std::vector<int>{0, 1, 2, 3, 8}));
  EXPECT_TRUE(parse_cpu_list("")->empty());
  for (const char* bad : {"a", "1-", "-1", "3-1", "1,,2", "1,", ",1", ",", "99999", "1-2-3"}) {
    EXPECT_FALSE(parse_cpu_list(bad)) << bad;
  }
}

TEST(Cpu, PlacesByNodeThenLoadThenIndex) {
  const std::vector<WorkerInfo> workers{{0, 0, 2.0}, {1, 1, 5.0}, {2, 0, 1.0}, {3, 1, 4.0}};
  EXPECT_EQ(place(workers, 0), 2U);
  EXPECT_EQ(place(workers, 1), 3U) << "its own node although others are less loaded";
  EXPECT_EQ(place(workers, -1), 2U);
  EXPECT_EQ(place(workers, 7), 2U) << "nobody on that node";
  const std::vector<WorkerInfo> equal{{-1, -1, 1.0}, {-1, -1, 1.0}};
  EXPECT_EQ(place(equal, 0), 0U);
}

TEST(Cpu, PlansWorkersRoundRobin) {
  const std::vector<int> cpus{0, 1};
  const auto plan = plan_workers(3, cpus);
  EXPECT_EQ(plan[0].cpu, 0);
  EXPECT_EQ(plan[1].cpu, 1);
  EXPECT_EQ(plan[2].cpu, 0);
  EXPECT_EQ(plan_workers(1, {})[0].cpu, -1);
}

TEST(Cpu, APinnedThreadMayUseOneOnly) {
  const std::vector<int> all = usable_cpus();
  ASSERT_FALSE(all.empty());
  std::vector<int> pinned;
  std::thread([&] {
    ASSERT_TRUE(pin_current_thread(all.back()));
    pinned = usable_cpus();
  }).join();
  EXPECT_EQ(pinned, std::vector<int>{all.back()});
  EXPECT_EQ(usable_cpus(), all) << "other threads are as before";
}

TEST(Cpu, NumbersBeyondAThousandAreUnderstood) {
  const auto cpus = parse_cpu_list("1023-1025,8191");
  ASSERT_TRUE(cpus) << cpus.error().message();
  EXPECT_EQ(*cpus, (std::vector<int>{1023, 1024, 1025, 8191}));
  EXPECT_FALSE(parse_cpu_list("8192"));
  // No such processor here; the kernel says so, and nothing is written outside of the set.
  const auto pinned = pin_current_thread(8191);
  ASSERT_FALSE(pinned);
  EXPECT_NE(pinned.error().message().find("processor 8191"), std::string::npos);
}

}  // namespace
}  // namespace nccl_ha
