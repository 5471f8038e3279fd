#include "tools/top/sums.h"

#include <fmt/format.h>

#include <map>
#include <string>
#include <vector>

namespace nccl_ha::tools {
namespace {

void check_process(const CounterSnapshot& now, const CounterSnapshot& before, SumCheck& out) {
  std::map<uint64_t, const CounterSnapshot::Block*> older;
  for (const auto& block : before.blocks) {
    older[block.id] = &block;
  }
  const auto steady = [&](const CounterSnapshot::Block& block) {
    const auto found = older.find(block.id);
    return found != older.end() && found->second->values == block.values;
  };
  for (const auto& connection : now.blocks) {
    if (now.scopes[connection.scope].name != "connection" || connection.ended ||
        !steady(connection)) {
      continue;
    }
    const auto value = [&](const char* counter) { return value_in(now, connection, counter); };
    uint64_t sent = 0;
    uint64_t received = 0;
    bool all_steady = true;
    size_t paths = 0;
    std::vector<std::string> overdone;
    for (const auto& path : now.blocks) {
      if (path.parent != connection.id || now.scopes[path.scope].name != "path") {
        continue;
      }
      ++paths;
      all_steady = all_steady && steady(path);
      sent += value_in(now, path, "bytes_sent");
      received += value_in(now, path, "bytes_received");
      if (value_in(now, path, "writes_done") > value_in(now, path, "writes")) {
        overdone.push_back(fmt::format("{} {} {}: more writes are done than were posted",
                                       process_text(now), connection.label, path.label));
      }
    }
    if (!all_steady || paths == 0) {
      continue;
    }
    ++out.checked;
    out.wrong.insert(out.wrong.end(), overdone.begin(), overdone.end());
    if (received != value("bytes_received")) {
      out.wrong.push_back(fmt::format("{} {}: {} bytes received, {} over its paths",
                                      process_text(now), connection.label, value("bytes_received"),
                                      received));
    }
    const uint64_t begun = value("bytes_sent") + value("bytes_again");
    const bool idle = value("sends") == value("sends_done");
    // Of what was taken back before all of it was posted a part went over the path twice.
    if (idle && (sent < value("bytes_sent") || (sent > begun && value("paths_down") == 0))) {
      out.wrong.push_back(fmt::format("{} {}: {} bytes sent and {} again, {} over its paths",
                                      process_text(now), connection.label, value("bytes_sent"),
                                      value("bytes_again"), sent));
    }
  }
}

}  // namespace

SumCheck check_sums(const CounterReading& now, const CounterReading& before) {
  SumCheck out;
  for (const ProcessCounterFile& file : now.files) {
    for (const ProcessCounterFile& old : before.files) {
      if (old.path == file.path && old.snapshot.created_ns == file.snapshot.created_ns) {
        check_process(file.snapshot, old.snapshot, out);
      }
    }
  }
  return out;
}

}  // namespace nccl_ha::tools
