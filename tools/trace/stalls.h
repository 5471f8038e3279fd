// When a connection had work and did not get on, and why.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/trace/messages.h"
#include "tools/trace/timeline.h"

namespace nccl_ha::tools {

struct TraceStall {
  int32_t connection = -1;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  std::string cause;
};

/// Of at least `least_ns` without an acknowledgement while chunks were under way; the longest come
/// first.
std::vector<TraceStall> stalls_of(const Timeline& timeline, int64_t least_ns);

}  // namespace nccl_ha::tools
