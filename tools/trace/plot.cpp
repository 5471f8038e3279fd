#include "tools/trace/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "tools/common/chart.h"

namespace nccl_ha::tools {
namespace {

/// More lines than that cannot be told apart: the ones with the most data are drawn.
constexpr size_t lines_max = 8;
constexpr size_t marks_max = 12;

/// Connections of the same two processes share their paths.
using LineKey = std::pair<uint32_t, std::string>;

struct Line {
  std::vector<double> bytes;
  double sum = 0;
};

}  // namespace

std::string plot_of(const Timeline& timeline, size_t bins) {
  const int64_t begin = timeline.begin_ns();
  const double span = std::max<double>(static_cast<double>(timeline.end_ns() - begin), 1);
  std::map<LineKey, Line> lines;
  std::vector<ChartMark> marks;
  for (const TraceMoment& moment : timeline.moments()) {
    if (moment.connection < 0 || !moment.event) {
      continue;
    }
    const TraceConnection& connection = timeline.connection(moment.connection);
    const auto path = static_cast<uint32_t>(timeline.value(moment, "path").value_or(0));
    const double at = static_cast<double>(moment.time_ns - begin);
    // Where the receiver is not here, the sender's acknowledgements tell.
    const bool counts = moment.event == TraceEvent::chunk_arrived ||
                        (moment.event == TraceEvent::chunk_acked && connection.peer < 0);
    if (counts) {
      Line& line = lines[{moment.process, connection.path_name(path)}];
      line.bytes.resize(bins);
      const auto bytes = static_cast<double>(timeline.value(moment, "size").value_or(0));
      line.bytes[std::min(bins - 1, static_cast<size_t>(at / span * static_cast<double>(bins)))] +=
          bytes;
      line.sum += bytes;
    } else if ((moment.event == TraceEvent::failover || moment.event == TraceEvent::path_up) &&
               marks.size() < marks_max) {
      marks.push_back({at / 1e6, moment.event == TraceEvent::failover ? "failover" : "path back"});
    }
  }
  std::vector<std::pair<double, LineKey>> order;
  order.reserve(lines.size());
  for (const auto& [key, line] : lines) {
    order.emplace_back(line.sum, key);
  }
  std::sort(order.rbegin(), order.rend());
  Chart chart;
  chart.title =
      "throughput of each path" +
      std::string(order.size() > lines_max ? fmt::format(" ({} of {})", lines_max, order.size())
                                           : "");
  chart.x.title = fmt::format("ms since {}", timeline.date(begin));
  chart.y.title = "GB/s";
  chart.marks = std::move(marks);
  const double bin_ns = span / static_cast<double>(bins);
  for (size_t i = 0; i < order.size() && i < lines_max; ++i) {
    const LineKey& key = order[i].second;
    ChartSeries series;
    series.name = fmt::format("{} {}", timeline.process_name(key.first), key.second);
    for (size_t bin = 0; bin < bins; ++bin) {
      series.points.emplace_back((static_cast<double>(bin) + 0.5) * bin_ns / 1e6,
                                 lines[key].bytes[bin] / bin_ns);
    }
    chart.series.push_back(std::move(series));
  }
  return svg_of({chart});
}

}  // namespace nccl_ha::tools
