#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "runtime/base/clock.h"
#include "runtime/base/random.h"
#include "runtime/telemetry/recorder.h"
#include "runtime/telemetry/trace_dump.h"
#include "tests/support/counter_files.h"
#include "tools/trace/critical.h"
#include "tools/trace/perfetto.h"
#include "tools/trace/plot.h"
#include "tools/trace/show.h"
#include "tools/trace/sources.h"
#include "tools/trace/summary.h"

namespace nccl_ha::tools {
namespace {

constexpr int64_t usec = 1000;
constexpr int64_t msec = 1'000'000;

/// A process with a recorder whose clock is `ahead` of the true time.
class TracedProcess {
 public:
  TracedProcess(const std::string& folder, uint32_t pid, int64_t ahead)
      : file_(CounterFile::create({folder, 64, 1, 4096})),
        worker_({file_, 0}, "worker 0"),
        recorder_(worker_.place(), 4096),
        pid_(pid),
        ahead_(ahead) {}

  uint32_t connect(const std::string& label, uint64_t key, const std::string& path) {
    auto& block = connections_.emplace_back(worker_.place(), label);
    const auto actor = static_cast<uint32_t>(connections_.size());
    block->key.set(key);
    block->actor.set(actor);
    paths_.emplace_back(block.place(), path);
    return actor;
  }
  void say(uint32_t actor, int64_t said, int64_t heard) {
    connections_[actor - 1]->said_ns.set(static_cast<uint64_t>(said + ahead_));
    connections_[actor - 1]->heard_ns.set(static_cast<uint64_t>(heard + ahead_));
  }
  void at(int64_t time, TraceEvent event, uint32_t actor, uint64_t a, uint64_t b = 0,
          uint16_t c = 0) {
    recorder_.record(event, actor, a, b, Instant(Duration(time + ahead_)), c);
  }
  /// As `nccl-ha trace` reads it; blocks began before all events.
  TraceSource source() const {
    auto bytes = copy_counters(file_->bytes(), "a test");
    EXPECT_TRUE(bytes);
    auto* header = reinterpret_cast<counter_layout::FileHeader*>(bytes->data());
    header->pid = pid_;
    header->clock = pid_;
    for (uint32_t i = 0; i < header->blocks.count; ++i) {
      auto* block = reinterpret_cast<counter_layout::Block*>(bytes->data() + header->blocks.offset +
                                                             i * sizeof(counter_layout::Block));
      block->began_ns.store(0);
    }
    // A mapping is aligned so.
    std::vector<std::byte> room(bytes->size() + 64);
    auto* begin = room.data() + (64 - reinterpret_cast<uintptr_t>(room.data()) % 64) % 64;
    std::memcpy(begin, bytes->data(), bytes->size());
    auto read = read_dump("test", {begin, bytes->size()});
    EXPECT_TRUE(read);
    return read ? std::move(*read) : TraceSource{};
  }

 private:
  std::shared_ptr<CounterFile> file_;
  CounterBlock<WorkerCounters> worker_;
  Recorder recorder_;
  std::vector<CounterBlock<ConnectionCounters>> connections_;
  std::vector<CounterBlock<PathCounters>> paths_;
  const uint32_t pid_;
  const int64_t ahead_;
};

class TraceToolTest : public test::CounterFiles {
 protected:
  /// A message of one chunk: announced, heard, begun and posted, arrived, acknowledged.
  struct Times {
    int64_t announced = 0;
    int64_t heard = 0;
    int64_t posted = 0;
    int64_t arrived = 0;
    int64_t acked = 0;
  };
  static void message(TracedProcess& from, uint32_t from_actor, TracedProcess& to,
                      uint32_t to_actor, uint64_t group, const Times& times) {
    const uint64_t chunk = trace_chunk(4096, 0, 0, 1);
    to.at(times.announced, TraceEvent::cts_sent, to_actor, group, 1);
    from.at(times.heard, TraceEvent::cts_received, from_actor, group, 1);
    from.at(times.posted, TraceEvent::transfer_posted, from_actor, group,
            trace_chunk(4096, 0, 0, 0));
    from.at(times.posted, TraceEvent::chunk_posted, from_actor, group, chunk);
    to.at(times.arrived, TraceEvent::chunk_arrived, to_actor, group, chunk);
    to.at(times.arrived, TraceEvent::transfer_completed, to_actor, group, 4096, 1);
    from.at(times.acked, TraceEvent::chunk_acked, from_actor, group, chunk);
    from.at(times.acked, TraceEvent::transfer_sent, from_actor, group, trace_chunk(4096, 0, 0, 0));
  }

  /// A ring of four: each step of a rank needs the step before from its neighbour.
  Timeline ring(int slow_rank, int64_t slow_ns, int slow_process = -1, int64_t late_ns = 0) {
    constexpr int ranks = 4;
    std::vector<std::unique_ptr<TracedProcess>> all;
    std::vector<uint32_t> out(ranks);
    std::vector<uint32_t> in(ranks);
    for (int i = 0; i < ranks; ++i) {
      all.push_back(std::make_unique<TracedProcess>(folder_, 100 + i, 0));
    }
    for (int i = 0; i < ranks; ++i) {
      const int next = (i + 1) % ranks;
      const auto key = static_cast<uint64_t>(1000 + i);
      out[static_cast<size_t>(i)] = all[static_cast<size_t>(i)]->connect(
          "send-connection to " + std::to_string(next), key, "path 0 eth0");
      in[static_cast<size_t>(next)] = all[static_cast<size_t>(next)]->connect(
          "receive-connection from " + std::to_string(i), key, "path 0 eth0");
      all[static_cast<size_t>(i)]->say(out[static_cast<size_t>(i)], 1 * usec, 40 * usec);
      all[static_cast<size_t>(next)]->say(in[static_cast<size_t>(next)], 30 * usec, 20 * usec);
    }
    std::vector<int64_t> ready(ranks, 1 * msec);
    for (uint64_t step = 0; step < 60; ++step) {
      std::vector<int64_t> arrived(ranks);
      const bool first = step == 0;
      for (int i = 0; i < ranks; ++i) {
        const int next = (i + 1) % ranks;
        const int64_t post =
            ready[static_cast<size_t>(i)] + 5 * usec + (i == slow_process ? late_ns : 0);
        const int64_t took = 20 * usec + (i == slow_rank ? slow_ns : 0);
        message(*all[static_cast<size_t>(i)], out[static_cast<size_t>(i)],
                *all[static_cast<size_t>(next)], in[static_cast<size_t>(next)], step,
                {first ? post - 4 * usec : ready[static_cast<size_t>(i)] - 300 * usec,
                 first ? post - 3 * usec : ready[static_cast<size_t>(i)] - 290 * usec, post,
                 post + took, post + took + 10 * usec});
        arrived[static_cast<size_t>(next)] = post + took;
      }
      ready = arrived;
    }
    std::vector<TraceSource> sources;
    for (const auto& one : all) {
      sources.push_back(one->source());
    }
    return Timeline::of(std::move(sources));
  }
};

TEST_F(TraceToolTest, ClocksAreComparedWithinTheBoundThatIsStated) {
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

TEST_F(TraceToolTest, OneWayAloneSaysNothingOfClocks) {
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

TEST_F(TraceToolTest, BothSidesOfAMessageComeTogether) {
  TracedProcess a(folder_, 1, 0);
  TracedProcess b(folder_, 2, 0);
  const uint32_t send = a.connect("send-connection b", 9, "path 0 eth0");
  const uint32_t receive = b.connect("receive-connection a", 9, "path 0 eth0");
  a.say(send, 1, 4);
  b.say(receive, 3, 2);
  message(a, send, b, receive, 5, {1 * msec, 2 * msec, 3 * msec, 4 * msec, 5 * msec});
  const Timeline timeline = Timeline::of({a.source(), b.source()});
  const auto messages = messages_of(timeline);
  ASSERT_EQ(messages.size(), 1U);
  const TraceMessage& one = messages[0];
  EXPECT_EQ(one.group, 5U);
  EXPECT_EQ(one.bytes, 4096U);
  EXPECT_EQ(timeline.process_name(timeline.connection(one.sender).process),
            timeline.processes()[0].snapshot.host + ":1");
  ASSERT_EQ(one.chunks.size(), 1U);
  EXPECT_EQ(one.chunks[0].arrived_ns - one.chunks[0].posted_ns, 1 * msec);
  EXPECT_EQ(one.chunks[0].acked_ns - one.chunks[0].posted_ns, 2 * msec);
  EXPECT_EQ(one.received_ns - one.announced_ns, 3 * msec);
  TraceFilter filter;
  filter.events = {"chunk_arrived"};
  const auto shown = filtered(timeline, filter);
  ASSERT_EQ(shown.size(), 1U);
  EXPECT_NE(moment_text(timeline, *shown[0]).find("size=4096 bytes"), std::string::npos);
}

TEST_F(TraceToolTest, AStallIsSaidWithItsCause) {
  TracedProcess a(folder_, 1, 0);
  const uint32_t send = a.connect("send-connection b", 9, "path 0 eth0");
  const uint64_t chunk = trace_chunk(4096, 0, 0, 1);
  const auto stalled = [&](int64_t from, uint64_t group) {
    a.at(from, TraceEvent::chunk_posted, send, group, chunk);
    a.at(from + 50 * msec, TraceEvent::chunk_acked, send, group, chunk);
  };
  stalled(100 * msec, 1);
  stalled(200 * msec, 2);
  a.at(210 * msec, TraceEvent::heartbeat_answered, send, 0);
  stalled(300 * msec, 3);
  a.at(310 * msec, TraceEvent::segment_resent, 77, 1, 1000);
  stalled(400 * msec, 4);
  a.at(410 * msec, TraceEvent::path_down, send, 0, 1);
  stalled(500 * msec, 5);
  a.at(540 * msec, TraceEvent::worker_overrun, 0, 0, 45 * msec);
  a.at(600 * msec, TraceEvent::chunk_posted, send, 6, chunk);
  a.at(601 * msec, TraceEvent::chunk_acked, send, 6, chunk);
  auto stalls = stalls_of(Timeline::of({a.source()}), 10 * msec);
  ASSERT_EQ(stalls.size(), 5U);
  std::map<int64_t, std::string> causes;
  for (const TraceStall& stall : stalls) {
    causes[stall.begin_ns / msec] = stall.cause;
  }
  EXPECT_NE(causes[100].find("nothing came"), std::string::npos) << causes[100];
  EXPECT_NE(causes[200].find("full or slow"), std::string::npos) << causes[200];
  EXPECT_NE(causes[300].find("1 segments went again"), std::string::npos) << causes[300];
  EXPECT_NE(causes[400].find("path 0 eth0 was given up"), std::string::npos) << causes[400];
  EXPECT_NE(causes[500].find("did not run"), std::string::npos) << causes[500];
}

TEST_F(TraceToolTest, PercentilesAreTheNearestRanks) {
  std::vector<int64_t> values;
  for (int64_t i = 1; i <= 100; ++i) {
    values.push_back(i);
  }
  EXPECT_EQ(nearest_rank(values, 0.5), 50);
  EXPECT_EQ(nearest_rank(values, 0.99), 99);
  EXPECT_EQ(nearest_rank(values, 1), 100);
  EXPECT_EQ(nearest_rank({}, 0.5), 0);
}

TEST_F(TraceToolTest, TheSlowPathOfARingIsNamed) {
  for (int slow = 0; slow < 4; ++slow) {
    const Timeline timeline = ring(slow, 200 * usec);
    const CriticalResult result = critical_of(timeline);
    EXPECT_GT(result.steps, 20U);
    const std::string from = timeline.process_name(static_cast<uint32_t>(slow));
    EXPECT_NE(result.verdict.find("path 0 eth0 of " + from), std::string::npos)
        << slow << ": " << result.verdict;
  }
}

TEST_F(TraceToolTest, ASlowRankIsNamedAndPeaceNamesNobody) {
  EXPECT_EQ(critical_of(ring(-1, 0)).verdict, "");
  const Timeline timeline = ring(-1, 0, 2, 400 * usec);
  const std::string verdict = critical_of(timeline).verdict;
  EXPECT_NE(verdict.find(timeline.process_name(2) + " itself"), std::string::npos) << verdict;
}

/// Reads protobuf by its encoding alone, so that a mistake of the writer does not hide itself.
class ProtoReader {
 public:
  explicit ProtoReader(std::string_view bytes) : rest_(bytes) {}
  struct Field {
    uint64_t number = 0;
    uint64_t value = 0;
    std::string_view bytes;
  };
  bool next(Field& field) {
    if (rest_.empty()) {
      return false;
    }
    const uint64_t tag = varint();
    field = {tag >> 3U, 0, {}};
    switch (tag & 7U) {
      case 0:
        field.value = varint();
        break;
      case 1:
        std::memcpy(&field.value, rest_.data(), 8);
        rest_.remove_prefix(8);
        break;
      case 2: {
        const uint64_t size = varint();
        field.bytes = rest_.substr(0, size);
        EXPECT_EQ(field.bytes.size(), size);
        rest_.remove_prefix(field.bytes.size());
        break;
      }
      default:
        ADD_FAILURE() << "wire type " << (tag & 7U);
        return false;
    }
    return true;
  }

 private:
  uint64_t varint() {
    uint64_t value = 0;
    for (unsigned shift = 0; !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= uint64_t{byte & 127U} << shift;
      if (byte < 128) {
        break;
      }
    }
    return value;
  }
  std::string_view rest_;
};

TEST_F(TraceToolTest, TheExportIsWholeAndItsFlowsMeet) {
  const std::string bytes = perfetto_of(ring(1, 100 * usec));
  ProtoReader trace(bytes);
  ProtoReader::Field packet;
  std::map<uint64_t, int> open;   // by track
  std::map<uint64_t, int> flows;  // how many events each has
  std::map<uint64_t, std::string> names;
  uint64_t last = 0;
  size_t slices = 0;
  while (trace.next(packet)) {
    ASSERT_EQ(packet.number, 1U);
    uint64_t time = 0;
    uint64_t type = 0;
    uint64_t track = 0;
    bool event = false;
    ProtoReader fields(packet.bytes);
    ProtoReader::Field field;
    while (fields.next(field)) {
      if (field.number == 8) {
        time = field.value;
      } else if (field.number == 60) {
        ProtoReader inner(field.bytes);
        ProtoReader::Field one;
        uint64_t uuid = 0;
        while (inner.next(one)) {
          uuid = one.number == 1 ? one.value : uuid;
          if (one.number == 2) {
            names[uuid] = std::string(one.bytes);
          }
        }
        ASSERT_NE(uuid, 0U);
      } else if (field.number == 11) {
        event = true;
        ProtoReader inner(field.bytes);
        ProtoReader::Field one;
        while (inner.next(one)) {
          type = one.number == 9 ? one.value : type;
          track = one.number == 11 ? one.value : track;
          if (one.number == 47) {
            ++flows[one.value];
          }
        }
      }
    }
    if (event) {
      ASSERT_GE(time, last);
      last = time;
      open[track] += type == 1 ? 1 : type == 2 ? -1 : 0;
      ASSERT_GE(open[track], 0);
      ASSERT_LE(open[track], 1) << "slices that lie beside each other have tracks of their own";
      slices += type == 1 ? 1 : 0;
    }
  }
  for (const auto& [track, count] : open) {
    EXPECT_EQ(count, 0) << names[track];
  }
  EXPECT_EQ(slices, 4U * 60 * 3);  // sends, chunks, receives
  EXPECT_EQ(flows.size(), 4U * 60);
  for (const auto& [flow, count] : flows) {
    EXPECT_EQ(count, 3) << "the send, its chunk, its arrival";
  }
}

TEST_F(TraceToolTest, SeveralDumpsInOneFileAreReadAgain) {
  TracedProcess a(folder_, 1, 0);
  const uint32_t send = a.connect("send-connection b", 9, "path 0 eth0");
  a.at(msec, TraceEvent::path_down, send, 0, 1);
  std::vector<std::vector<std::byte>> dumps;
  for (int i = 0; i < 3; ++i) {
    dumps.push_back({std::byte{1}, std::byte{2}, std::byte(i)});
  }
  const auto bundle = make_bundle(dumps);
  const auto parts = parse_bundle(bundle);
  ASSERT_TRUE(parts);
  ASSERT_EQ(parts->size(), 3U);
  EXPECT_EQ((*parts)[2][2], std::byte{2});
  for (size_t length = 0; length < bundle.size(); ++length) {
    static_cast<void>(parse_bundle(std::span(bundle).first(length)));  // nothing is read beyond it
  }
  const std::string svg = plot_of(Timeline::of({a.source()}), 10);
  EXPECT_NE(svg.find("<svg"), std::string::npos);
}

}  // namespace
}  // namespace nccl_ha::tools
