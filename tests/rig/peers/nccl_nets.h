// NCCL's own transports as peers to measure against, taken out of an installed libnccl.so.2.
//
// The library exports neither of them, but its full symbol table names the two data objects.  They
// can be used without a GPU; only one call on the way, cudaGetDevice, wants a driver, and it merely
// names a thread.  It is replaced in memory, in this process only: a thing for tests, not for a
// program that is installed.
#pragma once

#include <optional>
#include <string>

#include "runtime/base/result.h"
#include "tools/common/net_library.h"

namespace nccl_ha::rig {

/// For know_nets(): `socket` and `ib`, out of the file that LIBNCCL names or, where it is not set,
/// the first usable one of the loader's path, $CUDA_HOME, $CUDA_PATH and the usual CUDA folders.
/// Refuses releases whose tables are not known and files where the symbols are missing, doubled or
/// of another size.  The library stays loaded.
std::optional<Result<tools::KnownNet>> nccl_nets(const std::string& name);

}  // namespace nccl_ha::rig
