// Cables that lead to the wrong rail, as pairs of hosts show them.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tools/check/pairs.h"

namespace nccl_ha::tools {
namespace {

/// All of them, a line each.
std::string lines_of(const std::vector<Finding>& findings) {
  std::string all;
  for (const Finding& finding : findings) {
    all += finding.what + "\n";
  }
  return all;
}

TEST(CheckPairs, AHostThatAllItsRailsLoseMayHaveSwappedCables) {
  std::vector<PairResult> pairs;
  for (const auto& [from, to] : {std::pair(0U, 1U), std::pair(0U, 2U), std::pair(1U, 2U)}) {
    for (const int device : {0, 1}) {
      PairResult pair;
      pair.from = from;
      pair.to = to;
      pair.device = device;
      pair.device_name = device == 0 ? "rail0" : "rail1";
      pair.gigabytes_per_s = 1;
      pair.error = to == 2 ? "no route" : "";
      pairs.push_back(pair);
    }
  }
  const std::vector<std::string> hosts{"a", "b", "c"};
  const std::string said = lines_of(judge(pairs, hosts));
  EXPECT_NE(said.find("c is reached by nobody on rail0 and rail1"), std::string::npos) << said;
  pairs[5].error.clear();  // b and c on rail1
  EXPECT_EQ(lines_of(judge(pairs, hosts)).find("swapped"), std::string::npos) << "one rail: no";
  for (PairResult& pair : pairs) {
    pair.error = "no route";
  }
  EXPECT_EQ(lines_of(judge(pairs, hosts)).find("swapped"), std::string::npos)
      << "nobody reaches anybody: something else is wrong";
}

}  // namespace
}  // namespace nccl_ha::tools
