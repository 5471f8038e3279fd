#pragma once

#include <sched.h>
#include <sys/types.h>
#include <time.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <string>

namespace nccl_ha::test {

/// Runs `step` until it returns true; false when `limit` has passed.  What takes longer than a
/// hundred turns does not get quicker by them: others may have the processor.
inline bool until(const std::function<bool()>& step,
                  std::chrono::milliseconds limit = std::chrono::seconds(20)) {
  const auto end = std::chrono::steady_clock::now() + limit;
  for (int turns = 0; !step(); ++turns) {
    if (std::chrono::steady_clock::now() > end) {
      return false;
    }
    if (turns < 100) {
      sched_yield();
    } else {
      const timespec pause{0, 100'000};
      clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, nullptr);
    }
  }
  return true;
}

/// A thread of this process sleeps in the kernel: 'S' behind the name in proc(5)'s stat.
inline bool sleeps(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string line;
  std::getline(file, line);
  const size_t name_ends = line.rfind(')');
  return name_ends != std::string::npos && line.compare(name_ends, 3, ") S") == 0;
}

}  // namespace nccl_ha::test
