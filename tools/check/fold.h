// Pairs of hosts with one trouble, told of together.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/check/pairs.h"

namespace nccl_ha::tools {

struct PairGroup {
  std::string where;                     ///< as in "h2, rail0 and rail1: all pairs"
  std::vector<const PairResult*> pairs;  ///< at least one
  std::vector<std::string> devices;      ///< names
  /// The host that all of them have in common, of several peers, and whether these are all pairs
  /// that it has on these devices.
  std::optional<uint32_t> host;
  bool all_of_host = false;
};

/// Puts `some` of `all` pairs into as few groups as their hosts and devices allow: a device on
/// which all pairs are among them, a host with its peers, two hosts.  `names` by rank.  Pure.
std::vector<PairGroup> fold(const std::vector<const PairResult*>& some,
                            const std::vector<PairResult>& all,
                            const std::vector<std::string>& names);

/// As in "a, b and c".
std::string listed(const std::vector<std::string>& words, const char* last = " and ");

}  // namespace nccl_ha::tools
