#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <set>
#include <thread>

#include "runtime/engine/engine.h"
#include "runtime/telemetry/counter_file.h"
#include "runtime/telemetry/recorder.h"
#include "tests/rig/sim/world.h"
#include "tests/support/counter_files.h"
#include "tests/support/log_lines.h"

namespace nccl_ha {
namespace {

namespace files = std::filesystem;
using Block = CounterBlock<ConnectionCounters>;

class CounterFileTest : public test::CounterFiles {};

TEST(Counters, NamesAreUniqueAndEachHasAUnitAndHelp) {
  std::set<std::string> scopes;
  for (const CounterScopeInfo& scope : counter_scopes()) {
    EXPECT_TRUE(scopes.insert(scope.name).second) << scope.name;
    EXPECT_LE(scope.counters.size(), counter_layout::values_max) << scope.name;
    std::set<std::string> names;
    for (const CounterInfo& info : scope.counters) {
      EXPECT_TRUE(names.insert(info.name).second) << scope.name << " " << info.name;
      EXPECT_FALSE(std::string(info.help).empty()) << info.name;
    }
  }
}

TEST_F(CounterFileTest, ABlockIsReadWithItsNamesAndValues) {
  const auto file = make();
  ASSERT_TRUE(file);
  const CounterBlock<WorkerCounters> worker({file, 0}, "worker 0");
  const Block block(worker.place(), "send to b");
  block->sends.add(3);
  block->bytes_sent += 4096;
  ++block->sends_done;
  const CounterSnapshot snapshot = read();
  EXPECT_EQ(snapshot.pid, static_cast<uint32_t>(getpid()));
  EXPECT_EQ(value(snapshot, block.id(), "sends"), 3U);
  EXPECT_EQ(value(snapshot, block.id(), "bytes_sent"), 4096U);
  EXPECT_EQ(value(snapshot, block.id(), "sends_done"), 1U);
  const auto* read = find(snapshot, block.id());
  ASSERT_NE(read, nullptr);
  EXPECT_EQ(read->label, "send to b");
  EXPECT_EQ(read->parent, worker.id());
  EXPECT_EQ(snapshot.scopes[read->scope].name, "connection");
  EXPECT_EQ(snapshot.scopes[read->scope].counters[0].unit, "requests");
  EXPECT_FALSE(read->ended);
}

TEST_F(CounterFileTest, OnlyItsUserMayReadTheFileAndAllOfItIsThere) {
  const auto file = make();
  ASSERT_TRUE(file);
  struct stat info {};
  ASSERT_EQ(stat(file->path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0600U);
  EXPECT_GE(info.st_blocks * 512, info.st_size) << "a full file system would be a signal later";
  EXPECT_EQ(names().size(), 1U) << "what it was made as is left over";
}

TEST_F(CounterFileTest, TheDefaultTakesLessThanTwoMegabytes) {
  const auto file = CounterFile::create({folder_, 4096, 1, 4096});
  ASSERT_TRUE(file);
  EXPECT_LT(files::file_size(file->path()), 2U << 20);
}

TEST_F(CounterFileTest, AnEndedBlockKeepsItsValuesUntilItIsUsedAgain) {
  const auto file = make(2);  // and the process's own
  uint64_t first = 0;
  {
    const Block block({file, 0}, "first");
    first = block.id();
    block->sends.add(7);
  }
  EXPECT_TRUE(find(read(), first)->ended);
  EXPECT_EQ(value(read(), first, "sends"), 7U);
  const Block second({file, 0}, "second");  // takes the place that was never used
  EXPECT_NE(find(read(), first), nullptr);
  const Block third({file, 0}, "third");
  EXPECT_EQ(find(read(), first), nullptr) << "its place has another now";
  EXPECT_EQ(value(read(), third.id(), "sends"), 0U);
  EXPECT_GT(third.id(), second.id());
}

TEST_F(CounterFileTest, WithoutRoomABlockIsPlainMemoryAndTheProcessCountsIt) {
  const test::LogLines log;
  const auto file = make(1);
  const Block seen({file, 0}, "seen");
  const Block unseen({file, 0}, "unseen");
  const Block also({file, 0}, "also");
  unseen->sends.add(2);
  EXPECT_EQ(unseen->sends.get(), 2U);
  EXPECT_EQ(unseen.id(), 0U);
  const CounterSnapshot snapshot = read();
  EXPECT_EQ(value(snapshot, 1, "blocks_refused"), 2U);
  EXPECT_EQ(value(snapshot, 1, "blocks_live"), 2U);
  EXPECT_EQ(log.count("HA_NCCL_COUNTERS_BLOCKS"), 1U) << "it is said once";
}

TEST_F(CounterFileTest, ALongLabelIsCut) {
  const auto file = make();
  const std::string text(200, 'x');
  const Block block({file, 0}, text);
  EXPECT_EQ(find(read(), block.id())->label, text.substr(0, counter_layout::label_bytes));
}

TEST_F(CounterFileTest, ReadersNeverSeeATornLabelOrAnothersValues) {
  const auto file = make(1);
  const std::string path = file->path();
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (unsigned round = 0; !stop.load(std::memory_order_relaxed); ++round) {
      const char letter = static_cast<char>('a' + round % 26);
      Block block({file, 0}, std::string(80, letter));
      block.rename(0, std::string(60, letter));
      std::this_thread::yield();  // a reader gives up on what is written all the time
    }
  });
  size_t seen = 0;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  for (int round = 0; round < 2000 || seen == 0; ++round) {
    const CounterSnapshot snapshot = read();
    for (const auto& block : snapshot.blocks) {
      if (block.id == 1) {
        continue;
      }
      ++seen;
      ASSERT_TRUE(block.label.size() == 80 || block.label.size() == 60) << block.label;
      ASSERT_EQ(block.label, std::string(block.label.size(), block.label[0]));
    }
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
  }
  stop.store(true);
  writer.join();
}

TEST_F(CounterFileTest, AnEmptyDirectoryIsNoFileAndNoMessage) {
  const test::LogLines log;
  EXPECT_EQ(CounterFile::create({"", 8, 1, 16}), nullptr);
  EXPECT_EQ(log.count(""), 0U);
  const Block block;
  block->sends.add();
  EXPECT_EQ(block->sends.get(), 1U);
}

TEST_F(CounterFileTest, ADirectoryThatIsNotThereIsOneLineAndPlainMemory) {
  const test::LogLines log;
  EXPECT_EQ(CounterFile::create({folder_ + "/nowhere", 8, 1, 16}), nullptr);
  EXPECT_EQ(log.count("HA_NCCL_COUNTERS_DIR"), 1U);
}

TEST_F(CounterFileTest, ALimitOnTheSizeOfFilesIsNoSignal) {
  const test::LogLines log;
  const int status = in_fork([this] {
    const rlimit little{4096, 4096};
    if (setrlimit(RLIMIT_FSIZE, &little) != 0 || make() != nullptr) {
      _exit(1);
    }
  });
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_TRUE(names().empty());
}

TEST_F(CounterFileTest, TwoOfOneProcessDoNotMeet) {
  const auto first = make();
  const auto second = make();
  ASSERT_TRUE(first && second);
  EXPECT_NE(first->path(), second->path());
  const Block a({first, 0}, "a");
  const Block b({second, 0}, "b");
  a->sends.add(1);
  b->sends.add(2);
  const auto both = read_counters_of(static_cast<uint32_t>(getpid()), folder_);
  ASSERT_TRUE(both);
  ASSERT_EQ(both->size(), 2U);
  EXPECT_EQ(value((*both)[0].snapshot, a.id(), "sends"), 1U);
  EXPECT_EQ(value((*both)[1].snapshot, b.id(), "sends"), 2U);
}

TEST_F(CounterFileTest, TheFileGoesWithItsOwnerAndBlocksMayOutliveIt) {
  auto file = make();
  Block block({file, 0}, "late");
  file->remove();
  EXPECT_TRUE(names().empty());
  file.reset();
  block->sends.add();
  EXPECT_EQ(block->sends.get(), 1U);
}

TEST_F(CounterFileTest, AForkTakesNothingAwayFromItsParent) {
  auto file = make();
  auto block = std::make_unique<Block>(CounterPlace{file, 0}, "parent's");
  const uint64_t id = block->id();
  (*block)->sends.add(5);
  const int status = in_fork([&] {
    block.reset();
    const Block other({file, 0}, "child's");
    const bool plain = other.id() == 0;
    file->remove();
    file.reset();
    _exit(plain ? 0 : 1);
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(names().size(), 1U);
  EXPECT_FALSE(find(read(), id)->ended);
  EXPECT_EQ(value(read(), id, "sends"), 5U);
}

TEST_F(CounterFileTest, AKilledProcessLeavesItsLastValuesAndEvents) {
  pid_t pid = 0;
  const int status = in_fork(
      [this] {
        const auto file = make();
        const CounterBlock<WorkerCounters> worker({file, 0}, "worker 0");
        Recorder recorder(worker.place(), 16);
        const Block block(worker.place(), "send to b");
        block->sends.add(42);
        recorder.record(TraceEvent::path_down, 7, 1, 2, Instant(Duration(1234)));
        raise(SIGKILL);
      },
      true, &pid);
  ASSERT_TRUE(WIFSIGNALED(status));
  const auto found = read_counters_of(static_cast<uint32_t>(pid), folder_);
  ASSERT_TRUE(found) << found.error().message();
  const ProcessCounterFile& file = found->front();
  EXPECT_FALSE(file.running);
  EXPECT_EQ(value(file.snapshot, 3, "sends"), 42U);
  ASSERT_EQ(file.snapshot.rings.size(), 1U);
  EXPECT_EQ(file.snapshot.rings[0].owner, 2U);
  ASSERT_EQ(file.snapshot.rings[0].events.size(), 1U);
  const RecordedEvent& event = file.snapshot.rings[0].events[0];
  const CounterSnapshot::EventKind& kind = file.snapshot.kind_of(event);
  EXPECT_EQ(kind.name, "path_down");
  ASSERT_EQ(kind.fields.size(), 2U);
  EXPECT_EQ(kind.fields[0].name, "path");
  EXPECT_EQ(kind.fields[1].name, "epoch");
  EXPECT_EQ(event.time_ns, 1234);
  EXPECT_EQ(event.actor, 7U);
  EXPECT_EQ(event.a, 1U);
  EXPECT_EQ(event.b, 2U);
}

TEST_F(CounterFileTest, ARunningProcessIsSaidToRun) {
  const auto file = make();
  const auto found = read_counters_of(static_cast<uint32_t>(getpid()), folder_);
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->front().running);
}

TEST_F(CounterFileTest, OfTheDeadTheNewestFilesAreKept) {
  const size_t dead = CounterFile::dead_files_max + 3;
  std::vector<pid_t> pids;
  for (size_t i = 0; i < dead; ++i) {
    pid_t pid = 0;
    in_fork(
        [this] {
          // Without the cleaning that a process begins with all would not be there at a time.
          const auto file = make();
          raise(SIGKILL);
        },
        true, &pid);
    pids.push_back(pid);
  }
  const auto mine = make();
  EXPECT_EQ(names().size(), CounterFile::dead_files_max + 1);
  EXPECT_FALSE(read_counters_of(static_cast<uint32_t>(pids.front()), folder_));
  EXPECT_TRUE(read_counters_of(static_cast<uint32_t>(pids.back()), folder_));
  EXPECT_TRUE(read_counters_of(static_cast<uint32_t>(getpid()), folder_));
}

TEST_F(CounterFileTest, WhatIsNoFileOfOursIsLeftAlone) {
  for (const char* name :
       {"nccl-ha-1-0.counters.bak", "nccl-ha-x-0.counters", "other", "nccl-ha-1-0.counters"}) {
    std::ofstream(folder_ + "/" + name) << "text";
  }
  const auto file = make();
  EXPECT_EQ(names().size(), 5U) << "it may be on its way, until it is a minute old";
}

TEST_F(CounterFileTest, RingsThatDoNotFitAreShorterAndWhoComesLaterHasPlainMemory) {
  const auto file = CounterFile::create({folder_, 8, 2, 1U << 17});  // 5 MiB each
  ASSERT_TRUE(file);
  const CounterBlock<WorkerCounters> worker({file, 0}, "worker 0");
  Recorder first(worker.place(), 1U << 17);
  Recorder second(worker.place(), 1U << 17);
  EXPECT_EQ(first.capacity(), 1U << 16);
  EXPECT_EQ(second.capacity(), 1U << 16);
  Recorder third(worker.place(), 1U << 17);
  third.record(TraceEvent::cts_sent, 1, 2, 3, Instant{});
  EXPECT_EQ(third.snapshot().size(), 1U);
  const CounterSnapshot snapshot = read();
  EXPECT_EQ(snapshot.rings.size(), 2U);
  EXPECT_EQ(value(snapshot, 1, "rings_refused"), 1U);
}

TEST_F(CounterFileTest, EveryWorkerHasARingHoweverLongTheyAreToBe) {
  for (const size_t workers : {1U, 12U, 13U, 64U}) {
    for (const size_t events : {16'384U, 131'073U, 16'777'216U}) {
      const auto file = CounterFile::create({folder_, 8, workers, events});
      ASSERT_TRUE(file);
      for (size_t i = 0; i < workers; ++i) {
        ASSERT_NE(file->take_ring(i + 1).ring, nullptr) << workers << " " << events << " " << i;
      }
      EXPECT_LE(file->bytes().size(), CounterFile::rings_bytes_max + (1U << 17));
    }
  }
}

/// Finds something every third time.
class EveryThird final : public Poller {
 public:
  std::string name() const override { return "every third"; }
  unsigned poll(Clock& time) override {
    static_cast<void>(time);
    return ++polls_ % 3 == 0 ? 1 : 0;
  }
  bool prepare_sleep() override { return false; }

 private:
  unsigned polls_ = 0;
};

class PollingActor final : public Actor {
 public:
  const char* name() const override { return "polling"; }
  void start(Context& context) override {
    context_ = &context;
    context.add_poller(&poller_);
  }
  void on(const Message& message) override { static_cast<void>(message); }
  void stop() override { context_->remove_poller(&poller_); }

 private:
  Context* context_ = nullptr;
  EveryThird poller_;
};

TEST_F(CounterFileTest, AnEngineShowsItsWorkersAndPollersAndTakesItsFileWithIt) {
  Config config;
  config.counters_dir = folder_;
  config.record_events = 16;
  auto engine = Engine::start(config);
  ASSERT_TRUE(engine) << engine.error().message();
  ASSERT_TRUE((*engine)->worker(0).adopt(std::make_unique<PollingActor>()));
  const auto poller = [this](const CounterSnapshot& snapshot) {
    const auto at = std::find_if(snapshot.blocks.begin(), snapshot.blocks.end(),
                                 [](const auto& block) { return block.label == "every third"; });
    return at == snapshot.blocks.end() ? nullptr : &*at;
  };
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  CounterSnapshot snapshot = read();
  while (poller(snapshot) == nullptr || value(snapshot, poller(snapshot)->id, "turns") < 300) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    sched_yield();
    snapshot = read();
  }
  // The worker goes on while a snapshot is read, and publishes one counter after another: what one
  // says bounds what another says in a later snapshot.
  const CounterSnapshot::Block& block = *poller(snapshot);
  const uint64_t turns = value(snapshot, block.id, "turns");
  CounterSnapshot later = read();
  EXPECT_LE(value(snapshot, block.id, "busy_turns"), value(later, block.id, "turns") / 3);
  EXPECT_GE(value(later, block.parent, "turns"), turns);
  while (value(later, block.id, "busy_turns") < turns / 3) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    sched_yield();
    later = read();
  }
  EXPECT_EQ(value(later, block.parent, "actors"), 1U);
  EXPECT_EQ(find(later, block.parent)->label, "worker 0");
  ASSERT_EQ(later.rings.size(), 1U);
  EXPECT_EQ(later.kind_of(later.rings[0].events.at(0)).name, "worker_started");
  engine->reset();
  EXPECT_TRUE(names().empty());
}

TEST_F(CounterFileTest, AnEngineInVirtualTimeHasNone) {
  Config config;
  config.counters_dir = folder_;
  sim::World world(1);
  const auto process = world.add_process(sim::ip(198, 18, 0, 1), config);
  ASSERT_TRUE(process);
  EXPECT_EQ((*process)->engine->counters().file, nullptr);
  EXPECT_TRUE(names().empty());
}

}  // namespace
}  // namespace nccl_ha
