#include "runtime/fabric/verbs/scratch.h"

#include "runtime/fabric/verbs/device.h"

namespace nccl_ha::fabric::verbs {

Scratch::~Scratch() {
  if (region_ != nullptr) {
    static_cast<void>(device_.library().memory.dereg(region_));
  }
}

Result<void> Scratch::open(ibv_pd* domain) {
  memory_ = Pages(size_t{2} * bytes_max);
  auto region = device_.make_region(domain, memory_.data(), memory_.size(), MemoryKind::host);
  if (!region) {
    return region.error();
  }
  region_ = *region;
  return {};
}

}  // namespace nccl_ha::fabric::verbs
