#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "runtime/base/cpu.h"
#include "tests/support/temporary_folder.h"

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

/// A root file system with what the kernel says of control groups.
class Groups : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ + "/" + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  double quota() const { return processor_share(root_).quota; }

  tests::TemporaryFolder temporary_;
  const std::string root_{temporary_.path()};
};

TEST_F(Groups, WithoutOneThereIsNoQuota) {
  EXPECT_EQ(quota(), 0);
  EXPECT_EQ(processor_share(root_).allowed, usable_cpus().size());
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_EQ(quota(), 0);
}

TEST_F(Groups, TheTightestOnTheWayUpCounts) {
  write("proc/self/cgroup", "0::/slice/job/step\n");
  write("sys/fs/cgroup/slice/cpu.max", "150000 100000\n");
  write("sys/fs/cgroup/slice/job/cpu.max", "max 100000\n");
  write("sys/fs/cgroup/slice/job/step/cpu.max", "400000 100000\n");
  EXPECT_DOUBLE_EQ(quota(), 1.5);
}

TEST_F(Groups, VersionOneHasTwoFiles) {
  write("proc/self/cgroup", "5:memory:/job\n4:cpu,cpuacct:/job\n");
  write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "250000\n");
  write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_DOUBLE_EQ(quota(), 2.5);
}

TEST_F(Groups, WhatMakesNoSenseSetsNoLimit) {
  for (const char* text : {"", "max", "-5 100000", "100000 0", "x y", "100000"}) {
    write("proc/self/cgroup", "0::/\nnonsense\n:\n");
    write("sys/fs/cgroup/cpu.max", text);
    EXPECT_EQ(quota(), 0) << text;
  }
}

TEST(ProcessorShare, IsWholeProcessorsAndAtLeastOne) {
  EXPECT_EQ((ProcessorShare{8, 0}).usable(), 8U);
  EXPECT_EQ((ProcessorShare{8, 2.9}).usable(), 2U);
  EXPECT_EQ((ProcessorShare{2, 7}).usable(), 2U);
  EXPECT_EQ((ProcessorShare{4, 0.5}).usable(), 1U);
  EXPECT_EQ((ProcessorShare{1, 0}).usable(), 1U);
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
