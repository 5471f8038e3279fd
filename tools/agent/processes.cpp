#include "tools/agent/processes.h"

#include <utility>
#include <vector>

#include "runtime/telemetry/trace_dump.h"
#include "tools/trace/sources.h"

namespace nccl_ha::tools {
namespace {

/// Of more processes than a host runs.
constexpr size_t bundle_bytes_max = size_t{256} << 20;

}  // namespace

std::string counters_of_processes(const std::string& counters_dir, CounterOwner owner) {
  std::vector<std::vector<std::byte>> dumps;
  size_t bytes = 0;
  if (!counters_dir.empty()) {
    for (const CounterFileFound& found : find_counter_files(counters_dir, owner)) {
      if (!found.running || !found.good) {
        continue;
      }
      if (auto copy = copy_counter_file(found.path, "nccl-ha agent")) {
        bytes += copy->size();
        if (bytes > bundle_bytes_max) {
          break;
        }
        dumps.push_back(std::move(*copy));
      }
    }
  }
  const std::vector<std::byte> bundle = make_bundle(dumps);
  return {reinterpret_cast<const char*>(bundle.data()), bundle.size()};
}

}  // namespace nccl_ha::tools
