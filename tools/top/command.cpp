#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/config.h"
#include "runtime/base/host.h"
#include "runtime/base/whole_file.h"
#include "tools/commands.h"
#include "tools/common/environment.h"
#include "tools/common/host_list.h"
#include "tools/common/output.h"
#include "tools/common/refusal.h"
#include "tools/common/terminal.h"
#include "tools/top/agents.h"
#include "tools/top/screen.h"
#include "tools/top/stat.h"
#include "tools/top/totals.h"

namespace nccl_ha::tools {
namespace {

constexpr Refusal refuse_top{"nccl-ha top", 2};
constexpr Refusal refuse_stat{"nccl-ha stat", 2};
constexpr size_t plain_columns = 160;
constexpr std::chrono::milliseconds agent_limit{3000};

struct TopOptions {
  std::vector<uint32_t> pids;
  RowOrder order;
  double interval_s = 1;
  uint64_t count = 0;
  bool as_json = false;
  bool prometheus = false;
  std::string textfile;
  std::string hosts;
  std::string host_file;
  uint16_t agent_port = 7470;
};

bool names_hosts(const TopOptions& options) {
  return !options.hosts.empty() || !options.host_file.empty();
}

std::string directory_of(const Refusal& refuse) {
  std::vector<std::string> warnings;
  return refuse.need(load_config(Environment{}, &warnings)).counters_dir;
}

/// Until then, or until a signal.
void pause_for(double seconds) { poll(nullptr, 0, static_cast<int>(seconds * 1000)); }

CounterReading reading_of(const TopOptions& options, const Refusal& refuse) {
  if (names_hosts(options)) {
    std::vector<AgentPlace> agents;
    for (const NamedHost& host :
         refuse.need(named_hosts(options.hosts, options.host_file, process_environment(), 1))) {
      agents.push_back({host.address, options.agent_port});
    }
    return read_agents(agents, agent_limit);
  }
  return refuse.need(read_all_counters(directory_of(refuse), options.pids));
}

/// Says which processes are left out; with nothing else to show it ends with status 2, and where a
/// host that was named is left out with 1.
void complain(const CounterReading& reading, bool named) {
  flush_output();
  for (const std::string& file : reading.unreadable) {
    fmt::print(stderr, "nccl-ha stat: left out {}\n", file);
  }
  if (reading.files.empty() && !reading.unreadable.empty()) {
    throw CLI::RuntimeError(2);
  }
  if (named && !reading.unreadable.empty()) {
    throw CLI::RuntimeError(1);
  }
}

/// The sums of processes that have ended are kept beside the file.
void write_textfile(const TopOptions& options, const CounterReading& reading) {
  const std::string kept = options.textfile + ".state";
  std::ifstream in(kept);
  CounterTotals totals(std::string(std::istreambuf_iterator<char>(in), {}));
  if (!totals.state_read()) {
    fmt::print(stderr, "nccl-ha stat: {} is damaged: sums begin anew\n", kept);
  }
  totals.take(reading);
  refuse_stat.need(write_file(kept, totals.state()));
  refuse_stat.need(write_file(options.textfile, totals.metrics(host_name())));
}

void show_stat(const TopOptions& options) {
  const CounterReading before = reading_of(options, refuse_stat);
  if (!options.textfile.empty()) {
    write_textfile(options, before);
    for (const std::string& file : before.unreadable) {
      fmt::print(stderr, "nccl-ha stat: left out {}\n", file);
    }
    return;
  }
  if (options.prometheus) {
    fmt::print("{}", stat_prometheus(before));
    complain(before, names_hosts(options));
    return;
  }
  pause_for(options.interval_s);
  const CounterReading now = reading_of(options, refuse_stat);
  const SumCheck sums = check_sums(now, before);
  const auto rows = arranged(rows_of(now, &before), options.order);
  if (options.as_json) {
    print_stat_json(rows, sums, now.unreadable);
  } else {
    const size_t columns = terminal_columns();
    for (const std::string& line : table_lines(rows, columns == 0 ? plain_columns : columns)) {
      fmt::print("{}\n", line);
    }
    if (rows.empty() && now.unreadable.empty()) {
      fmt::print("no process of this user has the plugin loaded\n");
    }
    fmt::print("{}\n", sums_line(sums));
    for (const std::string& wrong : sums.wrong) {
      fmt::print("  {}\n", wrong);
    }
  }
  complain(now, names_hosts(options));
  if (!sums.wrong.empty()) {
    throw CLI::RuntimeError(1);
  }
}

volatile sig_atomic_t interrupted = 0;

/// What `top` shows, and what its keys change.
class TopPage {
 public:
  explicit TopPage(const TopOptions& options) : options_(options), order_(options.order) {}

  std::vector<std::string> draw(size_t columns) {
    const CounterReading now = reading_of(options_, refuse_top);
    std::vector<std::string> lines;
    const SumCheck sums = before_ ? check_sums(now, *before_) : SumCheck{};
    lines.push_back(fmt::format(
        "nccl-ha top: {} processes, every {} s; sorted by {}{}; {}", now.files.size(),
        options_.interval_s, order_.sort,
        order_.filter.empty() ? "" : fmt::format(", only {}", order_.filter), sums_line(sums)));
    if (!now.unreadable.empty()) {
      lines.front() += fmt::format("; {} cannot be read", now.unreadable.size());
    }
    auto table =
        table_lines(arranged(rows_of(now, before_ ? &*before_ : nullptr), order_), columns);
    lines.push_back(table.front());
    skip_ = std::min(skip_, table.size() - 1);
    lines.insert(lines.end(), table.begin() + 1 + static_cast<ptrdiff_t>(skip_), table.end());
    lines.front() = lines.front().substr(0, columns);
    before_ = now;
    return lines;
  }

  /// False: it is to end.
  bool on_key(char key) {
    if (typing_) {
      if (key == '\n' || key == '\r') {
        typing_ = false;
      } else if (key == 127 || key == 8) {
        order_.filter.resize(order_.filter.empty() ? 0 : order_.filter.size() - 1);
      } else if (key >= ' ' && key <= '~') {
        order_.filter += key;
      }
      return true;
    }
    static const std::vector<std::string> sorts{"name",     "rate", "sent",
                                                "received", "open", "again"};
    if (key == 's') {
      const auto at = std::find(sorts.begin(), sorts.end(), order_.sort);
      order_.sort = at == sorts.end() || at + 1 == sorts.end() ? sorts.front() : *(at + 1);
    } else if (key == '/') {
      typing_ = true;
      order_.filter.clear();
    } else if (key == 'D') {
      ++skip_;
    } else if (key == 'U') {
      skip_ -= skip_ == 0 ? 0 : 1;
    }
    return key != 'q';
  }

 private:
  const TopOptions& options_;
  RowOrder order_;
  std::optional<CounterReading> before_;
  size_t skip_ = 0;
  bool typing_ = false;
};

void show_top(const TopOptions& options) {
  TopPage page(options);
  const auto pause = static_cast<int>(options.interval_s * 1000);
  if (isatty(STDOUT_FILENO) == 0 || isatty(STDIN_FILENO) == 0) {
    for (uint64_t i = 0; options.count == 0 || i < options.count; ++i) {
      for (const std::string& line : page.draw(plain_columns)) {
        fmt::print("{}\n", line);
      }
      fmt::print("\n");
      std::fflush(stdout);
      pause_for(options.interval_s);
    }
    return;
  }
  struct sigaction stop {};
  stop.sa_handler = [](int) { interrupted = 1; };
  sigaction(SIGINT, &stop, nullptr);
  sigaction(SIGTERM, &stop, nullptr);
  const Screen screen;
  for (uint64_t i = 0; interrupted == 0 && (options.count == 0 || i < options.count); ++i) {
    screen.show(page.draw(screen.size().columns));
    if (const char key = Screen::wait_key(pause); key != 0 && !page.on_key(key)) {
      return;
    }
  }
}

void add_common(CLI::App& command, const std::shared_ptr<TopOptions>& options) {
  command.add_option("--pid", options->pids, "only these processes; also after they were killed");
  command.add_option("--sort", options->order.sort, "name, rate, sent, received, open or again")
      ->check(CLI::IsMember({"name", "rate", "sent", "received", "open", "again"}))
      ->capture_default_str();
  command.add_option("--filter", options->order.filter,
                     "only what has that in its name, with all below and above it");
  command.add_option("--interval", options->interval_s, "seconds between two readings")
      ->check(CLI::Range(0.05, 3600.0))
      ->capture_default_str();
  auto* hosts = command.add_option(
      "--hosts", options->hosts,
      "processes of these hosts by their agents: NAME or NAME=ADDRESS,...; node[1-8]; job");
  auto* file = command.add_option("--hosts-file", options->host_file, "a host on each line");
  hosts->excludes(file)->excludes("--pid");
  file->excludes("--pid");
  command.add_option("--agent-port", options->agent_port, "where agents serve their page")
      ->check(CLI::Range(1, 65535))
      ->capture_default_str();
}

}  // namespace

void add_stat(CLI::App& app) {
  const auto options = std::make_shared<TopOptions>();
  CLI::App* stat = app.add_subcommand(
      "stat", "What all processes with the plugin count: table, JSON or Prometheus's text");
  add_common(*stat, options);
  stat->add_flag("--json", options->as_json, "as JSON");
  stat->add_flag("--prometheus", options->prometheus, "every counter, as Prometheus reads them")
      ->excludes("--json");
  stat->add_option("--textfile", options->textfile,
                   "sums for node_exporter into this file, with those of processes that ended")
      ->excludes("--json", "--prometheus", "--pid", "--hosts", "--hosts-file");
  stat->callback([options] { show_stat(*options); });
}

void add_top(CLI::App& app) {
  const auto options = std::make_shared<TopOptions>();
  CLI::App* top = app.add_subcommand(
      "top", "The same live: processes, workers, connections and paths with their rates");
  add_common(*top, options);
  top->add_option("--count", options->count, "end after so many pages; 0: when q is pressed");
  top->callback([options] { show_top(*options); });
}

}  // namespace nccl_ha::tools
