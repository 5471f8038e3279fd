#include "tools/perf/pictures.h"

#include <fmt/format.h>

#include <cstdio>
#include <utility>

#include "runtime/base/whole_file.h"
#include "tools/common/chart.h"

namespace nccl_ha::tools {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    out += c == '"' ? "\"\"" : std::string(1, c);
  }
  return out + "\"";
}

/// One value of each size, of each plugin.
template <class Value>
std::vector<ChartSeries> series_of(const std::vector<Row>& rows,
                                   const std::vector<PluginInfo>& plugins, const char* what,
                                   bool dashed, Value&& value) {
  std::vector<ChartSeries> all;
  const size_t count = rows.empty() ? 0 : rows.front().cells.size();
  for (size_t i = 0; i < count; ++i) {
    ChartSeries series;
    series.name = plugin_label(plugins, i) + what;
    series.dashed = dashed;
    for (const Row& row : rows) {
      if (i < row.cells.size() && row.bytes != 0) {
        series.points.emplace_back(static_cast<double>(row.bytes), value(row, row.cells[i]));
      }
    }
    all.push_back(std::move(series));
  }
  return all;
}

}  // namespace

std::string perf_svg(const PerfOptions& options, uint32_t ranks, const std::vector<Row>& rows,
                     const std::vector<PluginInfo>& plugins) {
  const ChartAxis sizes{"bytes", true, true};
  const std::string what = fmt::format("{}, {} ranks", to_text(options.op), ranks);
  if (options.op == OpKind::latency) {
    Chart latency{"half round trip: " + what, sizes, {"us", true, false}, {}, {}};
    latency.series = series_of(rows, plugins, " p50", false,
                               [](const Row&, const Cell& cell) { return cell.median_p50_us(); });
    int of = 0;
    for (ChartSeries& tail :
         series_of(rows, plugins, " p99", true,
                   [](const Row&, const Cell& cell) { return cell.median_p99_us(); })) {
      tail.same_color_as = of++;
      latency.series.push_back(std::move(tail));
    }
    return svg_of({latency});
  }
  Chart bandwidth{"bus bandwidth: " + what, sizes, {"GB/s", false, false}, {}, {}};
  bandwidth.series = series_of(rows, plugins, "", false, [&](const Row& row, const Cell& cell) {
    return speeds(options, ranks, row, cell).busbw_gigabytes_per_s;
  });
  Chart time{"time: " + what, sizes, {"us", true, false}, {}, {}};
  time.series = series_of(rows, plugins, "", false,
                          [](const Row&, const Cell& cell) { return cell.median_time_s() * 1e6; });
  return svg_of({bandwidth, time});
}

std::string perf_csv(const PerfOptions& options, uint32_t ranks, const std::vector<Row>& rows,
                     const std::vector<PluginInfo>& plugins) {
  const bool latency = options.op == OpKind::latency;
  std::string out = latency ? "operation,ranks,plugin,bytes,min_us,p50_us,mean_us,p99_us,wrong\n"
                            : "operation,ranks,plugin,bytes,time_us,"
                              "algbw_gigabytes_per_s,busbw_gigabytes_per_s,cpu_s_per_gb,wrong,"
                              "p50_us,p99_us,max_us\n";
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.cells.size(); ++i) {
      const Cell& cell = row.cells[i];
      out += fmt::format("{},{},{},{}", to_text(options.op), ranks,
                         quoted(plugin_label(plugins, i)), row.bytes);
      if (latency) {
        out += fmt::format(",{:.3f},{:.3f},{:.3f},{:.3f},{}\n", cell.min_us(), cell.median_p50_us(),
                           cell.median_mean_us(), cell.median_p99_us(), cell.wrong());
      } else {
        const Speeds s = speeds(options, ranks, row, cell);
        out += fmt::format(",{:.3f},{:.4f},{:.4f},{:.4f},{},{:.3f},{:.3f},{:.3f}\n",
                           cell.median_time_s() * 1e6, s.algbw_gigabytes_per_s,
                           s.busbw_gigabytes_per_s, s.cpu_s_per_gb, cell.wrong(),
                           cell.median_p50_us(), cell.median_p99_us(), cell.max_us());
      }
    }
  }
  return out;
}

bool save_pictures(const PerfOptions& options, uint32_t ranks, const std::vector<Row>& rows,
                   const std::vector<PluginInfo>& plugins) {
  bool good = true;
  const auto save = [&good](const std::string& path, const std::string& text) {
    const auto written = path.empty() ? Result<void>() : write_file(path, text);
    if (!written) {
      std::fprintf(stderr, "nccl-ha perf: %s\n", written.error().message().c_str());
      good = false;
    }
  };
  save(options.plot, perf_svg(options, ranks, rows, plugins));
  save(options.csv, perf_csv(options, ranks, rows, plugins));
  return good;
}

}  // namespace nccl_ha::tools
