#include "runtime/base/version.h"

namespace nccl_ha {

// For what is only linked to be tested.  The plugin and nccl-ha bring a function of their own
// (cmake/NhaVersion.cmake), so that a new commit compiles and links these two only.
const char* version_commit() { return "unknown"; }

}  // namespace nccl_ha
