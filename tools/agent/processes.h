// What the processes of this host count, for `nccl-ha top` on another one.
#pragma once

#include <string>

namespace nccl_ha::tools {

/// Counters without flight recorders of all processes that run and whose files may be read, of
/// every user if this is root: a bundle of dumps (tools/trace/sources.h).  What cannot be read is
/// left out. Takes some milliseconds where there are many.
std::string counters_of_processes(const std::string& counters_dir);

}  // namespace nccl_ha::tools
