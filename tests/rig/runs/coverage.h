// What simulated runs have seen of the states of lanes (ha/lane_coverage.h).
#pragma once

#include <string>
#include <vector>

namespace nccl_ha::rig {

/// "sender usable failed": pairs of state and event, in the order of the states.
std::vector<std::string> lane_pairs_seen();
/// Those that can be while both ends keep the protocol.
std::vector<std::string> lane_pairs_possible();
/// For people: how many of all, and which.
std::string lane_coverage_text();

}  // namespace nccl_ha::rig
