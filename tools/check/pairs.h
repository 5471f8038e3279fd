// Tries the network between hosts with the plugin itself: connections on every device, small and
// large messages each way.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/check/findings.h"
#include "tools/common/bootstrap.h"
#include "tools/common/net_library.h"

namespace nccl_ha::tools {

/// Who meets whom when everybody meets everybody: by round, the partner of `rank`, or none.  All
/// ranks compute the same (the circle method).  Pure.
std::vector<std::optional<uint32_t>> meetings(uint32_t rank, uint32_t ranks);

/// What one rank found out about a device towards one peer.
struct PairResult {
  uint32_t from = 0;
  uint32_t to = 0;
  int device = 0;
  uint32_t seen_by = 0;  ///< of both ranks the one that tells this
  std::string device_name;
  std::string error;                  ///< empty: it works
  std::vector<std::string> warnings;  ///< the plugin's
  double round_trip_us = 0;           ///< median of small messages
  double gigabytes_per_s = 0;         ///< median of large messages, both directions at once
};
nlohmann::json to_json(const PairResult& result);
Result<PairResult> pair_from_json(const nlohmann::json& from);

/// A device, and the setting that leaves the plugin no other: on its own it would find its way to
/// the peer over another one, and hide what is wrong with this.
struct CheckedDevice {
  std::string name;
  std::string variable;
  std::string value;
};
/// The devices that the plugin would use on this host.
Result<std::vector<CheckedDevice>> checked_devices(const HostFacts& facts);

/// Meets every other rank on every device, each time for at most `patience`.  All ranks call it
/// together; each gets the results of its own meetings.  Changes the environment while it runs.  An
/// error only where the ranks lose each other or the plugin cannot be used.
Result<std::vector<PairResult>> try_pairs(World& world, const std::string& plugin,
                                          const std::vector<CheckedDevice>& devices,
                                          Duration patience);

/// Whether rank 0 needs it: the numbers of the lower rank are enough, errors and warnings count of
/// both.  Pure.
bool is_worth_telling(const PairResult& result, uint32_t rank);

/// One result for each pair and device out of what both sides saw: an error counts whoever had it,
/// and two that differ are told with their hosts.  `hosts` by rank.  Pure.
std::vector<PairResult> merge(const std::vector<PairResult>& seen,
                              const std::vector<std::string>& hosts);

/// What is wrong with the network; `hosts` by rank.  Pure.
std::vector<Finding> judge(const std::vector<PairResult>& pairs,
                           const std::vector<std::string>& hosts);

/// Hosts that have fewer devices than others; both by rank.  Pure.
std::vector<Finding> judge_device_counts(const std::vector<size_t>& counts,
                                         const std::vector<std::string>& hosts);

}  // namespace nccl_ha::tools
