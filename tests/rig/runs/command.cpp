// nha-sim: failover on virtual time, run after run.
#include <fmt/format.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>

#include "runtime/base/log.h"
#include "tests/rig/runs/coverage.h"
#include "tests/rig/runs/failover_run.h"
#include "tests/rig/runs/mesh_run.h"
#include "tools/common/command_line.h"
#include "tools/common/terminal.h"
#include "tools/common/within.h"

namespace nccl_ha::rig {
namespace {

struct SimOptions {
  uint64_t seeds = 1000;
  uint64_t first = 1;
  uint64_t only = 0;
  double suspicions = 0.5;
  double callers_help = 0;
  std::string fabric = "mixed";
  std::string kind = "mixed";
  bool sessions = false;
  bool mesh = false;
};

FailoverRun run_of(const SimOptions& options, uint64_t seed) {
  FailoverRun run = mixed_run(seed);
  if (const auto kind = run_kind_of(options.kind)) {
    run.kind = *kind;
  } else if (options.fabric != "mixed" && options.kind == "mixed") {
    run.kind = RunKind::classic;
  }
  run.fabric = options.fabric;
  if (options.fabric != "mixed") {
    run.rails = 2;
    run.rdma = options.fabric != "datagram";
    run.spare = options.fabric == "spare";
  }
  run.suspicions = options.suspicions;
  run.callers_help = options.callers_help;
  run.sessions = options.sessions;
  return run;
}

/// Of the runs of one kind.
struct KindTime {
  uint64_t runs = 0;
  uint64_t violations = 0;
  double seconds = 0;
};
using KindTimes = std::array<KindTime, run_kinds>;

double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

void print_kinds(const KindTimes& times) {
  for (size_t i = 0; i < times.size(); ++i) {
    const KindTime& one = times[i];
    if (one.runs != 0) {
      fmt::print("  {:<9} {} runs, {} with a violation, {:.0f} a second of processor time\n",
                 to_text(static_cast<RunKind>(i)), one.runs, one.violations,
                 static_cast<double>(one.runs) / std::max(one.seconds, 1e-9));
    }
  }
}

void print_report(const SimOptions& options, const FailoverTotals& totals, uint64_t violations,
                  double real_seconds) {
  const double simulated = std::chrono::duration<double>(totals.simulated).count();
  fmt::print("runs        {} (seeds {} to {}), {} with a violation\n", options.seeds, options.first,
             options.first + options.seeds - 1, violations);
  fmt::print("time        {:.2f} virtual hours in {:.1f} s\n", simulated / 3600, real_seconds);
  fmt::print(
      "cuts        {} of both directions, {} sender to receiver, {} receiver to sender, {} for "
      "good; {} during a handshake\n",
      totals.cuts_both, totals.cuts_there, totals.cuts_back, totals.cuts_for_good,
      totals.handshakes_cut);
  fmt::print(
      "NICs        {} ports down, {} of them first of all, {} GIDs moved, {} devices lost, "
      "{} of them hung; {} rails slow\n",
      totals.ports_down, totals.ports_down_first, totals.gids_moved, totals.devices_lost,
      totals.devices_hung, totals.slow);
  fmt::print(
      "streams     {} ways cut for TCP alone, {} connections forgotten by middleboxes, {} "
      "resets, {} timeouts\n",
      totals.management_cuts, totals.flows_forgotten, totals.resets, totals.timeouts);
  fmt::print("schedule    {} processes stood still, {} workers starved, {} callers away\n",
             totals.pauses, totals.starved, totals.callers_away);
  fmt::print("deaths      {} processes killed, {} hosts without power; noticed within {} ms\n",
             totals.killed, totals.power_off, totals.longest_death.count() / 1'000'000);
  fmt::print("pairs       {} faults just after another one, {} at a chunk that was half posted\n",
             totals.faults_paired, totals.faults_at_half);
  fmt::print("verdicts    on living paths: {} by the sender, {} by the receiver\n",
             totals.false_verdicts_sender, totals.false_verdicts_receiver);
  fmt::print(
      "packets     {}: {} lost, {} doubled, {} reordered, {} met a cut, {} came too late; {} late "
      "completions\n",
      totals.packets, totals.packets_lost, totals.packets_doubled, totals.packets_reordered,
      totals.packets_cut, totals.packets_too_late, totals.completions_late);
  fmt::print(
      "failovers   {} paths given up, {} replaced (counted on each side), the longest {} ms\n",
      totals.down, totals.back, totals.longest_stall.count() / 1'000'000);
  fmt::print("moves       {} of traffic, to another rail or back\n", totals.moves);
  fmt::print("chunks      {} sent again ({} bytes), {} found to have arrived\n",
             totals.chunks_again, totals.bytes_again, totals.chunks_kept);
  if (totals.bytes_lost != 0) {
    fmt::print("replay      {} bytes were posted again, {} had not arrived: {:.3f} (RDMA runs)\n",
               totals.bytes_replayed, totals.bytes_lost,
               static_cast<double>(totals.bytes_replayed) / static_cast<double>(totals.bytes_lost));
  }
  fmt::print("{}", lane_coverage_text());
}

/// With the virtual time of the world that is `context`.
void print_traced(const sim::World* world, const char* text) {
  // Null: it is still being made.
  const auto now = world == nullptr ? Duration() : world->now().time_since_epoch();
  fmt::print("{:12.3f} ms  {}\n", std::chrono::duration<double, std::milli>(now).count(), text);
}

/// Runs it with all that is logged.
template <class Run>
std::string run_traced(Run run, const std::function<std::string(const Run&)>& whole) {
  const sim::World* world = nullptr;
  run.begins = [&](const sim::World& begun) { world = &begun; };
  run.trace = [&](const std::string& what) { print_traced(world, what.c_str()); };
  set_log_sink(
      [](void* context, LogLevel, const char*, int, const char* text) {
        print_traced(*static_cast<const sim::World**>(context), text);
      },
      &world);
  set_log_level(LogLevel::debug);
  std::string outcome = whole(run);
  set_log_sink(nullptr, nullptr);
  return outcome;
}

void print_mesh_report(const SimOptions& options, const MeshTotals& totals, uint64_t violations,
                       double real_seconds) {
  const double simulated = std::chrono::duration<double>(totals.failovers.simulated).count();
  const MeshFaultCounts& faults = totals.faults;
  fmt::print("runs        {} (seeds {} to {}), {} with a violation\n", options.seeds, options.first,
             options.first + options.seeds - 1, violations);
  fmt::print("time        {:.2f} virtual hours in {:.1f} s\n", simulated / 3600, real_seconds);
  fmt::print("meshes      {:.1f} hosts on average, {} at most\n",
             static_cast<double>(totals.hosts) / static_cast<double>(options.seeds),
             totals.hosts_most);
  fmt::print("connections {}, {} of them over other hosts, {} with load on two ways at once\n",
             totals.connections, totals.seen.over_relays, totals.seen.both_ways);
  fmt::print("cables      {} cut, {} of them with news of it, {} in one direction, {} slow\n",
             faults.cut, faults.pulled, faults.cut_one_way, faults.slow);
  fmt::print("hosts       {} killed, {} drained, {} stood still\n", faults.killed, faults.drained,
             faults.paused);
  fmt::print("changes     {} cables and hosts added, {} gone for good\n", faults.added,
             faults.for_good);
  fmt::print("relays      {} sessions, {} more refused, {:.1f} MB passed on\n",
             totals.seen.sessions, totals.seen.refused,
             static_cast<double>(totals.seen.bytes) * 1e-6);
  fmt::print(
      "limits      {} meshes with much load; paths held back {} times, {} stalled; {} looks found "
      "fewer slots than asked for, {} several paths that waited for turns; {} meshes with a key\n",
      totals.loaded, totals.seen.held_back, totals.seen.stalls, totals.fewer_slots,
      totals.shared_turns, totals.with_key);
  fmt::print(
      "failovers   {} paths given up, {} replaced (counted on each side), the longest {} ms; {} "
      "moves of traffic\n",
      totals.failovers.down, totals.failovers.back,
      totals.failovers.longest_stall.count() / 1'000'000, totals.failovers.moves);
  fmt::print("messages    {} received; {} chunks sent again, {} found to have arrived\n",
             totals.failovers.groups, totals.failovers.chunks_again, totals.failovers.chunks_kept);
}

void show_progress(tools::ProgressLine& progress, uint64_t done, uint64_t of, uint64_t violations) {
  if (progress.due()) {
    progress.show(fmt::format("{} of {} runs, {}%, {} with a violation", done, of, done * 100 / of,
                              violations));
  }
}

int run_all_meshes(const SimOptions& options) {
  set_log_level(LogLevel::error);
  MeshTotals totals;
  uint64_t violations = 0;
  SteadyClock clock;
  const Instant begin = clock.now();
  tools::ProgressLine progress;
  for (uint64_t i = 0; i < options.seeds; ++i) {
    show_progress(progress, i, options.seeds, violations);
    MeshRun run;
    run.seed = options.first + i;
    const std::string outcome = run_mesh(run, &totals);
    if (!outcome.empty()) {
      ++violations;
      progress.clear();
      fmt::print("seed {}: {} (`nha-sim --mesh --seed {}` shows how)\n", run.seed, outcome,
                 run.seed);
      std::fflush(stdout);
    }
  }
  progress.clear();
  print_mesh_report(options, totals, violations,
                    std::chrono::duration<double>(clock.now() - begin).count());
  return violations == 0 ? 0 : 1;
}

int replay_mesh(const SimOptions& options) {
  MeshTotals totals;
  MeshRun run;
  run.seed = options.only;
  const std::string outcome =
      run_traced<MeshRun>(run, [&](const MeshRun& traced) { return run_mesh(traced, &totals); });
  SimOptions one = options;
  one.first = options.only;
  one.seeds = 1;
  print_mesh_report(one, totals, outcome.empty() ? 0 : 1, 0);
  fmt::print("outcome     {}\n", outcome.empty() ? "every byte was right" : outcome);
  return outcome.empty() ? 0 : 1;
}

int replay(const SimOptions& options) {
  FailoverTotals totals;
  const std::string outcome = run_traced<FailoverRun>(
      run_of(options, options.only),
      [&](const FailoverRun& traced) { return run_failovers(traced, &totals); });
  SimOptions one = options;
  one.first = options.only;
  one.seeds = 1;
  print_report(one, totals, outcome.empty() ? 0 : 1, 0);
  fmt::print("outcome     {}\n", outcome.empty() ? "every byte was right" : outcome);
  return outcome.empty() ? 0 : 1;
}

int run_all(const SimOptions& options) {
  set_log_level(LogLevel::error);
  FailoverTotals totals;
  uint64_t violations = 0;
  KindTimes times;
  SteadyClock clock;
  const Instant begin = clock.now();
  tools::ProgressLine progress;
  for (uint64_t i = 0; i < options.seeds; ++i) {
    show_progress(progress, i, options.seeds, violations);
    const FailoverRun run = run_of(options, options.first + i);
    KindTime& time = times[static_cast<size_t>(run.kind)];
    const double before = processor_seconds();
    const std::string outcome = run_failovers(run, &totals);
    time.seconds += processor_seconds() - before;
    ++time.runs;
    if (!outcome.empty()) {
      ++violations;
      ++time.violations;
      progress.clear();
      fmt::print(
          "seed {} ({}): {} (`nha-sim --seed {}{}{}{}{}` shows how)\n", run.seed, to_text(run.kind),
          outcome, run.seed, options.kind == "mixed" ? "" : " --kind " + options.kind,
          options.fabric == "mixed" ? "" : " --fabric " + options.fabric,
          options.sessions ? " --sessions" : "",
          options.callers_help == 0 ? "" : fmt::format(" --callers-help {}", options.callers_help));
      std::fflush(stdout);
    }
  }
  progress.clear();
  print_kinds(times);
  print_report(options, totals, violations,
               std::chrono::duration<double>(clock.now() - begin).count());
  return violations == 0 ? 0 : 1;
}

/// All of main(); the program's exit status.
int run_simulations(int argc, char** argv) {
  SimOptions options;
  CLI::App app{"Run the failover protocol on virtual time, with faults that a seed decides"};
  app.name("nha-sim");
  app.add_option("--seeds", options.seeds, "Runs, with a seed each")
      ->capture_default_str()
      ->check(tools::within(uint64_t{1}, uint64_t{1} << 40, "runs"));
  app.add_option("--first", options.first, "The first seed")
      ->check(tools::within(uint64_t{1}, UINT64_MAX))
      ->capture_default_str();
  app.add_option("--seed", options.only, "One run only, with a trace of what happened")
      ->excludes("--seeds")
      ->excludes("--first")
      ->check(tools::within(uint64_t{1}, UINT64_MAX));
  app.add_option("--false-verdicts", options.suspicions,
                 "Part of the faults that are verdicts on a living path; the others are cuts")
      ->capture_default_str()
      ->check(tools::within(0.0, 1.0));
  app.add_option("--callers-help", options.callers_help,
                 "Where there are progress threads callers drive workers too, and the two change "
                 "hands at this part of the threads' turns; not in classic runs")
      ->capture_default_str()
      ->check(tools::within(0.0, 1.0));
  app.add_option("--fabric", options.fabric,
                 "What connects the hosts: two rails of datagrams or RDMA, RDMA with a spare "
                 "interface for datagrams, or all of them in turn; without --kind: classic runs")
      ->capture_default_str()
      ->check(CLI::IsMember({"mixed", "datagram", "rdma", "spare"}));
  app.add_option("--kind", options.kind,
                 "What mainly goes wrong: classic, paths, streams, pauses, deaths, closes, crowd, "
                 "volume, devices (tests/rig/runs/scenario.h), or all of them in turn")
      ->capture_default_str()
      ->check(CLI::IsMember({"mixed", "classic", "paths", "streams", "pauses", "deaths", "closes",
                             "crowd", "volume", "devices"}));
  app.add_flag("--sessions", options.sessions,
               "Two more connections beside each, and streams that they share, in some runs not on "
               "all hosts; not in classic runs");
  app.add_flag("--mesh", options.mesh,
               "Hosts cabled without a switch, up to 64 of them: cables and hosts come and go, "
               "and relays carry what no cable does")
      ->excludes("--kind")
      ->excludes("--fabric")
      ->excludes("--false-verdicts")
      ->excludes("--callers-help")
      ->excludes("--sessions");
  app.footer("Ends with 0 when no run violated a guarantee of docs/protocol.md.");
  app.callback([&options] {
    const int status = options.mesh
                           ? (options.only != 0 ? replay_mesh(options) : run_all_meshes(options))
                       : options.only != 0 ? replay(options)
                                           : run_all(options);
    if (status != 0) {
      throw CLI::RuntimeError(status);
    }
  });
  return tools::run_application(app, argc, argv);
}

}  // namespace
}  // namespace nccl_ha::rig

int main(int argc, char** argv) { return nccl_ha::rig::run_simulations(argc, argv); }
