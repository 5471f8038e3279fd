// nha-guests: a command on emulated machines with Soft-RoCE.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdlib>

#include "tests/rig/guests/guests.h"
#include "tests/rig/guests/rdma_check.h"
#include "tools/common/command_line.h"
#include "tools/common/refusal.h"
#include "tools/common/within.h"
#include "tools/lab/run_options.h"
#include "tools/lab/supervisor.h"

namespace nccl_ha::tools::lab {
namespace {

struct GuestLabOptions {
  RunOptions run;
  size_t guests = 0;
  size_t rails = 0;
  bool check = true;
  GuestOptions guest;
};

constexpr Refusal refuse{"nha-guests", status_lab_broken};

void run_guests(GuestLabOptions& options, bool topology_given) {
  if (topology_given && (options.guests > 0 || options.rails > 0)) {
    refuse(fail(Errc::invalid_argument,
                "a topology says how many guests and rails there are; give it, or --guests and "
                "--rails"));
  }
  Topology topology = topology_given
                          ? refuse.need(parse_topology(options.run.topology))
                          : refuse.need(make_rails(options.guests > 0 ? options.guests : 2,
                                                   options.rails > 0 ? options.rails : 2));
  if (topology.hosts.size() > guests_max) {
    refuse(fail(Errc::invalid_argument, fmt::format("a lab of guests has 1 to {} of them, not {}",
                                                    guests_max, topology.hosts.size())));
  }
  swap_cables(topology, options.run, refuse);
  SupervisorOptions supervised = supervisor_options(topology, options.run, refuse);
  // Datagrams may use the management network when all else is gone; for a mesh it is no cable.
  if (getenv("HA_NCCL_IFNAME") == nullptr && getenv("NCCL_MESH_IFNAME") == nullptr) {
    supervised.environment.emplace("NCCL_MESH_IFNAME", "^mgmt,lo");
  }
  put_own_directory_first();
  // Fetching a kernel needs the network that the lab is about to leave.
  options.guest.kernel = refuse.need(prepare_kernel(options.guest.cache));
  options.guest.mtu = options.run.mtu;
  int status = 0;
  {
    Supervisor supervisor(topology,
                          refuse.need(LabDirectory::create(lab_name(options.run, topology))),
                          std::move(supervised));
    Guests guests(topology, supervisor.directory().path(), options.guest);
    RdmaCheck check(topology);
    status = supervisor.run(guests, options.check ? &check : nullptr);
  }
  end_process(status);
}

/// All of main(); the program's exit status.
int run_in_guests(int argc, char** argv) {
  GuestLabOptions options;
  CLI::App app{"Run a command on emulated machines with Soft-RoCE"};
  app.name("nha-guests");
  CLI::Option* topology = app.add_option("--topology", options.run.topology, "Instead of a pair");
  app.add_option("--guests", options.guests, "Machines, 1 to 5 (default 2)");
  app.add_option("--rails", options.rails, "RDMA interfaces of each (default 2)");
  app.add_option("--cpus", options.guest.cpus, "Processors of a guest")
      ->check(within(1, 16, "processors"))
      ->capture_default_str();
  app.add_option("--memory", options.guest.memory_mib, "MiB of a guest")
      ->check(within(256, 65536, "MiB"))
      ->capture_default_str();
  app.add_option("--share", options.guest.shared, "Directory that guests may write to")
      ->check(CLI::ExistingDirectory);
  app.add_option("--cache", options.guest.cache, "Where the kernel is kept")->capture_default_str();
  app.add_flag("!--no-check", options.check, "Do not try the rails with ibv_rc_pingpong first");
  add_run_options(app, options.run);
  app.footer("Topologies:\n" + topologies_help());
  app.callback([&options, topology] { run_guests(options, topology->count() > 0); });
  return run_application(app, argc, argv);
}

}  // namespace
}  // namespace nccl_ha::tools::lab

int main(int argc, char** argv) { return nccl_ha::tools::lab::run_in_guests(argc, argv); }
