#include <gtest/gtest.h>

#include <fstream>

#include "runtime/base/clock.h"
#include "runtime/telemetry/counter_reader.h"
#include "runtime/telemetry/recorder.h"
#include "runtime/telemetry/trace_dump.h"
#include "tests/support/counter_files.h"

namespace nccl_ha {
namespace {

namespace files = std::filesystem;

class TraceDumpTest : public test::CounterFiles {
 protected:
  /// A file with a worker, a connection, and more events than its ring keeps.
  void fill() {
    file_ = CounterFile::create({folder_, 64, 2, 16});
    ASSERT_NE(file_, nullptr);
    worker_ = CounterBlock<WorkerCounters>({file_, 0}, "worker 0");
    connection_ = CounterBlock<ConnectionCounters>(worker_.place(), "send to b");
    connection_->key.set(77);
    Recorder recorder(worker_.place(), 16);
    for (uint64_t i = 0; i < 40; ++i) {
      recorder.record(TraceEvent::chunk_posted, 5, i, trace_chunk(1000, 2, 3, 4),
                      Instant(Duration(i)), 6);
    }
  }
  std::string dump() {
    const auto bytes = copy_counters(file_->bytes(), "a test");
    EXPECT_TRUE(bytes) << bytes.error().message();
    const std::string path = folder_ + "/nccl-ha-1-1.trace";
    EXPECT_TRUE(write_trace(path, *bytes));
    return path;
  }

  std::shared_ptr<CounterFile> file_;
  CounterBlock<WorkerCounters> worker_;
  CounterBlock<ConnectionCounters> connection_;
};

TEST_F(TraceDumpTest, HoldsWhatTheFileHoldsAndLittleMore) {
  fill();
  const std::string path = dump();
  EXPECT_LT(files::file_size(path), file_->bytes().size() / 2);
  const auto read = read_counter_file(path);
  ASSERT_TRUE(read) << read.error().message();
  const CounterSnapshot& snapshot = read->snapshot;
  EXPECT_EQ(snapshot.reason, "a test");
  EXPECT_NE(snapshot.dumped_ns, 0);
  EXPECT_NE(snapshot.host, "");
  EXPECT_EQ(snapshot.blocks.size(), 3U);
  EXPECT_EQ(value(snapshot, connection_.id(), "key"), 77U);
  ASSERT_EQ(snapshot.rings.size(), 1U);
  const auto& events = snapshot.rings[0].events;
  ASSERT_EQ(events.size(), 16U);
  EXPECT_EQ(events.front().a, 24U);
  EXPECT_EQ(snapshot.rings[0].written, 40U);
}

TEST_F(TraceDumpTest, OfAFileThatOthersOwnTheCountersAreReadWithoutAMapping) {
  fill();
  const auto found = find_counter_files(folder_, CounterOwner::anybody);
  ASSERT_EQ(found.size(), 1U);
  const auto bytes = copy_counter_file(found[0].path, "a test");
  ASSERT_TRUE(bytes) << bytes.error().message();
  const std::string path = folder_ + "/nccl-ha-1-2.trace";
  ASSERT_TRUE(write_trace(path, *bytes));
  const auto read = read_counter_file(path);
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read->snapshot.blocks.size(), 3U);
  EXPECT_EQ(value(read->snapshot, connection_.id(), "key"), 77U);
  EXPECT_TRUE(read->snapshot.rings.empty());
  const std::string cut = folder_ + "/cut";
  files::copy_file(found[0].path, cut);
  files::resize_file(cut, 1000);
  const auto wrong = copy_counter_file(cut, "a test");
  ASSERT_FALSE(wrong);
  EXPECT_NE(wrong.error().message().find(cut + ": the file is damaged"), std::string::npos)
      << wrong.error().message();
  EXPECT_FALSE(copy_counter_file(folder_ + "/none", "a test"));
  EXPECT_FALSE(copy_counter_file(folder_, "a test"));
}

TEST_F(TraceDumpTest, EventsSayWhatTheirWordsHold) {
  fill();
  const auto read = read_counter_file(dump());
  ASSERT_TRUE(read);
  const RecordedEvent& event = read->snapshot.rings.at(0).events.at(0);
  std::string text = read->snapshot.kind_of(event).name;
  for (const auto& field : read->snapshot.kind_of(event).fields) {
    text += " " + field.name + "=" + to_text(field, event);
  }
  EXPECT_EQ(text,
            "chunk_posted group=24 size=1000 bytes position=2 chunk=3 chunks=4 chunks whole=no "
            "path=6");
}

TEST_F(TraceDumpTest, OfACutDumpIsReadWhatIsThere) {
  fill();
  const auto whole = copy_counters(file_->bytes(), "a test");
  ASSERT_TRUE(whole);
  const std::string path = folder_ + "/cut.trace";
  size_t events_seen = 0;
  size_t blocks_seen = 0;
  for (size_t length = 0; length < whole->size(); length += 8) {
    ASSERT_TRUE(write_trace(path, std::span(*whole).first(length)));
    const auto bytes = TraceBytes::load(path);
    ASSERT_TRUE(bytes) << bytes.error().message();
    std::vector<std::string> damages;
    const auto read = salvage_counters(bytes->bytes(), damages);
    ASSERT_EQ(read.ok(), length >= sizeof(counter_layout::FileHeader)) << length;
    if (read) {
      EXPECT_FALSE(damages.empty()) << length;
      blocks_seen = std::max(blocks_seen, read->blocks.size());
      events_seen = std::max(events_seen, read->rings.empty() ? 0 : read->rings[0].events.size());
    }
  }
  EXPECT_EQ(blocks_seen, 3U) << "they lie before the ring that was cut";
  EXPECT_GT(events_seen, 8U) << "the slots that are there";
}

TEST_F(TraceDumpTest, TheOldestDumpsMakeRoom) {
  for (int i = 0; i < 4; ++i) {
    const std::string path = folder_ + "/nccl-ha-1-" + std::to_string(i) + ".trace";
    std::ofstream(path) << std::string(1000, 'x');
    files::last_write_time(path, files::file_time_type::clock::now() - std::chrono::hours(10 - i));
  }
  std::ofstream(folder_ + "/other.trace") << std::string(1000, 'x');
  make_room_for_traces(folder_, 3000, 1000);
  EXPECT_FALSE(files::exists(folder_ + "/nccl-ha-1-0.trace"));
  EXPECT_FALSE(files::exists(folder_ + "/nccl-ha-1-1.trace"));
  EXPECT_TRUE(files::exists(folder_ + "/nccl-ha-1-2.trace"));
  EXPECT_TRUE(files::exists(folder_ + "/nccl-ha-1-3.trace"));
  EXPECT_TRUE(files::exists(folder_ + "/other.trace"));
}

TEST_F(TraceDumpTest, DraftsOfWhoWasKilledGoAndThoseOfOthersCount) {
  const auto make = [this](const std::string& name, int minutes) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path) << std::string(1000, 'x');
    files::last_write_time(path,
                           files::file_time_type::clock::now() - std::chrono::minutes(minutes));
    return path;
  };
  const std::string left = make("nccl-ha-1-2-0.trace.0123456789abcdef.tmp", 11);
  const std::string under_way = make("nccl-ha-1-3-0.trace.0123456789abcdef.tmp", 1);
  const std::string counters = make("nccl-ha-1-0123456789abcdef.tmp", 11);
  const std::string older = make("nccl-ha-1-4-0.trace", 9);
  const std::string newer = make("nccl-ha-1-5-0.trace", 8);
  make_room_for_traces(folder_, 3000, 1000);
  EXPECT_FALSE(files::exists(left));
  EXPECT_TRUE(files::exists(under_way));
  EXPECT_TRUE(files::exists(counters)) << "CounterFile knows whether its process is there";
  EXPECT_FALSE(files::exists(older));
  EXPECT_TRUE(files::exists(newer));
}

TEST_F(TraceDumpTest, ErrorsSayWhichFile) {
  const auto none = TraceBytes::load(folder_ + "/none");
  EXPECT_NE(none.error().message().find(folder_ + "/none"), std::string::npos);
  const auto folder = TraceBytes::load(folder_);
  EXPECT_NE(folder.error().message().find("no regular file"), std::string::npos);
  EXPECT_FALSE(copy_counters({}, "x"));
}

}  // namespace
}  // namespace nccl_ha
