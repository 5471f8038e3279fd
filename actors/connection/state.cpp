#include "actors/connection/state.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/log.h"

namespace nccl_ha {
namespace {

constexpr size_t events_dumped = 48;  ///< at most; the last ones

/// What the worker did before, for whoever reads the log.
void dump_events(Context& context) {
  Recorder& recorder = context.recorder();
  recorder.stamp(context.now());
  const std::vector<RecordedEvent> events = recorder.snapshot();
  const size_t count = std::min(events.size(), events_dumped);
  NHA_LOG_ERROR("the last {} of {} events of worker {}:", count, recorder.written(),
                context.worker_index());
  for (size_t i = events.size() - count; i < events.size(); ++i) {
    const RecordedEvent& event = events[i];
    const TraceEventInfo& info = describe(event.event);
    std::string fields;
    for (const TraceField& field : info.fields) {
      fields +=
          fmt::format(" {}={}", field.name, value_of(event, field.word, field.shift, field.bits));
    }
    NHA_LOG_ERROR("  {:.6f} ms actor {} {}{}", static_cast<double>(event.time_ns) / 1e6,
                  event.actor, info.name, fields);
  }
}

}  // namespace

void ConnectionState::on_broken(const char* what) {
  if (std::exchange(broken_, true)) {
    return;
  }
  NHA_LOG_ERROR(
      "connection to {}: a fault of this program, please report it with what follows: it "
      "does not hold that {}",
      owner.peer_text(), what);
  dump_events(*context);
  fail(nccl_ha::fail(
      Errc::internal,
      fmt::format("a fault of this program, please report it: it does not hold that {}", what)));
}

}  // namespace nccl_ha
