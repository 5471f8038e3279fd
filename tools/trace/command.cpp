#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/config.h"
#include "runtime/base/whole_file.h"
#include "runtime/telemetry/trace_dump.h"
#include "tools/commands.h"
#include "tools/common/output.h"
#include "tools/common/refusal.h"
#include "tools/trace/critical.h"
#include "tools/trace/perfetto.h"
#include "tools/trace/plot.h"
#include "tools/trace/show.h"
#include "tools/trace/sources.h"
#include "tools/trace/summary.h"
#include "tools/trace/waiting.h"

namespace nccl_ha::tools {
namespace {

constexpr Refusal refuse_trace{"nccl-ha trace", 2};

struct TraceOptions {
  std::vector<std::string> names;
  std::string output;
  std::string format = "perfetto";
  TraceFilter filter;
  CriticalLimits limits;
  double stall_ms = 10;
  size_t bins = 100;
  bool as_json = false;
};

std::string counters_dir() {
  std::vector<std::string> warnings;
  return refuse_trace.need(load_config(Environment{}, &warnings)).counters_dir;
}

Timeline timeline_of(const TraceOptions& options) {
  Timeline timeline = Timeline::of(refuse_trace.need(read_traces(options.names, counters_dir())));
  print_remarks(timeline);
  if (timeline.moments().empty()) {
    refuse_trace(fail(Errc::invalid_argument,
                      "there are no events: the flight recorder was off "
                      "(HA_NCCL_RECORD_EVENTS=0), or nothing has happened yet"));
  }
  return timeline;
}

/// All processes whose files can be read; one may end meanwhile.
std::vector<TraceSource> running_sources() {
  std::vector<TraceSource> all;
  for (const CounterFileFound& found : find_counter_files(counters_dir(), CounterOwner::anybody)) {
    if (!found.running || !found.good) {
      continue;
    }
    auto sources = read_traces({found.path}, counters_dir());
    if (!sources) {
      fmt::print(stderr, "nccl-ha trace: left out {}\n", sources.error().message());
      continue;
    }
    std::move(sources->begin(), sources->end(), std::back_inserter(all));
  }
  return all;
}

void show_waiting(const TraceOptions& options) {
  const Timeline timeline = Timeline::of(
      options.names.empty() ? running_sources()
                            : refuse_trace.need(read_traces(options.names, counters_dir())));
  const std::vector<WaitingRow> rows = waiting_of(timeline);
  if (options.as_json) {
    print_waiting_json(timeline, rows);
    return;
  }
  print_remarks(timeline);
  for (const WaitingRow& row : rows) {
    fmt::print("{}", waiting_text(row));
  }
  if (rows.empty()) {
    fmt::print("ok: no request is open in {} process{}\n", timeline.processes().size(),
               timeline.processes().size() == 1 ? "" : "es");
  }
}

/// What is read is not written over: it may be all that is left of what happened.
void spare_sources(const TraceOptions& options) {
  for (const std::string& name : options.names) {
    std::error_code error;
    if (std::filesystem::equivalent(name, options.output, error)) {
      refuse_trace(fail(Errc::invalid_argument,
                        fmt::format("-o {}: that is what is read; name another file", name)));
    }
  }
}

void save(const TraceOptions& options, const std::string& text, const char* what) {
  const std::string& path = options.output;
  if (auto written = write_file(path, text); !written) {
    refuse_trace(written.error());
  }
  fmt::print(beside(path), "{}: {} bytes of {}\n", path, text.size(), what);
}

/// Dumps of all that was named, in one file.
std::vector<std::vector<std::byte>> all_dumps(const TraceOptions& options, const char* reason) {
  std::vector<std::vector<std::byte>> all;
  for (const std::string& name : options.names) {
    for (auto& dump : refuse_trace.need(dumps_of(name, counters_dir(), reason))) {
      all.push_back(std::move(dump));
    }
  }
  return all;
}

/// "nccl-ha-PID.trace" of one process; of anything else a name is needed.  What is there already is
/// not replaced by a name that nobody gave.
std::string output_of(const TraceOptions& options) {
  if (!options.output.empty()) {
    return options.output;
  }
  const std::string& name = options.names.front();
  if (options.names.size() != 1 || name.find_first_not_of("0123456789") != std::string::npos) {
    refuse_trace(fail(Errc::invalid_argument,
                      "only of the number of one process a name follows: say with -o where to"));
  }
  std::string path = fmt::format("nccl-ha-{}.trace", name);
  std::error_code error;
  if (std::filesystem::exists(path, error)) {
    refuse_trace(fail(Errc::invalid_argument,
                      fmt::format("{} is there already: name another file with -o", path)));
  }
  return path;
}

void save_dumps(const TraceOptions& options, const std::vector<std::vector<std::byte>>& dumps) {
  const std::string& path = options.output;
  const auto bytes = dumps.size() == 1 ? dumps.front() : make_bundle(dumps);
  if (auto written = write_file(path, bytes, trace_mode); !written) {
    refuse_trace(written.error());
  }
  fmt::print(beside(path), "{}: {} bytes, {} process{}\n", path, bytes.size(), dumps.size(),
             dumps.size() == 1 ? "" : "es");
}

CLI::App* add_verb(CLI::App& trace, const std::shared_ptr<TraceOptions>& options, const char* name,
                   const char* help) {
  CLI::App* verb = trace.add_subcommand(name, help);
  verb->add_option("FROM", options->names,
                   "a process's number, a dump, or what a process left in HA_NCCL_COUNTERS_DIR")
      ->required();
  return verb;
}

void add_dump_and_merge(CLI::App& trace, const std::shared_ptr<TraceOptions>& options) {
  CLI::App* dump = add_verb(trace, options, "dump", "keep what the flight recorders hold now");
  dump->add_option("-o,--output", options->output, "file (nccl-ha-PID.trace)");
  dump->callback([options] {
    options->output = output_of(*options);
    spare_sources(*options);
    save_dumps(*options, all_dumps(*options, "nccl-ha trace dump"));
  });
  CLI::App* merge =
      add_verb(trace, options, "merge",
               "dumps of several hosts into one file, and how their clocks lie to each other");
  merge->add_option("-o,--output", options->output, "file")->required();
  merge->callback([options] {
    spare_sources(*options);
    // Of processes that run, the clocks are told of what is saved: they are read once.
    std::vector<std::vector<std::byte>> all;
    std::vector<TraceSource> sources;
    for (const std::string& name : options->names) {
      auto dumps = refuse_trace.need(dumps_of(name, counters_dir(), "nccl-ha trace merge"));
      auto read = refuse_trace.need(read_dumps(name, dumps));
      std::move(dumps.begin(), dumps.end(), std::back_inserter(all));
      std::move(read.begin(), read.end(), std::back_inserter(sources));
    }
    fmt::print(beside(options->output), "{}", clocks_text(Timeline::of(std::move(sources))));
    save_dumps(*options, all);
  });
}

void add_show(CLI::App& trace, const std::shared_ptr<TraceOptions>& options) {
  CLI::App* show = add_verb(trace, options, "show", "the events, one line each");
  TraceFilter& filter = options->filter;
  show->add_option("--event", filter.events, "only events of that name (several times)");
  show->add_option("--process", filter.process, "only processes with that in host:pid");
  show->add_option("--connection", filter.connection,
                   "only connections with that in their name or key");
  show->add_option("--path", filter.path, "only that path")->check(CLI::NonNegativeNumber);
  show->add_option("--since", filter.since_s, "seconds before the last event")
      ->check(CLI::NonNegativeNumber);
  show->add_option("--last", filter.last, "only so many, the last ones");
  show->callback([options] {
    const Timeline timeline = timeline_of(*options);
    if (const std::string wrong = unknown_events(timeline, options->filter); !wrong.empty()) {
      refuse_trace(fail(Errc::invalid_argument, wrong));
    }
    print_moments(timeline, options->filter);
  });
}

void add_analyses(CLI::App& trace, const std::shared_ptr<TraceOptions>& options) {
  CLI::App* summary =
      add_verb(trace, options, "summary",
               "latencies, stalls and their causes, failovers, times in each state");
  summary->add_flag("--json", options->as_json, "as JSON");
  summary->add_option("--stall-ms", options->stall_ms, "what counts as a stall")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  summary->callback([options] {
    const Timeline timeline = timeline_of(*options);
    const auto all = summarize(timeline, static_cast<int64_t>(options->stall_ms * 1e6));
    if (options->as_json) {
      print_summary_json(timeline, all);
    } else {
      print_summary(timeline, all);
    }
  });
  CLI::App* critical =
      add_verb(trace, options, "critical", "which rank and path held a collective up");
  critical->add_flag("--json", options->as_json, "as JSON");
  critical->add_option("--share", options->limits.share, "of the way that a culprit has at least")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  critical
      ->add_option("--factor", options->limits.factor,
                   "how many times more of the way it has than other paths")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  critical->add_option("--slower", options->limits.slower, "how many times longer its chunks take")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  critical->callback([options] {
    const Timeline timeline = timeline_of(*options);
    const CriticalResult result = critical_of(timeline, options->limits);
    if (options->as_json) {
      print_critical_json(timeline, result);
    } else {
      print_critical(result);
    }
  });
}

void add_waiting(CLI::App& trace, const std::shared_ptr<TraceOptions>& options) {
  CLI::App* waiting =
      trace.add_subcommand("waiting", "which requests are open now, for how long, and for what");
  waiting->add_option(
      "FROM", options->names,
      "as of the others; without it all processes of this user, or of all for root");
  waiting->add_flag("--json", options->as_json, "as JSON");
  waiting->callback([options] { show_waiting(*options); });
}

void add_pictures(CLI::App& trace, const std::shared_ptr<TraceOptions>& options) {
  CLI::App* to = add_verb(trace, options, "export", "for other programs");
  to->add_option("--format", options->format, "perfetto: opens in ui.perfetto.dev")
      ->check(CLI::IsMember({"perfetto"}))
      ->capture_default_str();
  to->add_option("-o,--output", options->output, "file")->required();
  to->callback([options] {
    spare_sources(*options);
    save(*options, perfetto_of(timeline_of(*options)), "track events");
  });
  CLI::App* plot = add_verb(trace, options, "plot", "throughput of each path over time, as SVG");
  plot->add_option("-o,--output", options->output, "file")->required();
  plot->add_option("--bins", options->bins, "steps of time")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  plot->callback([options] {
    spare_sources(*options);
    save(*options, plot_of(timeline_of(*options), options->bins), "SVG");
  });
}

}  // namespace

void add_trace(CLI::App& app) {
  CLI::App* trace =
      app.add_subcommand("trace", "What flight recorders hold: of processes, and of dumps");
  trace->require_subcommand(1);
  const auto options = std::make_shared<TraceOptions>();
  add_dump_and_merge(*trace, options);
  add_show(*trace, options);
  add_analyses(*trace, options);
  add_waiting(*trace, options);
  add_pictures(*trace, options);
}

}  // namespace nccl_ha::tools
