// What `nccl-ha perf` measured as pictures and as rows for other programs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/perf/options.h"
#include "tools/perf/report.h"

namespace nccl_ha::tools {

/// Bus bandwidth and time over size, or half round trips over size, of each plugin.
std::string perf_svg(const PerfOptions& options, uint32_t ranks, const std::vector<Row>& rows,
                     const std::vector<PluginInfo>& plugins);
/// A line for each size and plugin, with a line of names first.
std::string perf_csv(const PerfOptions& options, uint32_t ranks, const std::vector<Row>& rows,
                     const std::vector<PluginInfo>& plugins);
/// Writes what --plot and --csv ask for; false, with a message, when it cannot.
bool save_pictures(const PerfOptions& options, uint32_t ranks, const std::vector<Row>& rows,
                   const std::vector<PluginInfo>& plugins);

}  // namespace nccl_ha::tools
