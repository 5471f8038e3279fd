// The program's command line: each subcommand adds itself and its options.
#pragma once

namespace CLI {  // NOLINT(readability-identifier-naming): the library's
class App;
}

namespace nccl_ha::tools {

/// All of main(); the program's exit status.
int run_command_line(int argc, char** argv);

/// Adds `nccl-ha perf`.  A subcommand's callback runs the whole command; to end the program with a
/// status other than 0 it throws CLI::RuntimeError with that status after printing its own message.
void add_perf(CLI::App& app);

/// Adds `nccl-ha info`.
void add_info(CLI::App& app);

/// Adds `nccl-ha check`.
void add_check(CLI::App& app);

/// Adds `nccl-ha lab`.
void add_lab(CLI::App& app);

/// Adds `nccl-ha relay`.
void add_relay(CLI::App& app);

/// Adds `nccl-ha agent`.
void add_agent(CLI::App& app);

/// Adds `nccl-ha trace`.
void add_trace(CLI::App& app);

/// Adds `nccl-ha stat` and `nccl-ha top`.
void add_stat(CLI::App& app);
void add_top(CLI::App& app);

/// Adds `nccl-ha tune`.
void add_tune(CLI::App& app);

/// Adds `nccl-ha report`.
void add_report(CLI::App& app);

/// Adds `nccl-ha complete`, last: it completes the others.
void add_complete(CLI::App& app);

}  // namespace nccl_ha::tools
