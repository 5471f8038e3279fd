#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tools/top/totals.h"

namespace nccl_ha::tools {
namespace {

/// A process with one connection and its path over eth0.
class CountedProcess {
 public:
  explicit CountedProcess(uint32_t pid) {
    file_.path = "a file";
    file_.running = true;
    CounterSnapshot& snapshot = file_.snapshot;
    snapshot.host = "h1";
    snapshot.pid = pid;
    snapshot.created_realtime_ns = 5;
    snapshot.scopes = {
        {"connection", "", {named("paths_down"), named("longest_stall_ns"), named("key")}},
        {"path", "", {named("usable"), named("bytes_sent")}}};
    snapshot.blocks = {block(1, 0, "send-connection 10.0.0.2 (h2, pid 9)", {2, 1'500'000'000, 77}),
                       block(2, 1, "path 0 eth0", {1, 100})};
  }
  uint64_t& value(size_t of_block, size_t counter) {
    return file_.snapshot.blocks[of_block].values[counter];
  }
  CounterSnapshot& snapshot() { return file_.snapshot; }
  const ProcessCounterFile& file() const { return file_; }

 private:
  static CounterSnapshot::Name named(const char* text) {
    CounterSnapshot::Name made;
    made.name = text;
    return made;
  }
  static CounterSnapshot::Block block(uint64_t id, size_t scope, const char* label,
                                      std::vector<uint64_t> values) {
    CounterSnapshot::Block made;
    made.id = id;
    made.scope = scope;
    made.label = label;
    made.values = std::move(values);
    return made;
  }

  ProcessCounterFile file_;
};

/// As a command that runs once more has them: what was kept goes through its text.
class TotalsOverTime {
 public:
  std::string take(const std::vector<const CountedProcess*>& processes, uint32_t unreadable = 0) {
    CounterReading reading;
    for (const CountedProcess* process : processes) {
      reading.files.push_back(process->file());
    }
    if (unreadable != 0) {
      reading.unreadable.emplace_back("a file: why");
      reading.unreadable_pids.push_back(unreadable);
    }
    CounterTotals totals(state_);
    EXPECT_TRUE(totals.state_read()) << state_;
    totals.take(reading);
    state_ = totals.state();
    return totals.metrics("h1");
  }

 private:
  std::string state_;
};

bool has_line(const std::string& text, const std::string& line) {
  return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

constexpr const char* down_total = "nccl_ha_connection_paths_down_total{host=\"h1\"} ";
constexpr const char* sent_total = "nccl_ha_path_bytes_sent_total{host=\"h1\",nic=\"eth0\"} ";

TEST(CounterTotalsTest, LabelsDoNotGrowAndUnitsAreBaseUnits) {
  const CountedProcess one(1);
  CountedProcess other(2);
  other.value(0, 1) = 250'000'000;
  const std::string text = TotalsOverTime().take({&one, &other});
  EXPECT_TRUE(has_line(text, std::string(down_total) + "4")) << text;
  EXPECT_TRUE(has_line(text, std::string(sent_total) + "200")) << text;
  EXPECT_TRUE(has_line(text, "nccl_ha_path_usable{host=\"h1\",nic=\"eth0\"} 2")) << text;
  EXPECT_TRUE(has_line(text, "nccl_ha_connection_longest_stall_seconds{host=\"h1\"} 1.5")) << text;
  EXPECT_TRUE(has_line(text,
                       "# HELP nccl_ha_connection_paths_down_total paths given up that "
                       "carried traffic"))
      << text;
  for (const char* growing : {"pid", "instance", "10.0.0.2", "connection_key"}) {
    EXPECT_EQ(text.find(growing), std::string::npos) << growing;
  }
}

TEST(CounterTotalsTest, WhatEndedProcessesCountedStays) {
  CountedProcess one(1);
  const CountedProcess other(2);
  TotalsOverTime totals;
  totals.take({&one, &other});
  one.value(0, 0) = 7;
  EXPECT_TRUE(has_line(totals.take({&one, &other}), std::string(down_total) + "9"));
  std::string text = totals.take({&other});
  EXPECT_TRUE(has_line(text, std::string(down_total) + "9")) << text;
  EXPECT_TRUE(has_line(text, "nccl_ha_path_usable{host=\"h1\",nic=\"eth0\"} 1")) << "not a sum";
  // Another one of the same number.
  CountedProcess again(1);
  again.snapshot().created_realtime_ns = 6;
  EXPECT_TRUE(has_line(totals.take({&other, &again}), std::string(down_total) + "11"));
  text = totals.take({});
  EXPECT_TRUE(has_line(text, std::string(down_total) + "11")) << text;
  EXPECT_EQ(text.find("nccl_ha_path_usable"), std::string::npos) << "nothing is there";
}

TEST(CounterTotalsTest, OneThatCannotBeReadNowHasNotEnded) {
  const CountedProcess one(1);
  TotalsOverTime totals;
  totals.take({&one});
  EXPECT_TRUE(has_line(totals.take({}, 1), std::string(down_total) + "2"));
  EXPECT_TRUE(has_line(totals.take({&one}), std::string(down_total) + "2")) << "it counts once";
}

TEST(CounterTotalsTest, OneThatIsNeverReadableKeepsNoOtherOnes) {
  const CountedProcess one(1);
  CounterTotals totals("");
  CounterReading reading;
  reading.files.push_back(one.file());
  totals.take(reading);
  const size_t with_it = totals.state().size();
  reading.files.clear();
  reading.unreadable_pids = {2};
  totals.take(reading);
  EXPECT_LT(totals.state().size(), with_it);
  EXPECT_TRUE(has_line(totals.metrics("h1"), std::string(down_total) + "2"));
}

/// As after a failover.
TEST(CounterTotalsTest, APathThatLeadsOverAnotherNicTakesNothingThere) {
  CountedProcess one(1);
  TotalsOverTime totals;
  totals.take({&one});
  one.snapshot().blocks[1].label = "path 0 eth1";
  one.value(1, 1) = 130;
  const std::string text = totals.take({&one});
  EXPECT_TRUE(has_line(text, std::string(sent_total) + "100")) << text;
  EXPECT_TRUE(has_line(text, "nccl_ha_path_bytes_sent_total{host=\"h1\",nic=\"eth1\"} 30")) << text;
}

TEST(CounterTotalsTest, ABlockThatIsUsedAgainTakesNothingAway) {
  CountedProcess one(1);
  TotalsOverTime totals;
  one.snapshot().blocks[0].ended = true;
  EXPECT_TRUE(has_line(totals.take({&one}), std::string(down_total) + "2")) << "of ended ones too";
  one.snapshot().blocks[0].id = 3;
  one.value(0, 0) = 1;
  EXPECT_TRUE(has_line(totals.take({&one}), std::string(down_total) + "3"));
  one.value(0, 0) = 4;
  EXPECT_TRUE(has_line(totals.take({&one}), std::string(down_total) + "6"));
}

TEST(CounterTotalsTest, AStateThatCannotBeReadBeginsAnew) {
  const CountedProcess one(1);
  for (const char* damaged :
       {"x", "[]", "{}", R"({"ended": [["a"]], "processes": {}})",
        R"({"ended": [], "processes": {"p": {"last": [["a", "b", 1]], "sums": []}}})"}) {
    CounterTotals totals(damaged);
    EXPECT_FALSE(totals.state_read()) << damaged;
    CounterReading reading;
    reading.files.push_back(one.file());
    totals.take(reading);
    EXPECT_TRUE(has_line(totals.metrics("h1"), std::string(down_total) + "2")) << damaged;
  }
}

}  // namespace
}  // namespace nccl_ha::tools
