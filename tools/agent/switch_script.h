// What a simulated switch says, and when.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ha/flow.h"
#include "runtime/base/instant.h"
#include "runtime/base/result.h"

namespace nccl_ha::tools {

/// From that time on a rail has that level, for one flow or all of them.
struct SwitchStep {
  Duration at{};
  uint8_t rail = 0;
  uint8_t level = 0;
  ha::Flow flow;  ///< family 0: whichever
  bool operator==(const SwitchStep&) const = default;
};

/// Lines, or parts between semicolons: TIME RAIL LEVEL [SOURCE DESTINATION], as in
/// "1.5s sup 200; 3s sup 0 10.0.1.1 10.0.2.1".  Times are seconds (s) or milliseconds (ms); rails
/// sout or 0, sup or 1; levels 0 to 255; # begins a comment.  In the order of their times.
Result<std::vector<SwitchStep>> parse_switch_script(const std::string& text);

}  // namespace nccl_ha::tools
