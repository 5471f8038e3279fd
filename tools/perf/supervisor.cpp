#include "tools/perf/supervisor.h"

#include <errno.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <new>
#include <set>

#include "runtime/base/whole_file.h"
#include "tools/common/output.h"
#include "tools/common/terminal.h"
#include "tools/perf/children.h"
#include "tools/perf/message.h"
#include "tools/perf/neighbours.h"
#include "tools/perf/pictures.h"
#include "tools/perf/report.h"

namespace nccl_ha::tools {
namespace {

using nlohmann::json;

/// How long all ranks may take to find each other.
constexpr auto join_time = std::chrono::seconds(60);
/// After the first failure: how long the other ranks may take to say what they saw.
constexpr auto abort_grace = std::chrono::seconds(5);
/// Ranks watch the timeout themselves and say where they were; this much later they are killed.
constexpr auto timeout_grace = std::chrono::seconds(3);

/// Memory that forked processes share, holding one barrier.
class SharedBarrierPage {
 public:
  SharedBarrierPage()
      : page_(mmap(nullptr, sizeof(SharedBarrier), PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    if (page_ != MAP_FAILED) {
      barrier_ = new (page_) SharedBarrier;
    }
  }
  ~SharedBarrierPage() {
    if (page_ != MAP_FAILED) {
      munmap(page_, sizeof(SharedBarrier));
    }
  }
  SharedBarrierPage(const SharedBarrierPage&) = delete;
  SharedBarrierPage& operator=(const SharedBarrierPage&) = delete;
  SharedBarrier* get() const { return barrier_; }

 private:
  void* page_;
  SharedBarrier* barrier_ = nullptr;
};

/// Ranks that were started with other options must not be taken for ours.
uint64_t options_hash(const PerfOptions& o, size_t group) {
  const std::string text = fmt::format(
      "{} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}", o.faults, o.seconds,
      static_cast<int>(o.op), o.min_bytes, o.max_bytes, o.step_factor, o.step_bytes, o.iterations,
      o.warmup, o.rounds, o.check, static_cast<int>(o.type), static_cast<int>(o.reduce_op), o.root,
      o.conns, o.message_bytes, o.depth, o.group, o.bidirectional, o.reuse, o.seed, group);
  uint64_t hash = 1469598103934665603ULL;  // FNV-1a
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  }
  return hash;
}

class Supervisor {
 public:
  Supervisor(const PerfOptions& options, const std::optional<LaunchedRank>& launched,
             std::optional<Baseline> baseline)
      : o_(options), launched_(launched), baseline_(std::move(baseline)) {
    SteadyClock clock;
    start_ = clock.now();
    deadline_ = start_ + std::chrono::seconds(o_.timeout_s);
    plugins_.push_back(o_.plugin);
    if (!o_.against.name.empty()) {
      plugins_.push_back(o_.against);
    }
    infos_.resize(plugins_.size());
    terminal_ = isatty(STDERR_FILENO) == 1;
    ranks_ = launched_ ? launched_->world_size : o_.ranks;
  }

  int run() {
    bool ok = start_neighbours() && start_all() && (directs() ? direct() : true) && wait_for_end();
    clear_progress();
    if (children_.interrupted()) {
      keep_what_there_is();
    } else if (!ok) {
      explain();
    }
    if (directs()) {
      ok = finish_report(ok);
    }
    return ok ? 0 : 1;
  }

 private:
  /// Whether rank 0 is a child of this process.
  bool directs() const { return !launched_ || launched_->rank == 0; }

  bool all_local() const { return !launched_ || launched_->local_size == launched_->world_size; }

  bool start_neighbours() {
    if (auto watched = children_.watch_signals(); !watched) {
      errors_.push_back(watched.error().message());
      return false;
    }
    auto started = neighbours_.start(o_.neighbours);
    if (!started) {
      errors_.push_back(started.error().message());
    }
    return started.ok();
  }

  bool start_all() {
    for (size_t group = 0; group < plugins_.size(); ++group) {
      if (auto started = start_group(group); !started) {
        errors_.push_back(started.error().message());
        return false;
      }
    }
    return true;
  }

  Result<void> start_group(size_t group) {
    RankSetup setup;
    setup.options = o_;
    setup.plugin = plugins_[group];
    setup.all_local = all_local();
    setup.report_progress = terminal_;
    if (setup.all_local && getenv("NCCL_SOCKET_IFNAME") == nullptr) {
      // First, so that --env wins.
      setup.plugin.environment.insert(setup.plugin.environment.begin(),
                                      {"NCCL_SOCKET_IFNAME", "lo"});
    }
    setup.world.size = ranks_;
    setup.world.deadline = deadline_;
    setup.world.join_deadline = std::min(deadline_, start_ + join_time);
    setup.world.cookie = options_hash(o_, group);
    if (launched_) {
      setup.world.rank = launched_->rank;
      setup.world.host = launched_->host;
      setup.world.port = static_cast<uint16_t>(launched_->port + group);
      return children_.start(group, setup);
    }
    auto listener = listen_on_loopback();
    if (!listener) {
      return listener.error();
    }
    setup.world.host = "127.0.0.1";
    setup.world.port = listener->port;
    setup.world.cookie ^= static_cast<uint64_t>(getpid()) << 32;
    setup.barrier = barriers_[group].get();
    Result<void> started;
    for (uint32_t rank = 0; rank < ranks_ && started; ++rank) {
      setup.world.rank = rank;
      setup.world.listen_fd = rank == 0 ? listener->fd : -1;
      started = children_.start(group, setup);
      if (rank == 0) {
        ::close(listener->fd);
      }
    }
    return started;
  }

  /// The next message of a type from a group's rank 0; nothing when the run failed.  Groups work
  /// side by side until the first order, so another's message may come first: it is kept.
  std::optional<json> await(size_t group, const char* type) {
    const auto wanted = [&](const RankMessage& message) {
      return message.group == group && message.body["type"] == type;
    };
    const auto kept = std::find_if(kept_.begin(), kept_.end(), wanted);
    if (kept != kept_.end()) {
      json body = std::move(kept->body);
      kept_.erase(kept);
      return body;
    }
    while (auto message = children_.next(deadline_ + timeout_grace)) {
      if (message->body["type"] == "progress") {
        show_progress(message->body);
      } else if (wanted(*message)) {
        return std::move(message->body);
      } else {
        kept_.push_back(std::move(*message));
      }
    }
    return std::nullopt;
  }

  static std::string settings_of(const PluginChoice& plugin) {
    std::string text;
    for (const auto& [name, value] : plugin.environment) {
      text += fmt::format("{}{}={}", text.empty() ? "" : " ", name, value);
    }
    return text;
  }

  bool direct() {
    for (size_t group = 0; group < plugins_.size(); ++group) {
      auto ready = await(group, "ready");
      if (!ready) {
        return false;
      }
      infos_[group] = {plugins_[group].name,
                       (*ready)["plugin"],
                       (*ready)["file"],
                       (*ready)["abi"],
                       (*ready)["device"],
                       (*ready)["speed_mbps"],
                       settings_of(plugins_[group])};
      const std::set<std::string> hosts = (*ready)["hosts"];
      hosts_ = static_cast<uint32_t>(hosts.size());
    }
    ready_ = true;
    print(header_text(o_, ranks_, hosts_, infos_, terminal_columns()));
    print(width_text(table_width(o_, plugins_.size()), terminal_columns()));
    for (const uint64_t bytes : size_sweep(o_)) {
      if (!run_size(bytes)) {
        return false;
      }
    }
    for (size_t group = 0; group < plugins_.size(); ++group) {
      children_.order(group, {{"type", "stop"}});
    }
    return true;
  }

  // A and B take turns, so that what changes on the machine meanwhile meets both.
  bool run_size(uint64_t bytes) {
    Row& row = unfinished_;
    row = {};
    row.cells.resize(plugins_.size());
    for (uint32_t round = 0; round < o_.rounds; ++round) {
      for (size_t group = 0; group < plugins_.size(); ++group) {
        current_ = fmt::format("{} {} bytes, {}, round {} of {}", to_text(o_.op), bytes,
                               infos_[group].name, round + 1, o_.rounds);
        children_.order(group, {{"type", "run"}, {"bytes", bytes}});
        auto result = await(group, "result");
        if (!result) {
          return false;
        }
        row.bytes = (*result)["bytes"];
        row.count = (*result)["count"];
        row.cells[group].rounds.push_back(round_of(*result));
      }
    }
    finish_row();
    return true;
  }

  void finish_row() {
    clear_progress();
    print(row_text(o_, ranks_, unfinished_));
    print(faults_text(unfinished_.cells.front().rounds.back()));
    report_wrong(unfinished_);
    rows_.push_back(std::move(unfinished_));
    unfinished_ = {};
  }

  /// After a SIGINT: rounds that are complete count, of a size that is not as well.
  void keep_what_there_is() {
    children_.kill_all();
    const bool some = !unfinished_.cells.empty() &&
                      std::all_of(unfinished_.cells.begin(), unfinished_.cells.end(),
                                  [](const Cell& cell) { return !cell.rounds.empty(); });
    if (some) {
      finish_row();
    }
    errors_.push_back(fmt::format("interrupted{}{}", current_.empty() ? "" : " at ", current_));
    std::fprintf(stderr, "nccl-ha perf: %s\n", errors_.back().c_str());
  }

  static Round round_of(const json& result) {
    Round round;
    round.time_s = result["time_s"];
    round.cpu_s = result["cpu_s"];
    round.wrong = result["wrong"];
    round.iterations = result["iterations"];
    round.finding = result.value("finding", "");
    if (result.contains("faults")) {
      for (const json& fault : result["faults"]) {
        round.faults.emplace_back(fault[0].get<std::string>(), fault[1].get<double>());
      }
    }
    if (result.contains("latency")) {
      const json& latency = result["latency"];
      round.min_us = latency["min_us"];
      round.p50_us = latency["p50_us"];
      round.mean_us = latency["mean_us"];
      round.p99_us = latency["p99_us"];
      round.max_us = latency["max_us"];
    }
    return round;
  }

  void report_wrong(const Row& row) {
    for (size_t i = 0; i < row.cells.size(); ++i) {
      if (row.cells[i].wrong() == 0) {
        continue;
      }
      std::string finding;
      for (const Round& round : row.cells[i].rounds) {
        finding = finding.empty() ? round.finding : finding;
      }
      errors_.push_back(fmt::format("{} delivered {} wrong elements at {} bytes; first: {}",
                                    infos_[i].name, row.cells[i].wrong(), row.bytes, finding));
      std::fprintf(stderr, "nccl-ha perf: %s\n", errors_.back().c_str());
    }
  }

  bool wait_for_end() {
    while (auto message = children_.next(deadline_ + timeout_grace)) {
      if (message->body["type"] == "progress") {
        show_progress(message->body);
      }
    }
    complete_ = children_.all_ended() && !children_.failed();
    return complete_;
  }

  void explain() {
    SteadyClock clock;
    if (!children_.failed() && !children_.all_ended()) {
      errors_.push_back(fmt::format("not finished within --timeout {} s{}{}", o_.timeout_s,
                                    current_.empty() ? "" : ": ", current_));
      std::fprintf(stderr, "nccl-ha perf: %s\n", errors_.back().c_str());
    }
    children_.abort(clock.now() + abort_grace);
    // Ranks that fail alike (a wrong file, say) need not all be quoted.
    std::set<std::string> seen;
    for (const std::string& reason : children_.reasons()) {
      const size_t colon = reason.find(": ");
      if (seen.insert(colon == std::string::npos ? reason : reason.substr(colon)).second) {
        errors_.push_back(reason);
        std::fprintf(stderr, "nccl-ha perf: %s\n", reason.c_str());
      }
    }
  }

  bool finish_report(bool ok) {
    uint64_t wrong = 0;
    for (const Row& row : rows_) {
      for (const Cell& cell : row.cells) {
        wrong += cell.wrong();
      }
    }
    ok = ok && wrong == 0;
    if (ready_) {
      print(footer_text(o_, ranks_, rows_, infos_, complete_));
    }
    const auto compared = baseline_ ? baseline_->compare(o_, rows_) : std::vector<Compared>();
    if (ready_ && baseline_) {
      print(compared_text(*baseline_, compared));
    }
    if (ready_ && !save_pictures(o_, ranks_, rows_, infos_)) {
      ok = false;
    }
    if (o_.json.empty()) {
      return ok;
    }
    if (!ready_) {
      infos_.clear();
    }
    json report = report_json(o_, ranks_, hosts_, rows_, infos_, ok, errors_);
    if (baseline_) {
      report["baseline"] = compared_json(*baseline_, compared);
    }
    const std::string text = document_text(document("perf", std::move(report)));
    if (o_.json == "-") {
      std::fwrite(text.data(), 1, text.size(), stdout);
      return ok;
    }
    if (auto written = write_file(o_.json, text); !written) {
      std::fprintf(stderr, "nccl-ha perf: %s\n", written.error().message().c_str());
      return false;
    }
    return ok;
  }

  void print(const std::string& text) const {
    if (o_.json != "-") {
      std::fwrite(text.data(), 1, text.size(), stdout);
      std::fflush(stdout);
    }
  }

  void show_progress(const json& message) {
    const uint64_t of = message["of"];
    const uint64_t done = message["done"];
    progress_.show(fmt::format("{}, {}%", current_, of == 0 ? 0 : done * 100 / of));
  }

  void clear_progress() { progress_.clear(); }

  const PerfOptions& o_;
  const std::optional<LaunchedRank>& launched_;
  std::optional<Baseline> baseline_;
  Instant start_;
  Instant deadline_;
  uint32_t ranks_ = 0;
  uint32_t hosts_ = 1;
  bool terminal_ = false;
  bool ready_ = false;
  bool complete_ = false;
  std::array<SharedBarrierPage, 2> barriers_;
  std::vector<PluginChoice> plugins_;
  std::vector<PluginInfo> infos_;
  std::vector<Row> rows_;
  Row unfinished_;
  std::vector<std::string> errors_;
  std::vector<RankMessage> kept_;
  std::string current_;
  ProgressLine progress_;
  Neighbours neighbours_;
  Children children_;
};

}  // namespace

int supervise(const PerfOptions& options, const std::optional<LaunchedRank>& launched,
              std::optional<Baseline> baseline) {
  return Supervisor(options, launched, std::move(baseline)).run();
}

}  // namespace nccl_ha::tools
