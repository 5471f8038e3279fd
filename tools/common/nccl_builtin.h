// NCCL's own transports as peers to measure against, taken out of an installed libnccl.so.2.
//
// The library exports neither of them, but its full symbol table names the two data objects.  They
// can be used without a GPU; only one call on the way, cudaGetDevice, wants a driver, and it merely
// names a thread.  It is replaced in memory, in this process only.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace nccl_ha::tools {

/// A transport inside libnccl, ready for NetApi::make.
struct BuiltinNet {
  const void* table = nullptr;
  int abi = 0;
  std::string file;
};

/// Whether `name` is one of `socket` and `ib`.
bool is_builtin_net(const std::string& name);

/// Loads libnccl (from `libnccl`, or the first usable of libnccl_candidates()) and finds the
/// transport.  Refuses releases whose tables are not known and files where the symbols are missing,
/// doubled or of another size.  The library stays loaded.
Result<BuiltinNet> open_builtin_net(const std::string& name, const std::string& libnccl);

/// Where libnccl.so.2 is looked for, in order: the loader's search path (a bare name), $CUDA_HOME
/// and $CUDA_PATH, the usual CUDA folders.
std::vector<std::string> libnccl_candidates();

}  // namespace nccl_ha::tools
