// nccl-ha info --routes: hosts, cables and routes as this host knows them.
#pragma once

#include <string>

#include "runtime/base/config.h"

namespace nccl_ha::tools {

struct RoutesOptions {
  double wait_s = 5;  ///< how long neighbours are looked for, at most
  bool as_json = false;
  std::string svg_file;  ///< empty: none
};

/// From the topology file if there is one, else from the relay node of this host, else found out
/// now.  Ends the command where that is not possible.
void show_routes(const Config& config, const RoutesOptions& options);

}  // namespace nccl_ha::tools
