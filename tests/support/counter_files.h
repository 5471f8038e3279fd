// Files of counters in a folder of a test's own, and what is in them.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/telemetry/counter_file.h"
#include "runtime/telemetry/counter_reader.h"
#include "tests/support/temporary_folder.h"

namespace nccl_ha::test {

namespace files = std::filesystem;

/// A folder of its own for the files.
class CounterFiles : public ::testing::Test {
 protected:
  CounterFile::Options options(size_t blocks = 8) const { return {folder_, blocks, 1, 16}; }
  std::shared_ptr<CounterFile> make(size_t blocks = 8) const {
    return CounterFile::create(options(blocks));
  }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& entry : files::directory_iterator(folder_)) {
      all.push_back(entry.path().filename());
    }
    return all;
  }
  CounterSnapshot read() const {
    auto found = read_counters_of(static_cast<uint32_t>(getpid()), folder_);
    EXPECT_TRUE(found) << found.error().message();
    return found ? std::move(found->front().snapshot) : CounterSnapshot{};
  }
  /// The value of a counter of a block, by names.
  static uint64_t value(const CounterSnapshot& snapshot, uint64_t id, const std::string& name) {
    for (const auto& block : snapshot.blocks) {
      const auto& counters = snapshot.scopes[block.scope].counters;
      for (size_t i = 0; block.id == id && i < counters.size(); ++i) {
        if (counters[i].name == name) {
          return block.values[i];
        }
      }
    }
    ADD_FAILURE() << "no counter " << name << " in block " << id;
    return 0;
  }
  static const CounterSnapshot::Block* find(const CounterSnapshot& snapshot, uint64_t id) {
    const auto at = std::find_if(snapshot.blocks.begin(), snapshot.blocks.end(),
                                 [id](const auto& block) { return block.id == id; });
    return at == snapshot.blocks.end() ? nullptr : &*at;
  }
  /// Runs `body` in a fork, which ends without destructors; its status.
  static int in_fork(const std::function<void()>& body, bool wait = true, pid_t* pid = nullptr) {
    const pid_t child = fork();
    if (child == 0) {
      body();
      _exit(0);
    }
    if (pid != nullptr) {
      *pid = child;
    }
    int status = 0;
    if (wait) {
      EXPECT_EQ(waitpid(child, &status, 0), child);
    }
    return status;
  }

  tests::TemporaryFolder temporary_{"/dev/shm"};
  const std::string folder_{temporary_.path()};
};

}  // namespace nccl_ha::test
