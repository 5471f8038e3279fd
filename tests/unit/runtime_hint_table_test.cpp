#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "runtime/telemetry/agent_directory.h"
#include "runtime/telemetry/hint_table.h"
#include "runtime/telemetry/hint_writer.h"
#include "tests/support/temporary_folder.h"

namespace nccl_ha {
namespace {

using std::chrono::milliseconds;

constexpr Instant hints_begin = Instant(std::chrono::seconds(100));
constexpr Duration hint_silence = milliseconds(500);
constexpr uint64_t hinted_flow = 77;

class HintTableTest : public testing::Test {
 protected:
  std::unique_ptr<HintWriter> make(uint32_t slots = 8) {
    auto directory = AgentDirectory::make(path_);
    EXPECT_TRUE(directory) << directory.error().message();
    auto writer = HintWriter::create(*directory, {slots, milliseconds(20)}, hints_begin);
    EXPECT_TRUE(writer) << writer.error().message();
    return writer ? std::move(*writer) : nullptr;
  }
  std::shared_ptr<const HintTable> open(uint64_t generation = 0) {
    auto table = HintTable::open(path_, generation);
    EXPECT_TRUE(table) << table.error().message();
    return table ? *table : nullptr;
  }
  std::string file() const { return path_ + "/hints"; }
  /// Overwrites what stands there, behind everybody's back.
  void poke(size_t offset, const void* bytes, size_t count) {
    const int fd = ::open(file().c_str(), O_WRONLY);
    ASSERT_GE(fd, 0);
    EXPECT_EQ(pwrite(fd, bytes, count, static_cast<off_t>(offset)), static_cast<ssize_t>(count));
    close(fd);
  }

  tests::TemporaryFolder temporary_;
  const std::string path_{temporary_.path()};
};

TEST_F(HintTableTest, WhatIsWrittenIsRead) {
  const auto writer = make();
  const auto table = open(writer->generation());
  ASSERT_TRUE(table);
  EXPECT_EQ(table->slots(), 8U);
  EXPECT_EQ(table->pid(), static_cast<uint32_t>(getpid()));
  writer->write(3, hinted_flow, {256, hint_layout::backpressure}, hints_begin);
  const HintReading reading =
      table->read(3, hinted_flow, hints_begin + milliseconds(1), hint_silence);
  EXPECT_EQ(reading.state, HintReading::State::fresh);
  EXPECT_EQ(reading.hint, (Hint{256, hint_layout::backpressure}));
  writer->clear(3, hints_begin);
  EXPECT_EQ(table->read(3, hinted_flow, hints_begin, hint_silence).state,
            HintReading::State::foreign);
}

TEST_F(HintTableTest, ASlotOfAnotherFlowOrOutsideSaysNothing) {
  const auto writer = make();
  const auto table = open();
  writer->write(0, hinted_flow + 2, {1, 0}, hints_begin);
  EXPECT_EQ(table->read(0, hinted_flow, hints_begin, hint_silence).state,
            HintReading::State::foreign);
  EXPECT_EQ(table->read(8, hinted_flow, hints_begin, hint_silence).state,
            HintReading::State::foreign);
  EXPECT_EQ(table->read(UINT32_MAX, hinted_flow, hints_begin, hint_silence).state,
            HintReading::State::foreign);
}

TEST_F(HintTableTest, TheFirstAndTheLastSlotAreSlotsAndNoneBeyond) {
  const auto writer = make();
  const auto table = open();
  for (uint32_t slot = 0; slot < 8; ++slot) {
    writer->write(slot, hinted_flow + slot, {slot + 1, 0}, hints_begin);
  }
  for (uint32_t slot = 0; slot < 8; ++slot) {
    const HintReading read = table->read(slot, hinted_flow + slot, hints_begin, hint_silence);
    EXPECT_EQ(read.state, HintReading::State::fresh) << slot;
    EXPECT_EQ(read.hint.share, slot + 1);
  }
  // Where the file ends the page is full of zeros.
  EXPECT_EQ(table->read(8, 0, hints_begin, hint_silence).state, HintReading::State::foreign);
}

TEST_F(HintTableTest, HintsOfAnAgentThatIsSilentDoNotCount) {
  const auto writer = make();
  const auto table = open();
  writer->write(0, hinted_flow, {1024, 0}, hints_begin);
  EXPECT_TRUE(table->read(0, hinted_flow, hints_begin + hint_silence, hint_silence).fresh());
  EXPECT_EQ(
      table->read(0, hinted_flow, hints_begin + hint_silence + Duration(1), hint_silence).state,
      HintReading::State::silent);
  writer->give_heartbeat(hints_begin + hint_silence);
  EXPECT_TRUE(
      table->read(0, hinted_flow, hints_begin + hint_silence + Duration(1), hint_silence).fresh());
  // A caller whose reading of the clock is older than the heartbeat.
  EXPECT_TRUE(table->read(0, hinted_flow, hints_begin, hint_silence).fresh());
}

TEST_F(HintTableTest, AShareBeyondTheWholeIsTheWhole) {
  const auto writer = make();
  const auto table = open();
  writer->write(0, hinted_flow, {5000, 0}, hints_begin);
  EXPECT_EQ(table->read(0, hinted_flow, hints_begin, hint_silence).hint.share, hint_layout::whole);
}

TEST_F(HintTableTest, AWriterThatDiedInTheMiddleOfAWriteHoldsNobodyUp) {
  const auto writer = make();
  const auto table = open();
  writer->write(2, hinted_flow, {100, 0}, hints_begin);
  const uint64_t odd = 3;
  poke(sizeof(hint_layout::FileHeader) + 2 * sizeof(hint_layout::Slot), &odd, sizeof odd);
  EXPECT_EQ(table->read(2, hinted_flow, hints_begin, hint_silence).state, HintReading::State::torn);
  EXPECT_EQ(table->last_hint_of(hinted_flow), std::nullopt);
}

TEST_F(HintTableTest, ReadersKeepTheOldTableWhenAnotherAgentComes) {
  auto first = make();
  const auto old = open();
  first->write(1, hinted_flow, {300, 0}, hints_begin);
  first.reset();
  EXPECT_TRUE(old->read(1, hinted_flow, hints_begin + milliseconds(100), hint_silence).fresh())
      << "an agent that is replaced is not noticed at once";
  EXPECT_EQ(open()->last_hint_of(hinted_flow), (Hint{300, 0}));
  EXPECT_EQ(open()->last_hint_of(hinted_flow + 2), std::nullopt);
  const auto second = make();
  EXPECT_NE(second->generation(), old->generation());
  EXPECT_EQ(HintTable::open(path_, old->generation()).code(), Errc::again);
  second->write(1, hinted_flow, {700, 0}, hints_begin);
  EXPECT_EQ(old->read(1, hinted_flow, hints_begin, hint_silence).hint.share, 300U);
  EXPECT_EQ(open(second->generation())->read(1, hinted_flow, hints_begin, hint_silence).hint.share,
            700U);
}

TEST_F(HintTableTest, WhatIsNoTableIsRefusedWithItsName) {
  EXPECT_EQ(HintTable::open(path_, 0).error().sys, ENOENT);
  make();
  const uint32_t other_version = 9;
  poke(8, &other_version, sizeof other_version);
  EXPECT_NE(HintTable::open(path_, 0).error().message().find("version 9"), std::string::npos);
  make();
  const uint32_t more_slots = 9;
  poke(52, &more_slots, sizeof more_slots);
  EXPECT_EQ(HintTable::open(path_, 0).code(), Errc::invalid_argument);
  make();
  ASSERT_EQ(truncate(file().c_str(), 40), 0);
  EXPECT_NE(HintTable::open(path_, 0).error().message().find(file()), std::string::npos);
  make();
  ASSERT_EQ(chmod(file().c_str(), 0666), 0);
  EXPECT_EQ(HintTable::open(path_, 0).code(), Errc::invalid_argument);
  std::filesystem::remove(file());
  ASSERT_EQ(symlink("/etc/passwd", file().c_str()), 0);
  EXPECT_FALSE(HintTable::open(path_, 0));
}

TEST_F(HintTableTest, ADirectoryThatOthersMayWriteToIsRefused) {
  make();
  ASSERT_EQ(chmod(path_.c_str(), 0777), 0);
  const auto refused = HintTable::open(path_, 0);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("others may write to it"), std::string::npos);
  EXPECT_NE(refused.error().message().find("HA_NCCL_AGENT_DIR"), std::string::npos);
  EXPECT_FALSE(AgentDirectory::make(path_));
  ASSERT_EQ(chmod(path_.c_str(), 0755), 0);
  const std::string link = path_ + "-link";
  ASSERT_EQ(symlink(path_.c_str(), link.c_str()), 0);
  EXPECT_EQ(AgentDirectory::open(link).code(), Errc::invalid_argument);
  std::filesystem::remove(link);
  EXPECT_EQ(AgentDirectory::open("relative").code(), Errc::invalid_argument);
  EXPECT_EQ(AgentDirectory::open("/" + std::string(200, 'x')).code(), Errc::invalid_argument);
  EXPECT_EQ(AgentDirectory::open(path_ + "/missing").error().sys, ENOENT);
  if (geteuid() == 0) {
    ASSERT_EQ(chown(path_.c_str(), 65534, 65534), 0);
    EXPECT_EQ(AgentDirectory::open(path_).code(), Errc::invalid_argument);
  }
}

// A service's user owns the folder that systemd makes for it.
TEST_F(HintTableTest, BelowRunADirectoryIsOfWhomRootGaveItTo) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "only root makes folders there";
  }
  const tests::TemporaryFolder given("/run");
  const std::string path(given.path());
  const std::string inside = path + "/mpib";
  ASSERT_EQ(mkdir(inside.c_str(), 0755), 0);
  ASSERT_TRUE(chmod(path.c_str(), 0755) == 0 && chown(path.c_str(), 65534, 65534) == 0 &&
              chown(inside.c_str(), 65534, 65534) == 0);
  const auto directory = AgentDirectory::open(path);
  ASSERT_TRUE(directory) << directory.error().message();
  EXPECT_EQ(directory->owner(), 65534U);
  EXPECT_EQ(AgentDirectory::open(inside).code(), Errc::invalid_argument) << "its owner made it";
  ASSERT_EQ(chmod(path.c_str(), 0775), 0);
  EXPECT_EQ(AgentDirectory::open(path).code(), Errc::invalid_argument);
}

// Both halves of a state are written with the same number, so a mixture is seen.
TEST_F(HintTableTest, NoReaderSeesHalfOfAWrite) {
  const auto writer = make();
  const auto table = open();
  std::atomic<bool> ended{false};
  constexpr uint64_t rounds_min = 200000;
  std::atomic<uint64_t> seen{0};
  writer->write(0, 1, {1, 0}, hints_begin);
  std::thread reader([&] {
    while (!ended.load(std::memory_order_acquire)) {
      for (const uint64_t one : {uint64_t{1}, uint64_t{3}}) {
        const HintReading reading = table->read(0, one, hints_begin, hint_silence);
        if (reading.fresh()) {
          ASSERT_EQ(reading.hint.share, one);
          ASSERT_EQ(reading.hint.flags, one - 1);
          seen.fetch_add(1, std::memory_order_relaxed);
        }
      }
    }
  });
  for (uint64_t i = 0; i < rounds_min || seen.load(std::memory_order_relaxed) < 100; ++i) {
    const uint64_t one = i % 2 == 0 ? 3 : 1;
    writer->write(0, one, {static_cast<uint32_t>(one), static_cast<uint32_t>(one - 1)},
                  hints_begin);
  }
  ended.store(true, std::memory_order_release);
  reader.join();
}

TEST_F(HintTableTest, AForkDoesNotHaveIt) {
  const auto writer = make();
  auto table = open();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::ifstream maps("/proc/self/maps");
    std::string line;
    bool mapped = false;
    while (std::getline(maps, line)) {
      // The agent's own, which may be written, is in this process too.
      mapped = mapped ||
               (line.find(path_) != std::string::npos && line.find(" rw-s ") == std::string::npos);
    }
    table.reset();
    _exit(mapped ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  writer->write(0, hinted_flow, {1, 0}, hints_begin);
  EXPECT_TRUE(table->read(0, hinted_flow, hints_begin, hint_silence).fresh());
}

// Whatever state SIGKILL leaves, readers end, and the next agent takes over.
TEST_F(HintTableTest, SigkillWhileItWritesAllTheTime) {
  for (int round = 0; round < 20; ++round) {
    make();
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      auto directory = AgentDirectory::make(path_);
      auto writer = HintWriter::create(*directory, {8, milliseconds(20)}, hints_begin);
      for (uint32_t i = 0; writer; ++i) {
        (*writer)->write(i % 8, hinted_flow, {i % 1025, 0}, hints_begin);
      }
      _exit(1);
    }
    // As soon as the child's table is there, at a moment that nobody chose.
    std::shared_ptr<const HintTable> table;
    do {
      table = open();
    } while (table->pid() != static_cast<uint32_t>(child));
    for (int i = 0; i < 1000 * round; ++i) {
      static_cast<void>(
          table->read(static_cast<uint32_t>(i % 8), hinted_flow, hints_begin, hint_silence));
    }
    ASSERT_EQ(kill(child, SIGKILL), 0);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    for (uint32_t slot = 0; slot < 8; ++slot) {
      const HintReading reading = table->read(slot, hinted_flow, hints_begin, hint_silence);
      EXPECT_LE(reading.hint.share, hint_layout::whole);
    }
    const auto next = make();
    next->write(0, hinted_flow, {1, 0}, hints_begin);
    EXPECT_TRUE(open(next->generation())->read(0, hinted_flow, hints_begin, hint_silence).fresh());
  }
}

}  // namespace
}  // namespace nccl_ha
