#include "tools/agent/processes.h"

#include <utility>
#include <vector>

#include "runtime/telemetry/counter_reader.h"
#include "runtime/telemetry/trace_dump.h"
#include "tools/trace/sources.h"

namespace nccl_ha::tools {

std::string counters_of_processes(const std::string& counters_dir) {
  std::vector<std::vector<std::byte>> dumps;
  if (!counters_dir.empty()) {
    for (const CounterFileFound& found : find_counter_files(counters_dir, CounterOwner::anybody)) {
      if (!found.running || !found.good) {
        continue;
      }
      if (auto copy = copy_counter_file(found.path, "nccl-ha agent")) {
        dumps.push_back(std::move(*copy));
      }
    }
  }
  const std::vector<std::byte> bundle = make_bundle(dumps);
  return {reinterpret_cast<const char*>(bundle.data()), bundle.size()};
}

}  // namespace nccl_ha::tools
