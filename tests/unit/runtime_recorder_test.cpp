#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/base/log.h"
#include "runtime/base/random.h"
#include "runtime/base/result.h"
#include "runtime/base/secret.h"
#include "runtime/telemetry/recorder.h"
#include "tests/support/until.h"

namespace nccl_ha {
namespace {

TEST(Recorder, KeepsTheLastEventsInOrder) {
  Recorder recorder(100);  // rounded up to 128
  EXPECT_EQ(recorder.capacity(), 128U);
  for (uint64_t i = 0; i < 300; ++i) {
    recorder.record(TraceEvent::cts_sent, 7, i, 2 * i, Instant(Duration(i)));
  }
  const auto events = recorder.snapshot();
  ASSERT_EQ(events.size(), 128U);
  EXPECT_EQ(recorder.overwritten(), 172U);
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i].a, 172 + i);
    EXPECT_EQ(events[i].b, 2 * (172 + i));
    EXPECT_EQ(events[i].actor, 7U);
    EXPECT_EQ(events[i].event, TraceEvent::cts_sent);
  }
}

TEST(Recorder, ANoteIsSeenWithTheTimeOfTheStamp) {
  Recorder recorder(8);
  recorder.note(TraceEvent::cts_sent, 1, 10, 0);
  recorder.note(TraceEvent::cts_sent, 1, 11, 0);
  EXPECT_EQ(recorder.unstamped(), 2U);
  EXPECT_TRUE(recorder.snapshot().empty());
  recorder.stamp(Instant(Duration(500)));
  EXPECT_EQ(recorder.unstamped(), 0U);
  const auto events = recorder.snapshot();
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[1].a, 11U);
  EXPECT_EQ(events[1].time_ns, 500);
}

TEST(Recorder, TimesOfOneThreadNeverGoBack) {
  Recorder recorder(8);
  recorder.record(TraceEvent::cts_sent, 1, 10, 0, Instant(Duration(500)));
  recorder.record(TraceEvent::cts_sent, 1, 11, 0, Instant(Duration(430)));  // read before
  recorder.record(TraceEvent::cts_sent, 1, 12, 0, Instant(Duration(501)));
  const auto events = recorder.snapshot();
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[1].time_ns, 500);
  EXPECT_EQ(events[2].time_ns, 501);
}

TEST(Recorder, ZeroCapacityRecordsNothing) {
  Recorder recorder(0);
  recorder.record(TraceEvent::cts_sent, 1, 2, 3, Instant{});
  EXPECT_TRUE(recorder.snapshot().empty());
}

TEST(Recorder, SnapshotsBesideTheWriterAreNeverTorn) {
  Recorder recorder(1 << 12);  // small: the writer goes round under the reader's hands
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (uint64_t i = 0; !stop.load(std::memory_order_relaxed); ++i) {
      recorder.record(TraceEvent::path_state, static_cast<uint32_t>(i), i, ~i,
                      Instant(Duration(static_cast<int64_t>(i))));
    }
  });
  size_t seen = 0;
  // On a busy machine the writer may get its first turn late.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  for (int round = 0; round < 50 || (seen == 0 && std::chrono::steady_clock::now() < deadline);
       ++round) {
    for (const RecordedEvent& event : recorder.snapshot()) {
      ++seen;
      ASSERT_EQ(event.b, ~event.a);
      ASSERT_EQ(event.actor, static_cast<uint32_t>(event.a));
      ASSERT_EQ(event.time_ns, static_cast<int64_t>(event.a));
    }
  }
  stop.store(true);
  writer.join();
  EXPECT_GT(seen, 0U);
}

TEST(Recorder, EveryEventHasANameAndHelp) {
  for (size_t i = 0; i < trace_event_count(); ++i) {
    const TraceEventInfo& info = describe(static_cast<TraceEvent>(i));
    EXPECT_STRNE(info.name, "unknown");
    EXPECT_STRNE(info.help, "");
  }
  EXPECT_STREQ(describe(static_cast<TraceEvent>(9999)).name, "unknown");
}

std::vector<std::pair<LogLevel, std::string>> lines;

void collect(void*, LogLevel level, const char*, int, const char* text) {
  lines.emplace_back(level, text);
}

TEST(Log, RepeatedWarningsAreLimitedAndCounted) {
  lines.clear();
  set_log_sink(collect, nullptr);
  uint64_t warnings = 0;
  const auto warn = [&] {
    NHA_LOG_WARN_LIMITED("packet {} is bad", warnings);
    ++warnings;
  };
  for (int i = 0; i < 10000; ++i) {
    warn();
  }
  const size_t at_first = lines.size();
  // The next second's says how many were left out.
  EXPECT_TRUE(test::until([&] {
    warn();
    return lines.size() > at_first;
  }));
  set_log_sink(nullptr, nullptr);
  ASSERT_GE(at_first, 1U);
  EXPECT_LE(at_first, 3U) << "at most one a second";
  EXPECT_EQ(lines[0].second, "packet 0 is bad");
  uint64_t told = lines.size();
  for (const auto& [level, text] : lines) {
    const size_t more = text.find(" (");
    told += more == std::string::npos ? 0 : std::stoull(text.substr(more + 2));
  }
  EXPECT_EQ(told, warnings) << lines.back().second;
}

TEST(Log, DisabledLevelsAreNotEvenFormatted) {
  lines.clear();
  set_log_sink(collect, nullptr);
  set_log_level(LogLevel::warn);
  int formatted = 0;
  auto expensive = [&] {
    ++formatted;
    return 1;
  };
  NHA_LOG_INFO("{}", expensive());
  NHA_LOG_WARN("{}", expensive());
  set_log_level(LogLevel::info);
  set_log_sink(nullptr, nullptr);
  EXPECT_EQ(formatted, 1);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0].first, LogLevel::warn);
}

TEST(Log, ALineForWhichThereIsNoMemoryIsReplacedByOneThatSaysSo) {
  lines.clear();
  set_log_sink(collect, nullptr);
  const auto poor = []() -> int { throw std::bad_alloc(); };
  NHA_LOG_WARN("{}", poor());
  NHA_LOG_WARN_LIMITED("{}", poor());
  set_log_sink(nullptr, nullptr);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].second, log_without_memory);
  EXPECT_EQ(lines[1].second, log_without_memory);
}

TEST(Log, WithoutASinkOnlyWhatSomebodyHasToKnowGoesToStderr) {
  set_log_sink(nullptr, nullptr);
  testing::internal::CaptureStderr();
  NHA_LOG_INFO("chatter");
  NHA_LOG_WARN("port {} is taken", 5000);
  NHA_LOG_ERROR("no interface");
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "nccl-ha: warn: port 5000 is taken\nnccl-ha: error: no interface\n");
}

TEST(Log, LimiterCountsWhatItHeldBackFromAllThreads) {
  LogLimiter limiter;
  std::atomic<int> passed{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        uint64_t suppressed = 0;
        passed.fetch_add(limiter.pass(&suppressed) ? 1 : 0);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_GE(passed.load(), 1);
  // One a second; 4000 calls take far less than five, even on a busy machine with a sanitizer.
  EXPECT_LE(passed.load(), 5);
}

TEST(CheckDeathTest, AnAssertionSaysWhereAndWhat) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const int slots = 0;
  EXPECT_DEATH(NHA_ASSERT(slots > 0, "a table without room"),
               "nccl-ha: .*runtime_recorder_test.cpp:[0-9]+: a table without room .slots > 0");
  NHA_ASSERT(slots == 0, "holds");
}

TEST(Random, RepeatsFromASeedAndIsUniform) {
  Random a(42);
  Random b(42);
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(a.next(), b.next());
  }
  EXPECT_NE(Random(1).next(), Random(2).next());
  std::vector<int> histogram(7, 0);
  for (int i = 0; i < 70000; ++i) {
    ++histogram[a.below(7)];
  }
  for (const int count : histogram) {
    EXPECT_NEAR(count, 10000, 500);
  }
  EXPECT_EQ(a.below(0), 0U);
  EXPECT_FALSE(a.chance(0));
  EXPECT_TRUE(a.chance(1));
  EXPECT_NE(kernel_secrets().draw().told(), kernel_secrets().draw().told());
}

TEST(Result, CarriesValueOrError) {
  Result<int> good = 5;
  EXPECT_TRUE(good);
  EXPECT_EQ(*good, 5);
  Result<int> bad = fail(Errc::system, "cannot open x", 2);
  EXPECT_FALSE(bad);
  EXPECT_EQ(bad.code(), Errc::system);
  EXPECT_EQ(bad.error().message(), "cannot open x: No such file or directory");
  EXPECT_STREQ(to_text(Errc::remote), "remote error");
  Result<void> fine;
  EXPECT_TRUE(fine);
}

}  // namespace
}  // namespace nccl_ha
