#include "tools/top/reading.h"

#include <fmt/format.h>
#include <time.h>

#include <utility>

namespace nccl_ha::tools {

Result<CounterReading> read_all_counters(const std::string& counters_dir,
                                         const std::vector<uint32_t>& pids) {
  if (counters_dir.empty()) {
    return fail(Errc::invalid_argument,
                "HA_NCCL_COUNTERS_DIR is empty here: set it as the processes have it");
  }
  CounterReading reading;
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  reading.time_ns = int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  for (const uint32_t pid : pids) {
    auto found = read_counters_of(pid, counters_dir, EventsWanted::no);
    if (!found) {
      return found.error();
    }
    for (ProcessCounterFile& file : *found) {
      reading.files.push_back(std::move(file));
    }
  }
  if (!pids.empty()) {
    return reading;
  }
  for (const CounterFileFound& found : find_counter_files(counters_dir, CounterOwner::anybody)) {
    if (!found.running) {
      continue;
    }
    if (!found.good) {
      if (found.path.ends_with(".counters")) {  // else it is being made
        reading.unreadable.push_back(
            fmt::format("{}: of another version of the plugin, or damaged", found.path));
        reading.unreadable_pids.push_back(found.pid);
      }
      continue;
    }
    auto file = read_counter_file(found.path, EventsWanted::no);
    if (file) {
      reading.files.push_back(std::move(*file));
    } else {
      reading.unreadable.push_back(file.error().message());  // it may just have ended
      reading.unreadable_pids.push_back(found.pid);
    }
  }
  return reading;
}

std::string process_text(const CounterSnapshot& snapshot) {
  return fmt::format("{}:{} {}", snapshot.host, snapshot.pid, snapshot.program);
}

uint64_t value_in(const CounterSnapshot& snapshot, const CounterSnapshot::Block& block,
                  const std::string& counter) {
  const auto& names = snapshot.scopes[block.scope].counters;
  for (size_t i = 0; i < names.size() && i < block.values.size(); ++i) {
    if (names[i].name == counter) {
      return block.values[i];
    }
  }
  return 0;
}

}  // namespace nccl_ha::tools
