#include "runtime/fabric/verbs/scratch.h"

namespace nccl_ha::fabric::verbs {

Scratch::~Scratch() {
  if (region_.mr != nullptr) {
    device_.remove(region_);
  }
}

Result<void> Scratch::open() {
  memory_.resize(size_t{2} * bytes_max);
  auto region = device_.add(memory_.data(), memory_.size(), MemoryKind::host);
  if (!region) {
    return region.error();
  }
  region_ = *region;
  return {};
}

}  // namespace nccl_ha::fabric::verbs
