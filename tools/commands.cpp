#include "tools/commands.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#ifndef NHA_VERSION
#define NHA_VERSION "unknown"
#endif

namespace nccl_ha::tools {

int run_command_line(int argc, char** argv) {
  CLI::App app{"Tools around libnccl-net-ha.so, a highly available network plugin for NCCL"};
  app.name("nccl-ha");
  app.set_version_flag("--version", "nccl-ha " NHA_VERSION);
  app.require_subcommand(1);
  app.footer("`nccl-ha SUBCOMMAND --help` describes one subcommand.");
  add_perf(app);
  add_info(app);
  add_check(app);
  add_lab(app);
  add_relay(app);
  add_agent(app);
  add_sim(app);
  add_trace(app);
  add_stat(app);
  add_top(app);
  add_tune(app);
  add_report(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::RuntimeError& error) {
    // The subcommand has printed what went wrong; only its status is left to pass on.
    return error.get_exit_code();
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "nccl-ha: %s\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace nccl_ha::tools
