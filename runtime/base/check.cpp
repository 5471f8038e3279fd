#include "runtime/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace nccl_ha {

void check_failed(const char* file, int line, const char* condition, const char* text) noexcept {
  std::fprintf(stderr, "nccl-ha: %s:%d: %s (%s does not hold)\n", file, line, text, condition);
  std::abort();
}

}  // namespace nccl_ha
