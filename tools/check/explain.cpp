#include "tools/check/explain.h"

#include <fmt/format.h>

#include <algorithm>

namespace nccl_ha::tools {
namespace {

bool is_at(const RailAt& rail, uint32_t host, const PairResult& pair,
           const std::vector<HostDevices>& devices) {
  if (rail.host != host) {
    return false;
  }
  const auto number = static_cast<size_t>(pair.device);
  return rail.rail.empty() ||
         (number < devices[host].names.size() && (devices[host].names[number] == rail.rail ||
                                                  devices[host].interfaces[number] == rail.rail));
}

}  // namespace

void explain(std::vector<PairResult>& pairs, const std::vector<HostDevices>& devices,
             const std::vector<Finding*>& findings) {
  for (Finding* finding : findings) {
    size_t failed = 0;
    for (PairResult& pair : pairs) {
      const bool is_cause =
          (!pair.error.empty() || !pair.warnings.empty()) && !pair.explained &&
          std::any_of(finding->rails.begin(), finding->rails.end(), [&](const RailAt& rail) {
            return is_at(rail, pair.from, pair, devices) || is_at(rail, pair.to, pair, devices);
          });
      pair.explained |= is_cause;
      failed += is_cause && !pair.error.empty() ? 1 : 0;
    }
    if (failed > 0) {
      finding->level = Level::error;
      finding->what +=
          fmt::format("; {} of hosts {}", counted(failed, "pair"), failed == 1 ? "fails" : "fail");
    }
  }
}

}  // namespace nccl_ha::tools
