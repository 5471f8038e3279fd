// Dumps that anybody may have written, through all that `nccl-ha trace` makes of them.
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tools/trace/critical.h"
#include "tools/trace/messages.h"
#include "tools/trace/perfetto.h"
#include "tools/trace/plot.h"
#include "tools/trace/sources.h"
#include "tools/trace/summary.h"
#include "tools/trace/timeline.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nccl_ha::tools;
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto parts = parse_bundle(bytes);
  std::vector<TraceSource> sources;
  for (const auto part : parts ? *parts : std::vector{bytes}) {
    if (auto read = read_dumps("fuzz", {{part.begin(), part.end()}})) {
      std::move(read->begin(), read->end(), std::back_inserter(sources));
    }
  }
  const Timeline timeline = Timeline::of(std::move(sources));
  const TraceSummary summary = summarize(timeline, 1'000'000);
  const CriticalResult critical = critical_of(timeline);
  const std::string perfetto = perfetto_of(timeline);
  const std::string plot = plot_of(timeline, 100);
  for (const TraceMessage& message : messages_of(timeline)) {
    // Who reads a message looks up its sides.
    const auto connections = static_cast<int32_t>(timeline.connections().size());
    if (message.sender >= connections || message.receiver >= connections) {
      __builtin_trap();
    }
  }
  if (!summary.stalls.empty() && timeline.moments().empty()) {
    __builtin_trap();
  }
  if (critical.steps > timeline.moments().size() || plot.empty() ||
      (perfetto.empty() && !timeline.processes().empty())) {
    __builtin_trap();
  }
  return 0;
}
