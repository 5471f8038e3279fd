// Pictures of a topology, for terminals and browsers.
#pragma once

#include <string>

#include "relay/topology.h"

namespace nccl_ha::tools {

/// Of the hosts to which cables lead from `self`, which is marked.  Rings and lines are drawn, of
/// others each host's neighbours are listed.
std::string draw_text(const relay::Topology& topology, uint32_t self);

/// A whole SVG document: all hosts that are known, cables with their speeds; those in parallel as
/// one line that says how many.
std::string draw_svg(const relay::Topology& topology, uint32_t self);

}  // namespace nccl_ha::tools
