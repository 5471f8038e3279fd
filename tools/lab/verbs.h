// The requests as subcommands; the command line and scripts have the same grammar.
#pragma once

#include "tools/lab/request.h"

namespace CLI {
class App;
}

namespace nccl_ha::tools::lab {

/// Adds one subcommand for each verb that changes a lab; a parse fills `request`.
void add_verbs(CLI::App& app, Request& request);

}  // namespace nccl_ha::tools::lab
