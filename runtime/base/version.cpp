#include "runtime/base/version.h"

#ifndef NHA_VERSION
#define NHA_VERSION "unknown"
#endif

namespace nccl_ha {

const char* version_number() { return NHA_VERSION; }

}  // namespace nccl_ha
