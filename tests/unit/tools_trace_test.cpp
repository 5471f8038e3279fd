#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "tests/support/traced_process.h"
#include "tools/trace/critical.h"
#include "tools/trace/perfetto.h"
#include "tools/trace/plot.h"
#include "tools/trace/show.h"
#include "tools/trace/sources.h"
#include "tools/trace/summary.h"

namespace nccl_ha::tools {
namespace {

using test::msec;
using test::TracedProcess;
using test::usec;

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
    const uint64_t chunk = trace_chunk(4096, 0, 0, 1, true);
    to.at(times.announced, TraceEvent::cts_sent, to_actor, group, 1);
    from.at(times.heard, TraceEvent::cts_received, from_actor, group, 1);
    from.at(times.posted, TraceEvent::chunk_posted, from_actor, group, chunk);
    to.at(times.arrived, TraceEvent::chunk_arrived, to_actor, group, chunk);
    from.at(times.acked, TraceEvent::chunk_acked, from_actor, group, chunk);
  }

  /// What happens in a ring of ranks.
  struct Ring {
    int ranks = 4;
    int slow_rank = -1;  ///< whose paths take `slow_ns` more
    int64_t slow_ns = 0;
    int late_rank = -1;  ///< who does nothing for `late_ns` before each send
    int64_t late_ns = 0;
    uint16_t rails = 1;
    int64_t compute_ns = 0;  ///< of every rank, before each second send
    bool one_clock = false;
    int64_t ahead_ns = 0;  ///< each rank's clock of that of the rank before
    uint32_t buffers = 1;  ///< of a group; the last one is on the way longest
  };

  /// All of a step of a ring: a buffer goes over every rail, a chunk each; the last one ends last.
  static void step(const Ring& ring, TracedProcess& from, uint32_t from_actor, TracedProcess& to,
                   uint32_t to_actor, uint64_t group, const Times& times) {
    to.at(times.announced, TraceEvent::cts_sent, to_actor, group, 1);
    from.at(times.heard, TraceEvent::cts_received, from_actor, group, 1);
    const int64_t took = times.arrived - times.posted;
    for (uint32_t buffer = 0; buffer < ring.buffers; ++buffer) {
      const uint64_t whole = trace_chunk(4096, buffer, 0, 0);
      const bool last = buffer + 1 == ring.buffers;
      from.at(times.posted, TraceEvent::transfer_posted, from_actor, group, whole);
      for (uint16_t rail = 0; rail < ring.rails; ++rail) {
        if (ring.buffers > 1 && rail != buffer % ring.rails) {
          continue;  // each goes over one rail
        }
        const uint64_t chunk = trace_chunk(4096, buffer, rail, ring.rails);
        const int64_t arrived =
            times.arrived - (last ? 0 : took / 2) - (ring.rails - 1 - rail) * 2 * usec;
        from.at(times.posted, TraceEvent::chunk_posted, from_actor, group, chunk, rail);
        to.at(arrived, TraceEvent::chunk_arrived, to_actor, group, chunk, rail);
        from.at(arrived + 10 * usec, TraceEvent::chunk_acked, from_actor, group, chunk, rail);
      }
      from.at(times.acked, TraceEvent::transfer_sent, from_actor, group, whole);
    }
    to.at(times.arrived, TraceEvent::transfer_completed, to_actor, group, 4096, 1);
  }

  /// Each step of a rank needs the step before from its neighbour.
  Timeline ring(const Ring& of) {
    const auto ranks = static_cast<size_t>(of.ranks);
    std::vector<std::unique_ptr<TracedProcess>> all;
    std::vector<uint32_t> out(ranks);
    std::vector<uint32_t> in(ranks);
    for (size_t i = 0; i < ranks; ++i) {
      all.push_back(std::make_unique<TracedProcess>(folder_, 100 + static_cast<uint32_t>(i),
                                                    static_cast<int64_t>(i) * of.ahead_ns));
      if (of.one_clock) {
        all.back()->share_clock();
      }
    }
    for (size_t i = 0; i < ranks; ++i) {
      const size_t next = (i + 1) % ranks;
      const uint64_t key = 1000 + i;
      out[i] = all[i]->connect("send-connection to " + std::to_string(next), key, "path 0 eth0");
      in[next] =
          all[next]->connect("receive-connection from " + std::to_string(i), key, "path 0 eth0");
      for (uint16_t rail = 1; rail < of.rails; ++rail) {
        all[i]->add_path(out[i], fmt::format("path {} eth{}", rail, rail));
      }
      all[i]->say(out[i], 1 * usec, 40 * usec);
      all[next]->say(in[next], 30 * usec, 20 * usec);
    }
    std::vector<int64_t> ready(ranks, 1 * msec);
    for (uint64_t number = 0; number < 60; ++number) {
      std::vector<int64_t> arrived(ranks);
      for (size_t i = 0; i < ranks; ++i) {
        const size_t next = (i + 1) % ranks;
        const int rank = static_cast<int>(i);
        const int64_t post = ready[i] + 5 * usec + (number % 2 == 0 ? of.compute_ns : 0) +
                             (rank == of.late_rank ? of.late_ns : 0);
        const int64_t took = 20 * usec + (rank == of.slow_rank ? of.slow_ns : 0);
        const bool first = number == 0;
        step(of, *all[i], out[i], *all[next], in[next], number,
             {first ? post - 4 * usec : ready[i] - 300 * usec,
              first ? post - 3 * usec : ready[i] - 290 * usec, post, post + took,
              post + took + 10 * usec});
        arrived[next] = post + took;
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
  EXPECT_EQ(one.begun_ns, one.chunks[0].posted_ns);
  EXPECT_EQ(one.sent_ns, one.chunks[0].acked_ns);
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

TEST_F(TraceToolTest, AfterAFailoverAPauseIsNoStall) {
  TracedProcess a(folder_, 1, 0);
  const uint32_t send = a.connect("send-connection b", 9, "path 0 eth0");
  const uint64_t whole = trace_chunk(8192, 0, 0, 0);
  const auto chunk = [](uint32_t number) { return trace_chunk(4096, 0, number, 2); };
  a.at(100 * msec, TraceEvent::transfer_posted, send, 1, whole);
  a.at(100 * msec, TraceEvent::chunk_posted, send, 1, chunk(0), 1);
  a.at(100 * msec, TraceEvent::chunk_posted, send, 1, chunk(1), 1);
  a.at(101 * msec, TraceEvent::path_down, send, 1, 1);
  // The first had arrived, which is noted nowhere; the second goes again.
  a.at(102 * msec, TraceEvent::chunk_posted, send, 1, chunk(1), 0);
  a.at(103 * msec, TraceEvent::chunk_acked, send, 1, chunk(1), 0);
  a.at(103 * msec, TraceEvent::transfer_sent, send, 1, whole);
  a.at(300 * msec, TraceEvent::transfer_posted, send, 2, whole);
  a.at(300 * msec, TraceEvent::chunk_posted, send, 2, chunk(0), 0);
  a.at(301 * msec, TraceEvent::chunk_acked, send, 2, chunk(0), 0);
  a.at(301 * msec, TraceEvent::transfer_sent, send, 2, whole);
  a.at(400 * msec, TraceEvent::heartbeat_answered, send, 0);
  const Timeline timeline = Timeline::of({a.source()});
  EXPECT_EQ(messages_of(timeline).size(), 2U);
  EXPECT_EQ(stalls_of(timeline, 10 * msec).size(), 0U);
}

TEST_F(TraceToolTest, ADumpThatWasTakenEarlierHasNoStallForThat) {
  TracedProcess a(folder_, 1, 0);
  TracedProcess b(folder_, 2, 0);
  const uint32_t send = a.connect("send-connection b", 9, "path 0 eth0");
  const uint32_t receive = b.connect("receive-connection a", 9, "path 0 eth0");
  a.at(100 * msec, TraceEvent::chunk_posted, send, 1, trace_chunk(4096, 0, 0, 0));
  a.at(101 * msec, TraceEvent::heartbeat_answered, send, 0);
  b.at(60'000 * msec, TraceEvent::mark_sent, receive, 1, 0, 0);
  const Timeline timeline = Timeline::of({a.source(), b.source()});
  EXPECT_EQ(timeline.end_ns(0), 101 * msec);
  EXPECT_EQ(stalls_of(timeline, 10 * msec).size(), 0U);
}

TEST_F(TraceToolTest, OfTwoDumpsOfAProcessTheNewerCounts) {
  TracedProcess a(folder_, 1, 0);
  const uint32_t send = a.connect("send-connection b", 9, "path 0 eth0");
  a.at(100 * msec, TraceEvent::heartbeat_answered, send, 0);
  TraceSource older = a.source();
  a.at(200 * msec, TraceEvent::heartbeat_answered, send, 0);
  TraceSource newer = a.source();
  for (const bool turned : {false, true}) {
    const Timeline timeline =
        Timeline::of(turned ? std::vector{newer, older} : std::vector{older, newer});
    ASSERT_EQ(timeline.processes().size(), 1U);
    EXPECT_EQ(timeline.moments().size(), 2U);
    EXPECT_EQ(timeline.processes()[0].damages.size(), 1U);
  }
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
    const Timeline timeline = ring({.slow_rank = slow, .slow_ns = 200 * usec});
    const CriticalResult result = critical_of(timeline);
    EXPECT_GT(result.steps, 20U);
    const std::string from = timeline.process_name(static_cast<uint32_t>(slow));
    EXPECT_NE(result.verdict.find("path 0 eth0 of " + from), std::string::npos)
        << slow << ": " << result.verdict << result.unsure;
  }
}

TEST_F(TraceToolTest, ASlowRankIsNamedAndPeaceNamesNobody) {
  const CriticalResult peace = critical_of(ring({.one_clock = true}));
  EXPECT_EQ(peace.verdict, "");
  EXPECT_EQ(peace.unsure, "");
  const Timeline timeline = ring({.late_rank = 2, .late_ns = 400 * usec});
  const std::string verdict = critical_of(timeline).verdict;
  EXPECT_NE(verdict.find(timeline.process_name(2) + " itself"), std::string::npos) << verdict;
}

TEST_F(TraceToolTest, WithTwoRailsTheOneThatEndsLastIsNotAccused) {
  const CriticalResult peace = critical_of(ring({.rails = 2, .one_clock = true}));
  EXPECT_EQ(peace.paths.size(), 8U);
  EXPECT_EQ(peace.paths.back().time_ns, 0) << "the first rails are not on the way";
  EXPECT_EQ(peace.unsure, "");
  EXPECT_EQ(peace.verdict, "");
  const Timeline slow =
      ring({.slow_rank = 1, .slow_ns = 200 * usec, .rails = 2, .one_clock = true});
  const std::string verdict = critical_of(slow).verdict;
  EXPECT_NE(verdict.find("path 1 eth1 of " + slow.process_name(1)), std::string::npos) << verdict;
}

TEST_F(TraceToolTest, WhereAllComputeAlikeNoRankIsAccused) {
  const CriticalResult result =
      critical_of(ring({.ranks = 2, .compute_ns = 100 * usec, .one_clock = true}));
  EXPECT_GT(result.steps, 20U);
  EXPECT_EQ(result.unsure, "");
  EXPECT_EQ(result.verdict, "");
}

TEST_F(TraceToolTest, OfAGroupTheBufferCountsThatCameLast) {
  const Timeline timeline =
      ring({.slow_rank = 3, .slow_ns = 200 * usec, .rails = 2, .one_clock = true, .buffers = 2});
  const CriticalResult result = critical_of(timeline);
  EXPECT_GT(result.steps, 20U);
  EXPECT_NE(result.verdict.find("path 1 eth1 of " + timeline.process_name(3)), std::string::npos)
      << result.verdict;
}

TEST_F(TraceToolTest, ClocksThatAreNotKnownWellEnoughAccuseNobody) {
  // The hellos alone, and steps that are shorter than what they say.
  const CriticalResult result = critical_of(ring({.ahead_ns = 3 * msec}));
  EXPECT_NE(result.unsure.find("clock of"), std::string::npos) << result.unsure;
  EXPECT_EQ(result.verdict, "");
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
  const std::string bytes = perfetto_of(ring({.slow_rank = 1, .slow_ns = 100 * usec}));
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
  auto over = bundle;  // the second where the first is
  std::memcpy(over.data() + 32, over.data() + 16, 16);
  const auto refused = parse_bundle(over);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().what.find("over each other"), std::string::npos);
  for (size_t length = 0; length < bundle.size(); ++length) {
    static_cast<void>(parse_bundle(std::span(bundle).first(length)));  // nothing is read beyond it
  }
  const std::string svg = plot_of(Timeline::of({a.source()}), 10);
  EXPECT_NE(svg.find("<svg"), std::string::npos);
}

}  // namespace
}  // namespace nccl_ha::tools
