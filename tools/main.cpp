// nccl-ha: one executable, one subcommand per job.
#include "tools/commands.h"

int main(int argc, char** argv) { return nccl_ha::tools::run_command_line(argc, argv); }
