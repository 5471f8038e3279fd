#include "tools/perf/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tools/common/command_line.h"
#include "tools/common/terminal.h"
#include "tools/perf/faults.h"
#include "tools/perf/plan.h"

namespace nccl_ha::tools {
namespace {

template <class F>
double median_of(const std::vector<Round>& rounds, F member) {
  std::vector<double> values;
  values.reserve(rounds.size());
  for (const Round& round : rounds) {
    values.push_back(member(round));
  }
  return values.empty() ? 0 : median(std::move(values));
}

bool is_latency(const PerfOptions& options) { return options.op == OpKind::latency; }

double average_busbw(const PerfOptions& options, uint32_t ranks, const std::vector<Row>& rows,
                     size_t plugin) {
  double sum = 0;
  for (const Row& row : rows) {
    sum += speeds(options, ranks, row, row.cells[plugin]).busbw_gigabytes_per_s;
  }
  return rows.empty() ? 0 : sum / static_cast<double>(rows.size());
}

uint64_t total_wrong(const std::vector<Row>& rows) {
  uint64_t wrong = 0;
  for (const Row& row : rows) {
    for (const Cell& cell : row.cells) {
      wrong += cell.wrong();
    }
  }
  return wrong;
}

std::string wrong_text(const PerfOptions& options, uint64_t wrong) {
  return options.check ? fmt::format("{}", wrong) : "N/A";
}

std::string columns_text(const PerfOptions& options, size_t plugins) {
  std::string names;
  std::string units;
  if (is_latency(options)) {
    names = fmt::format("# {:>11} {:>9}", "size", "rounds");
    units = fmt::format("# {:>11} {:>9}", "(B)", "");
  } else {
    names =
        fmt::format("# {:>11} {:>12} {:>7} {:>7} {:>5}", "size", "count", "type", "redop", "root");
    units = fmt::format("# {:>11} {:>12} {:>7} {:>7} {:>5}", "(B)", "(elements)", "", "", "");
  }
  for (size_t i = 0; i < plugins; ++i) {
    if (is_latency(options)) {
      names += fmt::format(" {:>9} {:>9} {:>9} {:>9} {:>7}", "min", "p50", "mean", "p99", "#wrong");
      units += fmt::format(" {:>9} {:>9} {:>9} {:>9} {:>7}", "(us)", "(us)", "(us)", "(us)", "");
    } else {
      names += fmt::format(" {:>10}", "time");
      units += fmt::format(" {:>10}", "(us)");
      if (options.percentiles) {
        names += fmt::format(" {:>10} {:>10} {:>10}", "p50", "p99", "max");
        units += fmt::format(" {:>10} {:>10} {:>10}", "(us)", "(us)", "(us)");
      }
      names += fmt::format(" {:>8} {:>8} {:>7} {:>8}", "algbw", "busbw", "#wrong", "cpu");
      units += fmt::format(" {:>8} {:>8} {:>7} {:>8}", "(GB/s)", "(GB/s)", "", "(s/GB)");
    }
  }
  if (plugins == 2) {
    names += fmt::format(" {:>8}", "ratio");
    units += fmt::format(" {:>8}", is_latency(options) ? "p50 A/B" : "A/B");
  }
  return names + "\n" + units + "\n";
}

}  // namespace

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

double Cell::median_time_s() const {
  return median_of(rounds, [](const Round& r) { return r.time_s; });
}
double Cell::median_cpu_s() const {
  return median_of(rounds, [](const Round& r) { return r.cpu_s; });
}
double Cell::median_p50_us() const {
  return median_of(rounds, [](const Round& r) { return r.p50_us; });
}
double Cell::median_p99_us() const {
  return median_of(rounds, [](const Round& r) { return r.p99_us; });
}
double Cell::median_mean_us() const {
  return median_of(rounds, [](const Round& r) { return r.mean_us; });
}
double Cell::min_us() const {
  double lowest = rounds.empty() ? 0 : rounds.front().min_us;
  for (const Round& round : rounds) {
    lowest = std::min(lowest, round.min_us);
  }
  return lowest;
}
double Cell::max_us() const {
  double highest = 0;
  for (const Round& round : rounds) {
    highest = std::max(highest, round.max_us);
  }
  return highest;
}
uint64_t Cell::wrong() const {
  return std::accumulate(rounds.begin(), rounds.end(), uint64_t{0},
                         [](uint64_t sum, const Round& r) { return sum + r.wrong; });
}

Speeds speeds(const PerfOptions& options, uint32_t ranks, const Row& row, const Cell& cell) {
  Speeds out;
  const double gigabytes = static_cast<double>(row.bytes) * 1e-9;
  if (const double time = cell.median_time_s(); time > 0) {
    out.algbw_gigabytes_per_s = gigabytes / time;
    out.busbw_gigabytes_per_s =
        out.algbw_gigabytes_per_s * bus_factor(options.op, ranks, options.bidirectional);
  }
  if (gigabytes > 0) {
    out.cpu_s_per_gb = cell.median_cpu_s() / gigabytes;
  }
  return out;
}

double ratio(const PerfOptions& options, const Row& row) {
  if (row.cells.size() != 2) {
    return 0;
  }
  const bool latency = is_latency(options);
  const double a = latency ? row.cells[0].median_p50_us() : row.cells[1].median_time_s();
  const double b = latency ? row.cells[1].median_p50_us() : row.cells[0].median_time_s();
  return b > 0 ? a / b : 0;
}

std::string plugin_label(const std::vector<PluginInfo>& plugins, size_t index) {
  if (index >= plugins.size()) {
    return fmt::format("plugin {}", index + 1);
  }
  const PluginInfo& one = plugins[index];
  return fmt::format("{}{}{}{}",
                     plugins.size() == 1 ? ""
                     : index == 0        ? "A: "
                                         : "B: ",
                     one.name, one.settings.empty() ? "" : ", ", one.settings);
}

std::string header_text(const PerfOptions& options, uint32_t ranks, uint32_t hosts,
                        const std::vector<PluginInfo>& plugins, size_t columns) {
  std::string text =
      fmt::format("# nccl-ha perf {}: {} ranks on {} host{}, {}\n", to_text(options.op), ranks,
                  hosts, hosts == 1 ? "" : "s", describe(options.op));
  text += fmt::format(
      "# {} after {} for warm-up, {} round{}, messages of {} bytes, {} "
      "in flight, {} connection{} per pair, {}\n",
      options.seconds > 0 ? fmt::format("{} s of iterations", options.seconds)
                          : fmt::format("{} iterations", options.iterations),
      options.warmup, options.rounds, options.rounds == 1 ? "" : "s, medians shown",
      options.message_bytes, options.depth, options.conns, options.conns == 1 ? "" : "s",
      options.check ? "every byte checked" : "NOT checked");
  if (options.send_first) {
    text += "# a send is waited for before the receive\n";
  }
  if (options.neighbours != 0) {
    text += fmt::format("# {} busy process{} beside the ranks\n", options.neighbours,
                        options.neighbours == 1 ? "" : "es");
  }
  if (options.pause_us != 0) {
    text += fmt::format("# {} us of rest between round trips\n", options.pause_us);
  }
  for (size_t i = 0; i < plugins.size(); ++i) {
    const PluginInfo& p = plugins[i];
    text += fmt::format("# {}: {} v{} from {}, device {} ({} Mb/s){}{}\n",
                        plugins.size() == 1 ? "plugin" : (i == 0 ? "A" : "B"), p.name, p.abi,
                        p.file, p.device, p.speed_mbps, p.settings.empty() ? "" : ", ", p.settings);
  }
  return (columns == 0 ? text : wrapped_help(text, columns)) + "#\n" +
         columns_text(options, plugins.size());
}

size_t table_width(const PerfOptions& options, size_t plugins) {
  return columns_text(options, plugins).find('\n');
}

std::string width_text(size_t table, size_t columns) {
  if (columns == 0 || columns >= table) {
    return {};
  }
  return fmt::format("# the table is {} columns wide, this terminal {}\n", table, columns);
}

std::string row_text(const PerfOptions& options, uint32_t ranks, const Row& row) {
  std::string text;
  if (is_latency(options)) {
    text = fmt::format("  {:>11} {:>9}", row.bytes, row.cells.front().rounds.size());
  } else {
    text = fmt::format("  {:>11} {:>12} {:>7} {:>7} {:>5}", row.bytes, row.count,
                       to_text(options.type),
                       reduces(options.op) ? to_text(options.reduce_op) : "none",
                       options.op == OpKind::broadcast ? static_cast<int>(options.root) : -1);
  }
  for (const Cell& cell : row.cells) {
    const std::string wrong = wrong_text(options, cell.wrong());
    if (is_latency(options)) {
      text += fmt::format(" {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f} {:>7}", cell.min_us(),
                          cell.median_p50_us(), cell.median_mean_us(), cell.median_p99_us(), wrong);
    } else {
      const Speeds s = speeds(options, ranks, row, cell);
      text += fmt::format(" {:>10.2f}", cell.median_time_s() * 1e6);
      if (options.percentiles) {
        text += fmt::format(" {:>10.2f} {:>10.2f} {:>10.2f}", cell.median_p50_us(),
                            cell.median_p99_us(), cell.max_us());
      }
      text += fmt::format(" {:>8.3f} {:>8.3f} {:>7} {:>8.3f}", s.algbw_gigabytes_per_s,
                          s.busbw_gigabytes_per_s, wrong, s.cpu_s_per_gb);
    }
  }
  if (row.cells.size() == 2) {
    text += fmt::format(" {:>8.3f}", ratio(options, row));
  }
  return text + "\n";
}

std::string faults_text(const Round& round) {
  if (round.faults.empty()) {
    return {};
  }
  constexpr size_t listed_max = 20;
  std::string text;
  std::vector<Duration> stalls;
  for (const auto& [what, stall_ms] : round.faults) {
    stalls.push_back(Duration(static_cast<int64_t>(stall_ms * 1e6)));
    if (round.faults.size() <= listed_max) {
      text += fmt::format("# fault {}: {}: stall {:.1f} ms\n", stalls.size(), what, stall_ms);
    }
  }
  std::sort(stalls.begin(), stalls.end());
  const auto ms = [](Duration value) {
    return std::chrono::duration<double, std::milli>(value).count();
  };
  return text +
         fmt::format("# {} faults          : stall p50 {:.1f} ms, p99 {:.1f} ms, max {:.1f} ms\n",
                     stalls.size(), ms(percentile(stalls, 0.5)), ms(percentile(stalls, 0.99)),
                     ms(stalls.back()));
}

std::string footer_text(const PerfOptions& options, uint32_t ranks, const std::vector<Row>& rows,
                        const std::vector<PluginInfo>& plugins, bool complete) {
  std::string text;
  const uint64_t wrong = total_wrong(rows);
  const char* verdict = wrong > 0        ? "FAILED"
                        : !complete      ? "INCOMPLETE"
                        : !options.check ? "NOT CHECKED"
                                         : "OK";
  const Colour colour = wrong > 0                   ? Colour::red
                        : complete && options.check ? Colour::green
                                                    : Colour::yellow;
  text += fmt::format("# Out of bounds values : {} {}\n", wrong,
                      painted(verdict, colour, shows_colour(stdout)));
  if (!is_latency(options) && !rows.empty()) {
    for (size_t i = 0; i < plugins.size(); ++i) {
      text +=
          fmt::format("# Avg bus bandwidth    : {:.4f}{}\n", average_busbw(options, ranks, rows, i),
                      plugins.size() == 1 ? "" : fmt::format(" ({})", plugin_label(plugins, i)));
    }
  }
  return text;
}

namespace {

nlohmann::json cell_json(const PerfOptions& options, uint32_t ranks, const Row& row,
                         const Cell& cell) {
  nlohmann::json out;
  for (const Round& r : cell.rounds) {
    nlohmann::json one{{"min_us", r.min_us}, {"p50_us", r.p50_us},        {"mean_us", r.mean_us},
                       {"p99_us", r.p99_us}, {"max_us", r.max_us},        {"cpu_us", r.cpu_s * 1e6},
                       {"wrong", r.wrong},   {"iterations", r.iterations}};
    if (!is_latency(options)) {
      one["time_us"] = r.time_s * 1e6;
    }
    for (const auto& [what, stall_ms] : r.faults) {
      one["faults"].push_back({{"what", what}, {"stall_ms", stall_ms}});
    }
    if (!r.finding.empty()) {
      one["finding"] = r.finding;
    }
    out["rounds"].push_back(one);
  }
  out["wrong"] = cell.wrong();
  if (is_latency(options)) {
    out["min_us"] = cell.min_us();
    out["p50_us"] = cell.median_p50_us();
    out["mean_us"] = cell.median_mean_us();
    out["p99_us"] = cell.median_p99_us();
    return out;
  }
  const Speeds s = speeds(options, ranks, row, cell);
  out["time_us"] = cell.median_time_s() * 1e6;
  out["p50_us"] = cell.median_p50_us();
  out["p99_us"] = cell.median_p99_us();
  out["max_us"] = cell.max_us();
  out["algbw_gigabytes_per_s"] = s.algbw_gigabytes_per_s;
  out["busbw_gigabytes_per_s"] = s.busbw_gigabytes_per_s;
  out["cpu_s_per_gb"] = s.cpu_s_per_gb;
  return out;
}

}  // namespace

nlohmann::json report_json(const PerfOptions& options, uint32_t ranks, uint32_t hosts,
                           const std::vector<Row>& rows, const std::vector<PluginInfo>& plugins,
                           bool ok, const std::vector<std::string>& errors) {
  nlohmann::json out{{"operation", to_text(options.op)},
                     {"ranks", ranks},
                     {"hosts", hosts},
                     {"type", to_text(options.type)},
                     {"iterations", options.seconds > 0 ? 0 : options.iterations},
                     {"seconds", options.seconds},
                     {"warmup", options.warmup},
                     {"message_bytes", options.message_bytes},
                     {"depth", options.depth},
                     {"group", options.group},
                     {"pause_us", options.pause_us},
                     {"spin", options.spin},
                     {"send_first", options.send_first},
                     {"neighbours", options.neighbours},
                     {"connections", options.conns},
                     {"checked", options.check},
                     {"wrong", total_wrong(rows)},
                     {"ok", ok},
                     {"errors", errors},
                     {"plugins", nlohmann::json::array()},
                     {"results", nlohmann::json::array()}};
  if (reduces(options.op)) {
    out["reduction"] = to_text(options.reduce_op);
  }
  for (const PluginInfo& p : plugins) {
    out["plugins"].push_back({{"asked", p.asked},
                              {"name", p.name},
                              {"file", p.file},
                              {"abi", p.abi},
                              {"device", p.device},
                              {"speed_mbps", p.speed_mbps},
                              {"settings", p.settings}});
  }
  for (const Row& row : rows) {
    nlohmann::json one{{"bytes", row.bytes}, {"count", row.count}};
    for (const Cell& cell : row.cells) {
      one["plugins"].push_back(cell_json(options, ranks, row, cell));
    }
    if (row.cells.size() == 2) {
      one["ratio"] = ratio(options, row);
    }
    out["results"].push_back(one);
  }
  if (!is_latency(options)) {
    for (size_t i = 0; i < plugins.size() && !rows.empty(); ++i) {
      out["average_busbw_gigabytes_per_s"].push_back(average_busbw(options, ranks, rows, i));
    }
  }
  return out;
}

}  // namespace nccl_ha::tools
