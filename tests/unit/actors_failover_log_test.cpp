#include <gtest/gtest.h>

#include <optional>
#include <sstream>
#include <string>

#include "actors/connection/failover_log.h"
#include "tests/support/connection_bench.h"
#include "tests/support/log_lines.h"

namespace nccl_ha {
namespace {

using std::chrono::milliseconds;

/// On the clock of a simulated worker, by itself: nothing else makes that worker turn.
class FailoverLogTest : public ConnectionBench {
 protected:
  using Kind = FailoverLog::Kind;
  void SetUp() override {
    ConnectionBench::SetUp();
    act([&] { log_.emplace(*bench_->state.context); });
  }
  void TearDown() override {
    act([&] { log_.reset(); });
  }
  /// As connections from `first` on have it, each with a text of its own.
  void warn(Kind kind, const std::string& nic, const std::string& peer, uint32_t first,
            uint32_t count, const FailoverLog::Counts& counts = {}) {
    act([&] {
      for (uint32_t i = first; i < first + count; ++i) {
        log_->warn({kind, i, nic, peer, counts}, [&] {
          ++made_;
          return "line of " + std::to_string(i) + " to " + peer;
        });
      }
    });
  }
  size_t lines() const { return said_.count(""); }

  test::LogLines said_;
  size_t made_ = 0;  ///< texts
  std::optional<FailoverLog> log_;
};

TEST_F(FailoverLogTest, TheFirstLineComesAtOnceAndOneForAllOthers) {
  FailoverLog::Counts counts;
  counts.stall = milliseconds(7);
  counts.chunks_again = 3;
  counts.bytes_again = 1000;
  counts.chunks_kept = 1;
  counts.bytes_kept = 10;
  warn(Kind::failover, "mlx5_0:1", "h2", 0, 32, counts);
  EXPECT_EQ(said_.text(), "line of 0 to h2\n");
  pass(milliseconds(100));
  counts.stall = milliseconds(90);
  warn(Kind::failover, "mlx5_0:1", "h2", 32, 32, counts);
  EXPECT_EQ(lines(), 1U) << said_.text();
  pass(milliseconds(110));
  EXPECT_EQ(said_.text(),
            "line of 0 to h2\n"
            "failover of 63 more paths of 63 connections to h2 over mlx5_0:1: at most 90 ms after "
            "the last heartbeat; 189 chunks (63000 bytes) go again, 63 (630 bytes) had arrived "
            "(within 200 ms)\n");
  pass(milliseconds(5000));
  EXPECT_EQ(lines(), 2U) << "nothing is left: " << said_.text();
  EXPECT_EQ(made_, 2U) << "what is only counted costs no text";
}

TEST_F(FailoverLogTest, ASecondLineAloneReadsAsEver) {
  warn(Kind::down, "eth0", "h2", 0, 2);
  pass(milliseconds(210));
  EXPECT_EQ(said_.text(), "line of 0 to h2\nline of 1 to h2\n");
  warn(Kind::down, "eth0", "h2", 2, 1);
  EXPECT_EQ(lines(), 3U) << "it begins anew: " << said_.text();
}

TEST_F(FailoverLogTest, WhatComesMuchLaterIsAFirstLineAgain) {
  for (uint32_t i = 0; i < 3; ++i) {
    warn(Kind::down, "eth0", "h2", i, 1);
    EXPECT_EQ(lines(), i + 1);
    pass(milliseconds(200));
  }
}

TEST_F(FailoverLogTest, EachNicPeerAndKindHasItsOwn) {
  warn(Kind::down, "eth0", "h2", 0, 3);
  warn(Kind::down, "eth1", "h2", 0, 3);
  warn(Kind::down, "eth0", "h3", 0, 3);
  warn(Kind::back, "eth0", "h2", 0, 3, {.stall = milliseconds(40)});
  EXPECT_EQ(said_.text(), "line of 0 to h2\nline of 0 to h2\nline of 0 to h3\nline of 0 to h2\n");
  pass(milliseconds(210));
  EXPECT_EQ(lines(), 8U) << said_.text();
  EXPECT_EQ(said_.count("2 more paths of 2 connections to h2 over eth0 are down (within"), 1U);
  EXPECT_EQ(said_.count("2 more paths of 2 connections to h2 over eth1 are down (within"), 1U);
  EXPECT_EQ(said_.count("2 more paths of 2 connections to h3 over eth0 are down (within"), 1U);
  EXPECT_EQ(said_.count("to h2 over eth0 are back after at most 40 ms (within"), 1U);
}

TEST_F(FailoverLogTest, AConnectionWithSeveralPathsIsOneConnection) {
  warn(Kind::down, "eth0", "h2", 7, 1);
  warn(Kind::down, "eth0", "h2", 7, 1);
  warn(Kind::down, "eth0", "h2", 7, 1);
  pass(milliseconds(210));
  EXPECT_EQ(said_.count("2 more paths of 1 connection to h2 over eth0 are down"), 1U)
      << said_.text();
}

TEST_F(FailoverLogTest, WhatGoesOnForLongIsToldLessAndLessOften) {
  for (uint32_t i = 0; i < 640; ++i) {  // 16 s
    warn(Kind::back, "eth0", "h2", i, 1);
    pass(milliseconds(25));
  }
  act([&] { log_.reset(); });
  // After 0, 0.2, 0.6, 1.4, 3, 6.2, 9.4, 12.6 and 15.8 s, and what is left.
  EXPECT_LE(lines(), 10U) << said_.text();
  size_t told = 1;
  std::istringstream all(said_.text());
  for (std::string line; std::getline(all, line);) {
    const size_t more = line.find(" more path");
    told += more == std::string::npos ? 0 : std::stoul(line.substr(0, more));
  }
  EXPECT_EQ(told, 640U) << said_.text();
}

TEST_F(FailoverLogTest, WhatIsGatheredAtTheEndIsLogged) {
  warn(Kind::stream_lost, "", "h2", 0, 5);
  act([&] { log_.reset(); });
  EXPECT_EQ(said_.count("the control connection of 4 more connections to h2 is lost (within"), 1U)
      << said_.text();
}

TEST_F(FailoverLogTest, ForDebuggingEachLineIsThere) {
  set_log_level(LogLevel::debug);
  warn(Kind::moved_to_shadow, "eth1", "h2", 0, 3);
  pass(milliseconds(210));
  set_log_level(LogLevel::info);
  EXPECT_EQ(said_.text(), "line of 0 to h2\nline of 1 to h2\nline of 2 to h2\n");
}

TEST_F(FailoverLogTest, TrafficIsCountedByConnections) {
  warn(Kind::moved_to_shadow, "eth1", "h2", 0, 3);
  warn(Kind::moved_back, "eth0", "h2", 0, 3);
  pass(milliseconds(210));
  EXPECT_EQ(said_.count("traffic of 2 more connections to h2 moved to the shadow path over eth1"),
            1U)
      << said_.text();
  EXPECT_EQ(said_.count("traffic of 2 more connections to h2 moved back to their path over eth0"),
            1U);
}

}  // namespace
}  // namespace nccl_ha
