// nha-peers: nccl-ha with NCCL's own transports as plugins, `socket` and `ib`, for its perf.
#include "tests/rig/peers/nccl_nets.h"
#include "tools/commands.h"

int main(int argc, char** argv) {
  nccl_ha::tools::know_nets(&nccl_ha::rig::nccl_nets);
  return nccl_ha::tools::run_command_line(argc, argv);
}
