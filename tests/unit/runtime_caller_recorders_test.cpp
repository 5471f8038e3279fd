#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/engine/engine.h"
#include "runtime/telemetry/caller_recorders.h"
#include "tests/support/counter_files.h"

namespace nccl_ha {
namespace {

class CallerRecordersTest : public test::CounterFiles {
 protected:
  std::shared_ptr<CounterFile> file_with(size_t callers) const {
    return CounterFile::create({folder_, 16, 1, 64, callers});
  }
  static const CounterSnapshot::Block* owner(const CounterSnapshot& snapshot, size_t ring) {
    return find(snapshot, snapshot.rings[ring].owner);
  }
  /// Runs `body` in a thread, until the kernel has forgotten that.
  template <class Body>
  static void in_thread(Body&& body) {
    pid_t number = 0;
    std::thread([&] {
      number = gettid();
      body();
    }).join();
    while (tgkill(getpid(), number, 0) == 0) {
      sched_yield();
    }
  }
  static void ask(CallerRecorders& recorders, uint64_t group) {
    CallerRecorder* mine = recorders.mine();
    ASSERT_NE(mine, nullptr);
    mine->note_asked(3, 1, group, trace_request(TraceRequest::send, 100, 2));
    mine->note_noticed(3, 1, group, trace_request(TraceRequest::send, 100, 2));
  }
};

TEST_F(CallerRecordersTest, AsManyThreadsAsAreSetHaveOne) {
  Config config;
  config.use_progress_thread = false;
  config.counters_dir = folder_;
  config.record_callers = 0;
  auto none = Engine::start(config);
  ASSERT_TRUE(none) << none.error().message();
  EXPECT_EQ((*none)->caller_recorders(), nullptr);
  none->reset();
  config.record_callers = 1;
  auto one = Engine::start(config);
  ASSERT_TRUE(one) << one.error().message();
  CallerRecorders& recorders = *(*one)->caller_recorders();
  EXPECT_NE(recorders.mine(), nullptr);
  in_thread([&] { EXPECT_EQ(recorders.mine(), nullptr); });
}

TEST_F(CallerRecordersTest, EachThreadHasARingWithItsName) {
  const auto file = file_with(2);
  CallerRecorders recorders({file, 0});
  const int64_t before = SteadyClock().now().time_since_epoch().count();
  ask(recorders, 7);
  in_thread([&] {
    ask(recorders, 8);
    ask(recorders, 9);
  });
  const CounterSnapshot snapshot = read();
  ASSERT_EQ(snapshot.rings.size(), 2U);
  ASSERT_EQ(snapshot.rings[0].events.size(), 2U);
  ASSERT_EQ(snapshot.rings[1].events.size(), 4U);
  EXPECT_EQ(snapshot.rings[0].capacity, 32U) << "half of a worker's";
  const RecordedEvent& event = snapshot.rings[0].events[0];
  EXPECT_EQ(event.event, TraceEvent::request_asked);
  EXPECT_EQ(event.actor, 3U);
  EXPECT_EQ(event.c, 1U);
  EXPECT_EQ(event.a, 7U);
  const auto& fields = snapshot.kind_of(event).fields;
  std::vector<std::string> texts;
  for (const auto& field : fields) {
    texts.push_back(to_text(field, event));
  }
  EXPECT_EQ(texts, (std::vector<std::string>{"7", "100 bytes", "2", "send", "1"}));
  const int64_t after = SteadyClock().now().time_since_epoch().count();
  const int64_t off = std::chrono::nanoseconds(TickClock::error_max).count();
  EXPECT_GE(event.time_ns + off, before);
  EXPECT_LE(snapshot.rings[1].events[3].time_ns - off, after);
  ASSERT_NE(owner(snapshot, 1), nullptr);
  const std::string own = "caller " + std::to_string(gettid());
  EXPECT_TRUE(owner(snapshot, 0)->label.starts_with(own)) << owner(snapshot, 0)->label;
  EXPECT_NE(owner(snapshot, 1)->label, owner(snapshot, 0)->label);
  EXPECT_EQ(value(snapshot, snapshot.rings[1].owner, "asked"), 2U);
  EXPECT_EQ(value(snapshot, snapshot.rings[1].owner, "noticed"), 2U);
}

TEST_F(CallerRecordersTest, TheRingOfAThreadThatEndedGoesToTheNext) {
  const auto file = file_with(1);
  CallerRecorders recorders({file, 0});
  for (uint64_t group = 0; group < 5; ++group) {
    in_thread([&] { ask(recorders, group); });
  }
  const CounterSnapshot snapshot = read();
  ASSERT_EQ(snapshot.rings.size(), 1U);
  EXPECT_EQ(snapshot.rings[0].events.size(), 10U);
  EXPECT_EQ(value(snapshot, 1, "callers_refused"), 0U);
}

TEST_F(CallerRecordersTest, WhoComesWhenThereIsNoneLeftGoesWithout) {
  const auto file = file_with(1);
  CallerRecorders recorders({file, 0});
  ask(recorders, 1);
  in_thread([&] {
    EXPECT_EQ(recorders.mine(), nullptr);
    EXPECT_EQ(recorders.mine(), nullptr);
  });
  EXPECT_NE(recorders.mine(), nullptr);
  EXPECT_EQ(value(read(), 1, "callers_refused"), 1U);
}

TEST_F(CallerRecordersTest, ARecorderIsNotTakenForThatOfAnEngineThatIsGone) {
  const auto file = file_with(2);
  auto first = std::make_unique<CallerRecorders>(CounterPlace{file, 0});
  ask(*first, 1);
  first.reset();
  CallerRecorders second({file, 0});
  ask(second, 2);
  const CounterSnapshot snapshot = read();
  ASSERT_EQ(snapshot.rings.size(), 2U);
  ASSERT_EQ(snapshot.rings[1].events.size(), 2U);
  EXPECT_EQ(snapshot.rings[1].events[0].a, 2U);
}

TEST_F(CallerRecordersTest, WorkersAndCallersHaveRingsApart) {
  const auto file = file_with(2);
  using Kind = CounterFile::RingKind;
  EXPECT_NE(file->take_ring(1, Kind::caller).ring, nullptr);
  EXPECT_NE(file->take_ring(2, Kind::caller).ring, nullptr);
  EXPECT_EQ(file->take_ring(3, Kind::caller).ring, nullptr);
  EXPECT_NE(file->take_ring(4).ring, nullptr) << "callers take none of a worker's";
  EXPECT_EQ(file->take_ring(5).ring, nullptr);
  for (const size_t callers : {0U, 4U, 64U}) {
    const auto large = CounterFile::create({folder_, 8, 12, 1U << 20, callers});
    ASSERT_TRUE(large);
    EXPECT_LE(large->bytes().size(), CounterFile::rings_bytes_max + (1U << 17));
    for (size_t i = 0; i < 12; ++i) {
      ASSERT_NE(large->take_ring(i + 1).ring, nullptr);
    }
    for (size_t i = 0; i < callers; ++i) {
      ASSERT_NE(large->take_ring(i + 100, Kind::caller).ring, nullptr);
    }
  }
}

}  // namespace
}  // namespace nccl_ha
