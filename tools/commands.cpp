#include "tools/commands.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/base/version.h"
#include "tools/common/command_line.h"

namespace nccl_ha::tools {
namespace {

/// What nccl-tests has and perf has not, and what is there instead.
constexpr std::pair<std::string_view, const char*> of_nccl_tests[] = {
    {"-g", "there are no GPUs here; ranks are processes: --ranks"},
    {"--ngpus", "there are no GPUs here; ranks are processes: --ranks"},
    {"-t", "each rank is a process of its own: --ranks"},
    {"--nthreads", "each rank is a process of its own: --ranks"},
    {"-G", "there are no CUDA graphs without a GPU; leave it out"},
    {"--cudagraph", "there are no CUDA graphs without a GPU; leave it out"},
    {"-z", "nothing blocks here; leave it out"},
    {"--blocking", "nothing blocks here; leave it out"},
    {"-m", "iterations run back to back with -c 0; leave it out"},
    {"--agg_iters", "iterations run back to back with -c 0; leave it out"},
    {"-p", "ranks always begin at the same time; leave it out"},
    {"--parallel_init", "ranks always begin at the same time; leave it out"},
    {"-y", "there are no streams without a GPU; leave it out"},
    {"--stream_null", "there are no streams without a GPU; leave it out"},
    {"-a", "the time shown is always the slowest rank's; leave it out"},
    {"--average", "the time shown is always the slowest rank's; leave it out"},
    {"-N", "turns at each size: --rounds"},
    {"--run_cycles", "turns at each size: --rounds"},
    {"-C", "the column cpu is always there; leave it out"},
    {"--report_cputime", "the column cpu is always there; leave it out"},
    {"-R", "memory is always registered; leave it out"},
    {"--local_register", "memory is always registered; leave it out"},
    {"-J", "results as JSON: --json"},
    {"--output_file", "results as JSON: --json"},
};

std::string replacement_of(const std::string& command, const std::string& word) {
  for (const auto& [option, instead] : of_nccl_tests) {
    if (command == "perf" && word == option) {
      return fmt::format("{} is an option of nccl-tests: {}", word, instead);
    }
  }
  return "";
}

}  // namespace

int run_command_line(int argc, char** argv) {
  CLI::App app{"Tools around libnccl-net-ha.so, a highly available network plugin for NCCL"};
  app.name("nccl-ha");
  app.set_version_flag("--version",
                       fmt::format("nccl-ha {} ({})", version_number(), version_commit()));
  app.require_subcommand(1);
  app.footer(
      "`nccl-ha SUBCOMMAND --help` describes one subcommand.\n"
      "Exit status: 0 done, and nothing is wrong; 1 done, and something is wrong; 2 it could not "
      "be "
      "done.");
  add_perf(app);
  add_info(app);
  add_check(app);
  add_lab(app);
  add_relay(app);
  add_agent(app);
  add_trace(app);
  add_stat(app);
  add_top(app);
  add_tune(app);
  add_report(app);
  add_complete(app);
  return run_application(app, argc, argv, replacement_of);
}

}  // namespace nccl_ha::tools
