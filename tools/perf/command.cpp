// nccl-ha perf: drives any NCCL network plugin without a GPU and checks every byte.
#include <fmt/format.h>
#include <strings.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "runtime/fabric/interfaces.h"
#include "tools/commands.h"
#include "tools/common/environment.h"
#include "tools/common/nearest.h"
#include "tools/common/output.h"
#include "tools/common/refusal.h"
#include "tools/common/remote_ranks.h"
#include "tools/common/within.h"
#include "tools/perf/baseline.h"
#include "tools/perf/options.h"
#include "tools/perf/supervisor.h"

namespace nccl_ha::tools {
namespace {

/// What the command line holds as text until it is parsed.
struct RawOptions {
  PerfOptions options;
  RemoteOptions remote;
  std::string op = "all_reduce";
  std::string min_bytes = "8";
  std::string max_bytes = "16M";
  std::string step_bytes = "0";
  std::string message_bytes = "512K";
  std::string type = "float";
  std::string reduce_op = "sum";
  int check = 1;
  int64_t warmup = -1;
  std::vector<std::string> env;
  std::vector<std::string> env_against;
};

constexpr Refusal refuse_perf{"nccl-ha perf", 2};

/// Of "a, b, c".
std::vector<std::string> words_in(const std::string& list) {
  std::vector<std::string> words = CLI::detail::split(list, ',');
  for (std::string& word : words) {
    CLI::detail::trim(word);
  }
  return words;
}

template <class T>
T need_name(std::optional<T> value, const std::string& text, const char* option,
            const std::string& choices) {
  if (!value) {
    refuse_perf(
        fail(Errc::invalid_argument, fmt::format("{} {}: choose one of {}{}", option, text, choices,
                                                 did_you_mean(text, words_in(choices)))));
  }
  return *value;
}

std::optional<OpKind> parse_op(const std::string& text) {
  for (int i = 0; i < op_kinds; ++i) {
    if (text == to_text(static_cast<OpKind>(i))) {
      return static_cast<OpKind>(i);
    }
  }
  return std::nullopt;
}

std::string operations_help() {
  std::string text = "Operations:\n";
  for (int i = 0; i < op_kinds; ++i) {
    const auto op = static_cast<OpKind>(i);
    text += fmt::format("  {:<15} {}\n", to_text(op), describe(op));
  }
  return text +
         "\nExamples:\n"
         "  nccl-ha perf all_reduce --ranks 4 -b 8 -e 64M --plugin ./libnccl-net-ha.so\n"
         "  nccl-ha perf pt2pt -b 64M -e 64M --plugin ha --against ./other.so\n"
         "  nccl-ha perf latency -b 8 -e 8 --plugin ha --env HA_NCCL_USE_PROGRESS_THREAD=0\n"
         "  nccl-ha perf all_reduce --seconds 2 --baseline before.json\n"
         "  torchrun --nnodes 2 --no-python nccl-ha perf alltoall --plugin ha\n"
         "\nThe options that nccl-tests has mean here what they mean there: -n iterations, -w, "
         "-b,\n"
         "-e, -f, -i, -c, -d, -o, -r, -T. Its others are refused with a word on what is there\n"
         "instead. The table is 94 columns wide, 127 with --percentiles; --against adds a second\n"
         "plugin's.\n";
}

/// NCCL_DEBUG=INFO asks NCCL for the same lines.
bool debug_asks_for_info() {
  const char* level = getenv("NCCL_DEBUG");
  return level != nullptr && (strcasecmp(level, "INFO") == 0 || strcasecmp(level, "TRACE") == 0);
}

PerfOptions parse(const RawOptions& raw) {
  PerfOptions o = raw.options;
  o.op = need_name(parse_op(raw.op), raw.op, "operation",
                   "all_reduce, all_gather, reduce_scatter, broadcast, alltoall, sendrecv, pt2pt, "
                   "latency");
  o.min_bytes = refuse_perf.need(parse_bytes(raw.min_bytes));
  o.max_bytes = refuse_perf.need(parse_bytes(raw.max_bytes));
  o.step_bytes = refuse_perf.need(parse_bytes(raw.step_bytes));
  o.message_bytes = refuse_perf.need(parse_bytes(raw.message_bytes));
  o.type = need_name(parse_type(raw.type), raw.type, "--datatype", type_names());
  o.reduce_op = need_name(parse_reduce_op(raw.reduce_op), raw.reduce_op, "--op", reduce_op_names());
  o.check = raw.check != 0;
  o.verbose = o.verbose || debug_asks_for_info();
  o.warmup = raw.warmup < 0 ? UINT64_MAX : static_cast<uint64_t>(raw.warmup);
  for (const std::string& text : raw.env) {
    o.plugin.environment.push_back(refuse_perf.need(parse_assignment(text)));
  }
  for (const std::string& text : raw.env_against) {
    o.against.environment.push_back(refuse_perf.need(parse_assignment(text)));
  }
  return o;
}

bool loopback_is_up() {
  const auto all = fabric::list_interfaces();
  return !all || std::any_of(all->begin(), all->end(),
                             [](const auto& one) { return one.loopback && one.up; });
}

void run(RawOptions& raw) {
  begin_remote_rank();
  PerfOptions options = parse(raw);
  if (raw.remote.given) {
    raw.remote.hosts =
        refuse_perf.need(named_hosts(raw.remote.list, raw.remote.file, process_environment()));
    raw.remote.words = words_to_pass_on();
    raw.remote.timeout_s = static_cast<double>(options.timeout_s);
    raw.remote.hold_output = options.json == "-";
    throw CLI::RuntimeError(refuse_perf.need(run_on_hosts(raw.remote)));
  }
  const auto launched =
      refuse_perf.need(detect_launcher(process_environment(), options.rendezvous));
  if (auto settled = settle(options, launched ? launched->world_size : options.ranks); !settled) {
    refuse_perf(settled.error());
  }
  if (!options.faults.empty() && getenv("NHA_LAB") == nullptr) {
    refuse_perf(
        fail(Errc::invalid_usage, "--fault works on the hosts of a lab (`nccl-ha lab run`)"));
  }
  if (!launched && !loopback_is_up()) {
    refuse_perf(fail(Errc::system,
                     "the loopback interface is down, and local ranks meet over it: ip link set lo "
                     "up"));
  }
  if (!launched || launched->rank == 0) {
    for (const std::string& path : {options.json, options.plot, options.csv}) {
      refuse_perf.need(can_be_written(path));
    }
  }
  std::optional<Baseline> baseline;
  if (!options.baseline.empty()) {
    baseline = refuse_perf.need(
        Baseline::read(options.baseline, options, launched ? launched->world_size : options.ranks));
  }
  if (const int status = supervise(options, launched, std::move(baseline)); status != 0) {
    throw CLI::RuntimeError(status);
  }
}

void add_measurement(CLI::App& perf, RawOptions& raw) {
  PerfOptions& o = raw.options;
  perf.add_option("-b,--minbytes", raw.min_bytes, "Smallest size (K, M, G: powers of 1024)")
      ->capture_default_str();
  perf.add_option("-e,--maxbytes", raw.max_bytes, "Largest size")->capture_default_str();
  perf.add_option("-f,--stepfactor", o.step_factor, "Each size is this many times the one before")
      ->capture_default_str();
  perf.add_option("-i,--stepbytes", raw.step_bytes, "Each size is this much larger; wins over -f");
  CLI::Option* iterations = perf.add_option("-n,-I,--iters", o.iterations,
                                            "Measured iterations (default 20; latency 10000)")
                                ->check(within(uint64_t{1}, uint64_t{1000000000}, "iterations"));
  perf.add_option("--seconds", o.seconds, "Run each size this long instead")
      ->check(within(0.001, 1000000.0, "seconds"))
      ->excludes(iterations);
  perf.add_option("-w,--warmup,--warmup_iters", raw.warmup,
                  "Iterations before them (default 5; latency 1000)")
      ->check(within(int64_t{0}, int64_t{1000000000}, "iterations"));
  perf.add_option("-c,--check", raw.check,
                  "1: check every byte of every iteration, each timed on its own; "
                  "0: no check, iterations back to back")
      ->check(within(0, 1))
      ->capture_default_str();
  perf.add_option("-d,--datatype,--type", raw.type, "Elements: " + type_names())
      ->capture_default_str();
  perf.add_option("-o,--op", raw.reduce_op, "Reduction: " + reduce_op_names())
      ->capture_default_str();
  perf.add_option("-r,--root", o.root, "Root of a broadcast")->capture_default_str();
  perf.add_option("--step", raw.message_bytes, "Bytes of one message (NCCL's step)")
      ->capture_default_str();
  perf.add_option("--depth", o.depth, "Requests in flight per connection")->capture_default_str();
  perf.add_option("--conns", o.conns, "Connections per pair of ranks (NCCL's channels)")
      ->capture_default_str();
  perf.add_option("--group", o.group,
                  "Messages per receive request, told apart by tags (sendrecv, alltoall, pt2pt)")
      ->capture_default_str();
  perf.add_flag("--bidirectional", o.bidirectional, "pt2pt: both directions at once");
  perf.add_flag("--reuse", o.reuse,
                "pt2pt, sendrecv: use --depth steps over and over, as NCCL's own buffers are, "
                "instead of one buffer of the whole size");
  perf.add_flag("--spin", o.spin, "Do not yield the processor after a pass without progress");
  perf.add_option("--pause", o.pause_us,
                  "latency: microseconds between round trips, in which both sides come to rest")
      ->check(within(0U, 1000000000U, "us"))
      ->capture_default_str();
  perf.add_flag("--send-first", o.send_first,
                "latency: wait for the end of the send, then for the receive, as a caller does who "
                "serves one request after the other");
  perf.add_option("--neighbours", o.neighbours,
                  "Busy processes beside the ranks, as data loaders are, for the whole run")
      ->check(within(0U, 1024U, "processes"))
      ->capture_default_str();
  perf.add_option("--seed", o.seed, "Seed of the data")->capture_default_str();
}

void add_environment(CLI::App& perf, RawOptions& raw) {
  PerfOptions& o = raw.options;
  perf.add_option("--ranks", o.ranks, "Local ranks (ignored under MPI, Slurm and torchrun)")
      ->check(within(1, 512, "ranks"))
      ->capture_default_str();
  perf.add_option("--plugin", o.plugin.name,
                  "FILE[:SYMBOL], or a bare name by NCCL's rules (ha: first beside this program)")
      ->capture_default_str();
  perf.add_option("--abi", o.plugin.abi, "ABI version to use instead of the newest (6 to 12)");
  perf.add_option("--env", raw.env,
                  "NAME=VALUE set in the ranks before the plugin is loaded; may be repeated")
      ->allow_extra_args(false);
  CLI::Option* against =
      perf.add_option("--against", o.against.name, "A second plugin, run in turn; prints ratios");
  perf.add_option("--abi-against", o.against.abi, "Its ABI version")->needs(against);
  perf.add_option("--env-against", raw.env_against, "NAME=VALUE for it; may be repeated")
      ->allow_extra_args(false)
      ->needs(against);
  perf.add_option("--rounds", o.rounds, "Turns per size (default 1; 5 with --against)")
      ->check(within(1, 100000, "rounds"));
  perf.add_option("--device", o.device, "Device of the plugin to use: its number or name")
      ->capture_default_str();
  add_remote_options(perf, raw.remote);
  perf.add_option("--rendezvous", o.rendezvous,
                  "HOST:PORT of rank 0 under a launcher (TCP; --against takes the next one too)");
  perf.add_option("--fault", o.faults,
                  "In a lab: what to do to its links, and when, as in "
                  "'cut rail0 --for 1s@2s, lose rail1 1%@5s'; a time may be a range, 1s..2s, or a "
                  "file, /tmp/go: when that is there, from when on later times count");
  perf.add_option("--fault-rounds", o.fault_rounds, "How often; the run lasts as long")
      ->check(within(1, 500))
      ->capture_default_str();
  perf.add_option("-T,--timeout", o.timeout_s, "Seconds after which the run is ended")
      ->check(within(1, 1000000, "seconds"))
      ->capture_default_str();
  perf.add_option("--json", o.json, "Write the results to this file; '-': to standard output");
  perf.add_option("--plot", o.plot, "Draw bandwidth and time, or latency, over size into this SVG");
  perf.add_flag("--percentiles", o.percentiles,
                "Add p50, p99 and maximum of the iterations' times to the table");
  perf.add_option("--baseline", o.baseline,
                  "Compare with the earlier run whose --json this file is; 5 rounds by default");
  perf.add_option("--csv", o.csv, "Write a line for each size and plugin to this file");
  perf.add_flag("-v,--verbose", o.verbose, "Print the plugin's INFO lines and process numbers");
}

}  // namespace

void add_perf(CLI::App& app) {
  auto raw = std::make_shared<RawOptions>();
  raw->options.plugin.name = "ha";
  CLI::App* perf = app.add_subcommand(
      "perf", "Benchmark any NCCL network plugin without a GPU, every byte checked");
  perf->add_option("operation", raw->op, "What to run (see below)")->required();
  add_measurement(*perf, *raw);
  add_environment(*perf, *raw);
  perf->footer(operations_help());
  perf->callback([raw] { run(*raw); });
}

}  // namespace nccl_ha::tools
