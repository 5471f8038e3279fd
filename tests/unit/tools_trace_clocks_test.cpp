#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "runtime/base/random.h"
#include "tests/support/traced_process.h"
#include "tools/trace/show.h"
#include "tools/trace/timeline.h"

namespace nccl_ha::tools {
namespace {

using test::msec;
using test::TracedProcess;
using test::usec;

class TraceClocksTest : public test::CounterFiles {};

TEST_F(TraceClocksTest, ClocksAreComparedWithinTheBoundThatIsStated) {
  Random random(7);
  for (int run = 0; run < 20; ++run) {
    const auto ahead = static_cast<int64_t>(random.below(2'000'000'000));
    TracedProcess a(folder_, 1, 5'000'000'000);
    TracedProcess b(folder_, 2, 5'000'000'000 + ahead);
    const uint32_t send = a.connect("send-connection b", 9, "path 0 eth0");
    const uint32_t receive = b.connect("receive-connection a", 9, "path 0 eth0");
    const auto way = [&] { return static_cast<int64_t>(random.below(300)) * usec + 5 * usec; };
    for (uint64_t number = 0; number < 20; ++number) {
      const int64_t now = static_cast<int64_t>(number) * 10 * msec;
      a.at(now, TraceEvent::mark_sent, send, number, 0, 0);
      b.at(now + way(), TraceEvent::mark_received, receive, number, 0, 0);
      b.at(now + 5 * msec, TraceEvent::mark_sent, receive, number, 0, 0);
      a.at(now + 5 * msec + way(), TraceEvent::mark_received, send, number, 0, 0);
    }
    a.at(300 * msec, TraceEvent::cts_received, send, 1, 1);  // a has more events: its clock counts
    const Timeline timeline = Timeline::of({a.source(), b.source()});
    const ClockTable& clocks = timeline.clocks();
    ASSERT_EQ(clocks.reference(), 0U);
    EXPECT_EQ(clocks.messages(1), 40U);
    ASSERT_GT(clocks.bound_ns(1), 0);
    EXPECT_LE(std::abs(clocks.shift_ns(1) + ahead), clocks.bound_ns(1));
    EXPECT_LT(clocks.bound_ns(1), 200 * usec) << "the fastest messages count";
  }
}

/// Clocks that drift by `ppm` to each other, and hellos or fresh marks to compare them by.
struct Drifting {
  double ppm = 0;
  bool marks = false;
  int64_t age = 0;  ///< of the job, when its last second is in the recorders
};

TEST_F(TraceClocksTest, TheBoundHoldsForEventsHoursAfterTheHello) {
  constexpr int64_t second = 1'000'000'000;
  constexpr int64_t ahead = 77 * msec;
  uint32_t pid = 0;
  for (const Drifting& one :
       {Drifting{10, false, 10'800 * second}, Drifting{10, true, 10'800 * second},
        Drifting{-90, false, 3'600 * second}}) {
    const auto apart = [&](int64_t now) {
      return ahead + static_cast<int64_t>(static_cast<double>(now) * one.ppm / 1e6);
    };
    TracedProcess a(folder_, ++pid, 0);
    TracedProcess b(folder_, ++pid, 0);
    const uint32_t send = a.connect("send-connection b", 9, "path 0 eth0");
    const uint32_t receive = b.connect("receive-connection a", 9, "path 0 eth0");
    a.say(send, 100 * usec, 400 * usec);
    b.say(receive, 300 * usec + apart(0), 200 * usec + apart(0));
    for (uint64_t number = 0; number < 20; ++number) {
      const int64_t now = one.age + static_cast<int64_t>(number) * 50 * msec;
      if (one.marks) {
        a.at(now, TraceEvent::mark_sent, send, number, 0, 0);
        b.at(now + 20 * usec + apart(now), TraceEvent::mark_received, receive, number, 0, 0);
        b.at(now + msec + apart(now), TraceEvent::mark_sent, receive, number, 0, 0);
        a.at(now + msec + 20 * usec, TraceEvent::mark_received, send, number, 0, 0);
      }
      a.at(now + 2 * msec, TraceEvent::cts_received, send, number, 1);
      b.at(now + 2 * msec + apart(now), TraceEvent::cts_sent, receive, number, 1);
    }
    a.at(one.age, TraceEvent::heartbeat_answered, send, 0);  // its clock counts
    const Timeline timeline = Timeline::of({a.source(), b.source()});
    const ClockTable& clocks = timeline.clocks();
    ASSERT_EQ(clocks.reference(), 0U);
    ASSERT_GT(clocks.bound_ns(1), 0);
    EXPECT_FALSE(clocks.contradicted());
    for (const int64_t now : {one.age, one.age + second}) {
      EXPECT_LE(std::abs(clocks.shift_ns(1) + apart(now)), clocks.bound_ns(1)) << one.ppm;
    }
    if (one.marks) {
      EXPECT_LT(clocks.bound_ns(1), 300 * usec) << "old hellos do not spoil fresh marks";
    }
  }
}

TEST_F(TraceClocksTest, OneWayAloneSaysNothingOfClocks) {
  TracedProcess a(folder_, 1, 0);
  TracedProcess b(folder_, 2, 77 * msec);
  const uint32_t send = a.connect("send-connection b", 9, "path 0 eth0");
  const uint32_t receive = b.connect("receive-connection a", 9, "path 0 eth0");
  a.at(msec, TraceEvent::mark_sent, send, 0, 0, 0);
  b.at(2 * msec, TraceEvent::mark_received, receive, 0, 0, 0);
  const Timeline timeline = Timeline::of({a.source(), b.source()});
  EXPECT_EQ(std::min(timeline.clocks().bound_ns(0), timeline.clocks().bound_ns(1)), -1);
  EXPECT_NE(clocks_text(timeline).find("no messages went both ways"), std::string::npos);
}

}  // namespace
}  // namespace nccl_ha::tools
