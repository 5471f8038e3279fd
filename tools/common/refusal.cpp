#include "tools/common/refusal.h"

#include <CLI/Error.hpp>
#include <cstdio>

namespace nccl_ha::tools {

void Refusal::operator()(const Error& error) const {
  std::fprintf(stderr, "%s: %s\n", command_, error.message().c_str());
  throw CLI::RuntimeError(status_);
}

}  // namespace nccl_ha::tools
