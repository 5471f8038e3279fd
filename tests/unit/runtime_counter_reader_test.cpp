#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <span>
#include <thread>

#include "runtime/telemetry/counter_reader.h"
#include "runtime/telemetry/recorder.h"
#include "runtime/telemetry/trace_dump.h"
#include "tests/support/counter_files.h"
#include "tests/support/counter_process.h"

namespace nccl_ha {
namespace {

namespace files = std::filesystem;
using Block = CounterBlock<ConnectionCounters>;

/// Aligned as a mapping is.
class Words {
 public:
  explicit Words(size_t count) : lines_((count + 7) / 8), count_(count) {}
  uint64_t* data() { return lines_.empty() ? nullptr : lines_.front().words; }
  size_t size() const { return count_; }
  std::span<const std::byte> bytes() const {
    return std::as_bytes(std::span(lines_)).first(count_ * 8);
  }
  Words first(size_t count) const {
    Words part(count);
    part.lines_.assign(lines_.begin(), lines_.begin() + static_cast<ptrdiff_t>((count + 7) / 8));
    return part;
  }

 private:
  struct alignas(64) Line {
    uint64_t words[8] = {};
  };
  std::vector<Line> lines_;
  size_t count_;
};

class CounterReaderTest : public test::CounterFiles {
 protected:
  /// The bytes of a good file, aligned.
  Words good() {
    const auto file = make();
    const CounterBlock<WorkerCounters> worker({file, 0}, "worker 0");
    Recorder recorder(worker.place(), 16);
    recorder.record(TraceEvent::path_down, 7, 1, 2, Instant(Duration(1234)));
    Words words(files::file_size(file->path()) / 8);
    std::ifstream(file->path(), std::ios::binary)
        .read(reinterpret_cast<char*>(words.data()),
              static_cast<std::streamsize>(words.size() * 8));
    return words;
  }
  static std::string parse(const Words& words) {
    const auto result = parse_counters(words.bytes());
    return result ? "" : result.error().message();
  }
  static counter_layout::FileHeader& header(Words& words) {
    return *reinterpret_cast<counter_layout::FileHeader*>(words.data());
  }
};

TEST_F(CounterReaderTest, ReadsWhatWasWritten) { EXPECT_EQ(parse(good()), ""); }

TEST_F(CounterReaderTest, AnotherVersionIsNamed) {
  auto words = good();
  header(words).version = 99;
  EXPECT_NE(parse(words).find("layout 99"), std::string::npos) << parse(words);
}

TEST_F(CounterReaderTest, AnotherMagicIsNoFileOfOurs) {
  auto words = good();
  header(words).magic[0] = 'x';
  EXPECT_NE(parse(words).find("holds no counters"), std::string::npos) << parse(words);
  EXPECT_NE(parse(Words(0)).find("holds no counters"), std::string::npos);
}

TEST_F(CounterReaderTest, ATruncatedFileIsDamagedWhereverItEnds) {
  const auto words = good();
  for (size_t length = 1; length < words.size(); ++length) {
    ASSERT_NE(parse(words.first(length)), "") << length;
  }
}

TEST_F(CounterReaderTest, EveryTableIsCheckedAgainstTheFile) {
  using Header = counter_layout::FileHeader;
  for (const auto section : {&Header::scopes, &Header::counters, &Header::events, &Header::strings,
                             &Header::blocks, &Header::rings}) {
    auto words = good();
    (header(words).*section).offset = header(words).file_bytes - 8;
    EXPECT_NE(parse(words).find("a table lies outside"), std::string::npos);
    words = good();
    (header(words).*section).count = UINT32_MAX;
    EXPECT_NE(parse(words).find("a table lies outside"), std::string::npos);
    words = good();
    (header(words).*section).entry_bytes = 0;
    EXPECT_NE(parse(words).find("a table lies outside"), std::string::npos);
    words = good();
    (header(words).*section).offset = UINT64_MAX - 7;
    EXPECT_NE(parse(words).find("a table lies outside"), std::string::npos);
  }
}

TEST_F(CounterReaderTest, ARingOutsideOfTheFileIsDamage) {
  auto words = good();
  auto* ring =
      reinterpret_cast<counter_layout::Ring*>(words.data() + header(words).rings.offset / 8);
  ring->capacity = uint64_t{1} << 62;
  EXPECT_NE(parse(words).find("flight recorder"), std::string::npos) << parse(words);
  ring->capacity = 3;
  EXPECT_NE(parse(words).find("flight recorder"), std::string::npos) << parse(words);
}

TEST_F(CounterReaderTest, RecordersThatLieOverEachOtherAreDamage) {
  constexpr uint32_t recorders = 64;
  const auto file = CounterFile::create({folder_, 8, recorders, 16});
  Words words(files::file_size(file->path()) / 8);
  std::ifstream(file->path(), std::ios::binary)
      .read(reinterpret_cast<char*>(words.data()), static_cast<std::streamsize>(words.size() * 8));
  ASSERT_EQ(header(words).rings.count, recorders);
  auto* rings =
      reinterpret_cast<counter_layout::Ring*>(words.data() + header(words).rings.offset / 8);
  for (uint32_t i = 0; i < recorders; ++i) {
    rings[i].owner.store(1);
    rings[i].capacity = 512;
    rings[i].slots_offset = 64;
    rings[i].written.store(512);
  }
  EXPECT_NE(parse(words).find("over each other"), std::string::npos) << parse(words);
  std::vector<std::string> damages;
  const auto salvaged = salvage_counters(words.bytes(), damages);
  ASSERT_TRUE(salvaged);
  size_t events = 0;
  for (const auto& ring : salvaged->rings) {
    events += ring.events.size();
  }
  EXPECT_LE(events * sizeof(counter_layout::RingSlot), words.size() * 8);
  EXPECT_FALSE(damages.empty());
  EXPECT_FALSE(copy_counters(words.bytes(), "a test"));
}

TEST_F(CounterReaderTest, LabelsCannotReachTheTerminal) {
  const auto file = make();
  const Block block({file, 0}, "\x1b[2Jx");
  EXPECT_EQ(find(read(), block.id())->label, "?[2Jx");
}

TEST_F(CounterReaderTest, ErrorsSayWhatIsWrong) {
  const auto message = [this](uint32_t pid) {
    const auto found = read_counters_of(pid, folder_);
    return found ? "" : found.error().message();
  };
  EXPECT_NE(message(static_cast<uint32_t>(getpid())).find("has not loaded the plugin"),
            std::string::npos);
  pid_t gone = 0;
  in_fork([] {}, true, &gone);
  EXPECT_NE(message(static_cast<uint32_t>(gone)).find("there is no process"), std::string::npos);
  std::ofstream(folder_ + "/nccl-ha-1-0.counters") << "garbage";
  EXPECT_NE(message(1).find("holds no counters"), std::string::npos) << message(1);
  std::ofstream(folder_ + "/nccl-ha-1-0.counters", std::ios::trunc).flush();
  EXPECT_NE(message(1).find("holds no counters"), std::string::npos) << message(1);
  files::remove(folder_ + "/nccl-ha-1-0.counters");
  files::create_directory(folder_ + "/nccl-ha-1-0.counters");
  EXPECT_NE(message(1).find("no regular file"), std::string::npos) << message(1);
}

TEST_F(CounterReaderTest, AFileOfAnotherUserIsRefused) {
  const auto file = make();
  const auto pid = static_cast<uint32_t>(getpid());
  // Root is somebody else for a moment; others have none of their own that they may not read.
  const int status = in_fork([&] {
    const bool other = geteuid() == 0 ? chmod(folder_.c_str(), 0755) == 0 && seteuid(65534) == 0
                                      : chmod(file->path().c_str(), 0) == 0;
    const auto found = read_counters_of(pid, folder_);
    const bool refused =
        !found && found.error().message().find("another user") != std::string::npos;
    _exit(other && refused ? 0 : 1);
  });
  EXPECT_EQ(status, 0);
}

// A mapping of what its owner cuts off ends its reader by SIGBUS.
TEST_F(CounterReaderTest, AnOwnerWhoCutsAFileShortMeanwhileStopsNoReader) {
  const auto file = make();
  const std::string path = file->path();
  const std::string copy = folder_ + "/nccl-ha-1-7.counters";
  files::copy_file(path, copy);
  const auto whole = files::file_size(path);
  const int status = in_fork([&] {
    std::atomic<bool> ends{false};
    std::atomic<int> reads{0};
    std::thread owner([&] {
      // How fast the two are decides nothing: now and then the file stays as it is for a read.
      const auto await_reads = [&] {
        for (const int seen = reads; reads < seen + 2 && !ends;) {
          std::this_thread::yield();
        }
      };
      for (int round = 0; !ends; ++round) {
        static_cast<void>(truncate(copy.c_str(), 0));
        if (round % 3 == 1) {
          await_reads();
        }
        files::copy_file(path, copy, files::copy_options::overwrite_existing);
        if (round % 3 == 2) {
          await_reads();
        }
      }
    });
    int good = 0;
    int bad = 0;
    while ((good < 20 || bad < 20) && good + bad < 100000) {
      const auto read = read_counter_file(copy);
      const auto copied = copy_counter_file(copy, "a test", EventsWanted::yes);
      ++(read && copied ? good : bad);
      ++reads;
    }
    ends = true;
    owner.join();
    _exit(good >= 20 && bad >= 20 ? 0 : 1);
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(files::file_size(path), whole);
}

// As root: a file of one user that names the process of another.
TEST_F(CounterReaderTest, NobodySpeaksForTheProcessOfAnotherUser) {
  constexpr uid_t user = 65534;
  const auto file = make();
  const auto pid = static_cast<uint32_t>(getpid());
  const std::string planted = fmt::format("{}/nccl-ha-{}-9.counters", folder_, pid);
  files::copy_file(file->path(), planted);
  ASSERT_EQ(chmod(planted.c_str(), 0600), 0);
  const bool root = geteuid() == 0;
  ASSERT_EQ(chown(planted.c_str(), root ? user : geteuid(), gid_t(-1)), 0);
  const size_t known = root ? 1 : 2;  // who is not root has nobody else's files
  EXPECT_EQ(find_counter_files(folder_, CounterOwner::anybody).size(), known);
  const auto own = read_counters_of(pid, folder_);
  ASSERT_TRUE(own) << own.error().message();
  EXPECT_EQ(own->size(), known);
  files::rename(planted, fmt::format("{}/nccl-ha-{}-9.counters", folder_, getppid()));
  const auto of_parent = read_counters_of(static_cast<uint32_t>(getppid()), folder_);
  EXPECT_EQ(of_parent.ok(), !root);
  if (!of_parent) {
    EXPECT_NE(of_parent.error().what.find("belongs to another user"), std::string::npos);
  }
}

TEST_F(CounterReaderTest, RootCountsTheFilesThatProcessesOfOtherUsersMadeForThemselves) {
  const bool root = geteuid() == 0;
  const auto file = make();
  const test::CounterProcess other(folder_, root ? uid_t{65534} : geteuid());
  ASSERT_TRUE(other.ready());
  const std::string path = fmt::format("{}/nccl-ha-{}-0.counters", folder_, other.pid());
  const auto found = [&](CounterOwner owner) { return find_counter_files(folder_, owner).size(); };
  EXPECT_EQ(found(CounterOwner::anybody), 2U);
  EXPECT_EQ(found(CounterOwner::this_user), root ? 1U : 2U);
  EXPECT_TRUE(read_counters_of(static_cast<uint32_t>(other.pid()), folder_));
  ASSERT_EQ(chmod(path.c_str(), 0644), 0);
  EXPECT_EQ(found(CounterOwner::anybody), root ? 1U : 2U) << "no process of ours makes such a file";
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  // A header that names a process of somebody else.
  std::fstream header(path, std::ios::in | std::ios::out | std::ios::binary);
  header.seekp(offsetof(counter_layout::FileHeader, pid));
  const auto self = static_cast<uint32_t>(getpid());
  header.write(reinterpret_cast<const char*>(&self), sizeof self).flush();
  EXPECT_EQ(found(CounterOwner::anybody), root ? 1U : 2U);
  EXPECT_EQ(read_counters_of(static_cast<uint32_t>(other.pid()), folder_).ok(), !root);
}

}  // namespace
}  // namespace nccl_ha
