#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/traced_process.h"
#include "tools/trace/perfetto.h"
#include "tools/trace/show.h"
#include "tools/trace/summary.h"

namespace nccl_ha::tools {
namespace {

using test::msec;
using test::TracedProcess;
using test::usec;

class TraceCallsTest : public test::CounterFiles {
 protected:
  static constexpr uint64_t sent = trace_request(TraceRequest::send, 4096, 0);
  static constexpr uint64_t received = trace_request(TraceRequest::receive, 4096, 0);
  static constexpr uint64_t flushed = trace_request(TraceRequest::flush, 0, 0);
  static constexpr uint64_t whole = trace_chunk(4096, 0, 0, 0);

  /// A send: asked for, taken up, acknowledged and noticed, so long after another.
  static void send(TracedProcess& process, uint32_t actor, uint64_t group, int64_t asked,
                   int64_t queued, int64_t took, int64_t late) {
    process.call(asked, TraceEvent::request_asked, actor, group, sent);
    process.at(asked + queued, TraceEvent::transfer_posted, actor, group, whole);
    process.at(asked + queued + took, TraceEvent::transfer_sent, actor, group, whole);
    if (late >= 0) {
      process.call(asked + queued + took + late, TraceEvent::request_noticed, actor, group, sent);
    }
  }
};

TEST_F(TraceCallsTest, SaysHowLongRequestsAreQueuedAndHowLateTheirEndIsNoticed) {
  TracedProcess a(folder_, 1, 0);
  const uint32_t one = a.connect("send-connection b", 9, "path 0 eth0");
  const uint32_t other = a.connect("receive-connection c", 8, "path 0 eth0");
  a.at(0, TraceEvent::worker_started, 0, 0);
  for (uint64_t group = 0; group < 100; ++group) {
    const auto at = static_cast<int64_t>(group) * 10 * msec;
    send(a, one, group, at, group == 50 ? 2 * msec : 30 * usec, 1 * msec, 5 * usec);
    a.call(at, TraceEvent::request_asked, other, group, received);
    a.at(at + 40 * usec, TraceEvent::cts_sent, other, group, 1);
    a.at(at + 2 * msec, TraceEvent::transfer_completed, other, group, 4096, 1);
    a.call(at + 3 * msec, TraceEvent::request_noticed, other, group, received);
    a.call(at + 3 * msec, TraceEvent::request_asked, other, 33, flushed);
    a.call(at + 3 * msec + 70 * usec, TraceEvent::request_noticed, other, 33, flushed);
  }
  const TraceSummary summary = summarize(Timeline::of({a.source()}), 10 * msec);
  ASSERT_EQ(summary.calls.size(), 2U);
  const CallRow& sends = summary.calls[0];
  EXPECT_EQ(sends.connection, "send-connection b");
  EXPECT_EQ(sends.requests, 100U);
  EXPECT_EQ(sends.queued.count, 100U);
  EXPECT_EQ(sends.queued.p50_ns, 30 * usec);
  EXPECT_EQ(sends.queued.most_ns, 2 * msec);
  EXPECT_EQ(sends.unnoticed.p99_ns, 5 * usec);
  EXPECT_EQ(sends.flushes.count, 0U);
  EXPECT_EQ(sends.not_taken.count + sends.not_noticed.count, 0U);
  const CallRow& receives = summary.calls[1];
  EXPECT_EQ(receives.queued.p50_ns, 40 * usec);
  EXPECT_EQ(receives.unnoticed.p50_ns, 1 * msec);
  EXPECT_EQ(receives.flushes.count, 100U);
  EXPECT_EQ(receives.flushes.most_ns, 70 * usec);
  // Its thread is told apart from workers.
  const auto caller = std::ranges::find_if(summary.threads, &ThreadTime::caller);
  ASSERT_NE(caller, summary.threads.end());
  EXPECT_EQ(caller->events, 600U);
  EXPECT_EQ(caller->thread, "caller 1");
}

TEST_F(TraceCallsTest, SaysWhatWaitsAtTheEnd) {
  TracedProcess a(folder_, 1, 0);
  const uint32_t one = a.connect("send-connection b", 9, "path 0 eth0");
  a.at(100 * msec, TraceEvent::worker_started, 0, 0);
  // Before what the worker's recorder still has: nobody knows.
  a.call(50 * msec, TraceEvent::request_asked, one, 1, sent);
  send(a, one, 2, 200 * msec, 10 * usec, 1 * msec, -1);
  a.call(300 * msec, TraceEvent::request_asked, one, 3, sent);
  a.call(400 * msec, TraceEvent::request_asked, one, 4, sent);
  a.at(1000 * msec, TraceEvent::heartbeat_answered, one, 0);
  const TraceSummary summary = summarize(Timeline::of({a.source()}), 10 * msec);
  ASSERT_EQ(summary.calls.size(), 1U);
  EXPECT_EQ(summary.calls[0].not_taken.count, 2U);
  EXPECT_EQ(summary.calls[0].not_taken.oldest_ns, 700 * msec);
  EXPECT_EQ(summary.calls[0].not_noticed.count, 1U);
  EXPECT_EQ(summary.calls[0].not_noticed.oldest_ns, 1000 * msec - (201 * msec + 10 * usec));
}

TEST_F(TraceCallsTest, ShowsCallsOnTheirThreadAndOfTheirConnection) {
  TracedProcess a(folder_, 1, 0);
  static_cast<void>(a.connect("receive-connection c", 8, "path 0 eth0"));
  const uint32_t one = a.connect("send-connection b", 9, "path 0 eth0");
  send(a, one, 2, 200 * msec, 10 * usec, 1 * msec, 20 * usec);
  const Timeline timeline = Timeline::of({a.source()});
  TraceFilter filter;
  filter.events = {"request_asked"};
  const auto shown = filtered(timeline, filter);
  ASSERT_EQ(shown.size(), 1U);
  const std::string text = moment_text(timeline, *shown[0]);
  EXPECT_NE(text.find("caller 1 request_asked group=2 size=4096 bytes"), std::string::npos) << text;
  EXPECT_NE(text.find("[send-connection b]"), std::string::npos) << text;

  const std::string exported = perfetto_of(timeline);
  for (const char* name : {"queued 2", "send 2", "not noticed 2", "caller 1", "worker 0"}) {
    EXPECT_NE(exported.find(name), std::string::npos) << name;
  }
}

}  // namespace
}  // namespace nccl_ha::tools
