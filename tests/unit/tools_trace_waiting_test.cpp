#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>

#include "tests/support/traced_process.h"
#include "tools/trace/waiting.h"

namespace nccl_ha::tools {
namespace {

using test::msec;
using test::TracedProcess;

class TraceWaitingTest : public test::CounterFiles {
 protected:
  static constexpr uint64_t sent = trace_request(TraceRequest::send, 4096, 0);
  static constexpr uint64_t received = trace_request(TraceRequest::receive, 4096, 0);
  static constexpr uint64_t whole = trace_chunk(4096, 0, 0, 0);

  /// What a block of that name counts.
  static void count(TraceSource& source, const std::string& label, const std::string& counter,
                    uint64_t value) {
    for (CounterSnapshot::Block& block : source.snapshot.blocks) {
      const auto& names = source.snapshot.scopes[block.scope].counters;
      for (size_t i = 0; block.label == label && i < names.size(); ++i) {
        if (names[i].name == counter) {
          block.values[i] = value;
          return;
        }
      }
    }
    ADD_FAILURE() << label << " counts no " << counter;
  }
};

TEST_F(TraceWaitingTest, ASenderSaysHowLongAndForWhat) {
  TracedProcess a(folder_, 1, 0);
  const uint32_t one = a.connect("send-connection b", 9, "path 0 eth0");
  a.call(100 * msec, TraceEvent::request_asked, one, 1, sent);
  a.at(110 * msec, TraceEvent::transfer_posted, one, 1, whole);
  a.at(120 * msec, TraceEvent::transfer_sent, one, 1, whole);
  a.call(130 * msec, TraceEvent::request_noticed, one, 1, sent);
  a.call(200 * msec, TraceEvent::request_asked, one, 2, sent);
  a.call(300 * msec, TraceEvent::request_asked, one, 3, sent);
  TraceSource source = a.source();
  source.snapshot.dumped_ns = 1000 * msec;
  count(source, "send-connection b", "sends", 3);
  count(source, "send-connection b", "sends_done", 1);
  count(source, "path 0 eth0", "usable", 1);
  count(source, "path 0 eth0", "writes", 4);
  count(source, "path 0 eth0", "writes_done", 2);
  count(source, "path 0 eth0", "heartbeats_sent", 5);
  count(source, "path 0 eth0", "heartbeats_answered", 3);
  auto rows = waiting_of(Timeline::of({source}));
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_TRUE(rows[0].sender);
  EXPECT_EQ(rows[0].key, 9U);
  EXPECT_EQ(rows[0].requests, 2U);
  EXPECT_EQ(rows[0].oldest_ns, 800 * msec);
  EXPECT_EQ(rows[0].waits_for, "acknowledgements on path 0 eth0");
  EXPECT_NE(waiting_text(rows[0]).find("2 requests, the oldest for 800.00 ms, wait for "
                                       "acknowledgements on path 0 eth0\n  path 0 eth0: usable, "
                                       "2 writes under way, 2 heartbeats unanswered\n"),
            std::string::npos)
      << waiting_text(rows[0]);

  // Work that came back is not under way.
  count(source, "path 0 eth0", "errors", 2);
  rows = waiting_of(Timeline::of({source}));
  EXPECT_EQ(rows.at(0).waits_for, "its worker, or the peer to post a receive");
  count(source, "path 0 eth0", "usable", 0);
  rows = waiting_of(Timeline::of({source}));
  EXPECT_EQ(rows.at(0).waits_for, "a path: none of 1 works");
  count(source, "send-connection b", "sends_done", 3);
  EXPECT_TRUE(waiting_of(Timeline::of({source})).empty()) << "nothing is open";
}

TEST_F(TraceWaitingTest, TheLongestComesFirstAndWhatIsNoLongerRecordedLast) {
  TracedProcess a(folder_, 1, 0);
  static_cast<void>(a.connect("receive-connection b", 7, "path 0 eth0"));
  const uint32_t two = a.connect("receive-connection c", 8, "path 0 eth1");
  const uint32_t three = a.connect("receive-connection d", 9, "path 0 eth2");
  a.call(500 * msec, TraceEvent::request_asked, two, 1, received);
  a.call(400 * msec, TraceEvent::request_asked, three, 1, received);
  // Its end was told to a thread that has no recorder: by the counters only the next one is open.
  a.call(450 * msec, TraceEvent::request_asked, three, 2, received);
  TraceSource source = a.source();
  source.snapshot.dumped_ns = 1000 * msec;
  for (const char* label :
       {"receive-connection b", "receive-connection c", "receive-connection d"}) {
    count(source, label, "receives", 5);
    count(source, label, "receives_done", 4);
  }
  for (const char* path : {"path 0 eth0", "path 0 eth1", "path 0 eth2"}) {
    count(source, path, "usable", 1);
  }
  const auto rows = waiting_of(Timeline::of({std::move(source)}));
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0].connection, "receive-connection d");
  EXPECT_EQ(rows[0].oldest_ns, 550 * msec);
  EXPECT_EQ(rows[1].connection, "receive-connection c");
  EXPECT_EQ(rows[1].oldest_ns, 500 * msec);
  EXPECT_EQ(rows[2].connection, "receive-connection b");
  EXPECT_EQ(rows[2].oldest_ns, std::nullopt);
  EXPECT_EQ(rows[2].waits_for, "data of the peer");
}

}  // namespace
}  // namespace nccl_ha::tools
