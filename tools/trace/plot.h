// `nccl-ha trace plot`: throughput of each path over time, with failovers.
#pragma once

#include <cstddef>
#include <string>

#include "tools/trace/timeline.h"

namespace nccl_ha::tools {

/// As SVG, in that many steps of time.
std::string plot_of(const Timeline& timeline, size_t bins);

}  // namespace nccl_ha::tools
