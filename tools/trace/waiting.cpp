#include "tools/trace/waiting.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "tools/trace/messages.h"

namespace nccl_ha::tools {
namespace {

using SnapshotBlock = CounterSnapshot::Block;

uint64_t still_open(uint64_t all, uint64_t done) { return all - std::min(all, done); }

/// When requests were asked for that are not known to be done, of each side of a connection.
std::map<int32_t, std::vector<int64_t>> open_requests(const Timeline& timeline) {
  std::map<int32_t, std::vector<int64_t>> open;
  for (const TraceMessage& message : messages_of(timeline)) {
    if (message.sender >= 0 && message.asked_ns != unseen && message.sent_ns == unseen &&
        message.noticed_ns == unseen) {
      open[message.sender].push_back(message.asked_ns);
    }
    if (message.receiver >= 0 && message.receive_asked_ns != unseen &&
        message.received_ns == unseen && message.receive_noticed_ns == unseen) {
      open[message.receiver].push_back(message.receive_asked_ns);
    }
  }
  return open;
}

std::vector<WaitingPath> paths_below(const CounterSnapshot& snapshot, uint64_t connection) {
  std::vector<WaitingPath> paths;
  for (const SnapshotBlock& block : snapshot.blocks) {
    if (block.parent != connection || block.ended || snapshot.scopes[block.scope].name != "path") {
      continue;
    }
    const auto value = [&](const char* name) { return counter_of(snapshot, block, name); };
    paths.push_back({block.label, value("usable") != 0,
                     still_open(value("writes"), value("writes_done") + value("errors")),
                     still_open(value("heartbeats_sent"), value("heartbeats_answered"))});
  }
  return paths;
}

std::string waits_for(const WaitingRow& row) {
  const bool usable = std::any_of(row.paths.begin(), row.paths.end(),
                                  [](const WaitingPath& path) { return path.usable; });
  if (!usable) {
    return fmt::format("a path: none of {} works", row.paths.size());
  }
  if (!row.sender) {
    return "data of the peer";
  }
  const auto busiest = std::max_element(
      row.paths.begin(), row.paths.end(),
      [](const WaitingPath& a, const WaitingPath& b) { return a.writes < b.writes; });
  return busiest->writes != 0 ? "acknowledgements on " + busiest->name
                              : "its worker, or the peer to post a receive";
}

}  // namespace

std::vector<WaitingRow> waiting_of(const Timeline& timeline) {
  std::map<int32_t, std::vector<int64_t>> open = open_requests(timeline);
  std::vector<WaitingRow> rows;
  for (size_t i = 0; i < timeline.connections().size(); ++i) {
    const TraceConnection& connection = timeline.connections()[i];
    const CounterSnapshot& snapshot = timeline.processes()[connection.process].snapshot;
    const auto block =
        std::find_if(snapshot.blocks.begin(), snapshot.blocks.end(),
                     [&](const SnapshotBlock& one) { return one.id == connection.block; });
    if (block == snapshot.blocks.end() || connection.ended) {
      continue;
    }
    const auto value = [&](const char* name) { return counter_of(snapshot, *block, name); };
    WaitingRow row{timeline.process_name(connection.process),
                   connection.label,
                   connection.key,
                   connection.sender,
                   still_open(value("sends"), value("sends_done")) +
                       still_open(value("receives"), value("receives_done")),
                   std::nullopt,
                   "",
                   paths_below(snapshot, connection.block)};
    if (row.requests == 0) {
      continue;
    }
    // Of a thread without a recorder nothing says that its requests are done: as many are open as
    // the counters have, and these are the last ones.
    std::vector<int64_t>& asked = open[static_cast<int32_t>(i)];
    std::sort(asked.begin(), asked.end(), std::greater<>());
    if (asked.size() >= row.requests) {
      const int64_t now = snapshot.dumped_ns + timeline.clocks().shift_ns(connection.process);
      row.oldest_ns = std::max<int64_t>(now - asked[row.requests - 1], 0);
    }
    row.waits_for = waits_for(row);
    rows.push_back(std::move(row));
  }
  std::stable_sort(rows.begin(), rows.end(), [](const WaitingRow& a, const WaitingRow& b) {
    return a.oldest_ns.value_or(-1) > b.oldest_ns.value_or(-1);
  });
  return rows;
}

std::string waiting_text(const WaitingRow& row) {
  std::string text = fmt::format("{} {}: {} request{}", row.process, row.connection, row.requests,
                                 row.requests == 1 ? "" : "s");
  if (row.oldest_ns) {
    text += fmt::format(", the oldest for {},", duration_text(*row.oldest_ns));
  }
  text += fmt::format(" wait{} for {}\n", row.requests == 1 ? "s" : "", row.waits_for);
  for (const WaitingPath& path : row.paths) {
    text += fmt::format("  {}: {}, {} writes under way, {} heartbeats unanswered\n", path.name,
                        path.usable ? "usable" : "down", path.writes, path.heartbeats);
  }
  return text;
}

}  // namespace nccl_ha::tools
