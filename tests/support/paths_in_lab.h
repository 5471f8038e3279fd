// When the job of a lab's two hosts is where a fault is to meet it (`nccl-ha perf --fault`).
#pragma once

#include <regex>
#include <string>

namespace nccl_ha::tests {

/// Shell: makes files in the folder, beside what comes next: `up`, when all paths of a job on both
/// hosts take work, a connection each way with one that stands by; and `back`, when one of them was
/// down since, and all take work again.
inline std::string tell_of_paths(const std::string& folder) {
  return "paths() { nccl-ha stat --prometheus | grep -c \"^nccl_ha_path_usable{.*} $1\\$\"; }; "
         "backs() { nccl-ha stat --prometheus | grep '^nccl_ha_connection_paths_back_total{'; }; "
         "were_down() { now=$(backs); [ $(paths 0) != 0 ] || [ \"${now:-$before}\" != \"$before\" "
         "]; }; await() { until eval \"$1\"; do kill -0 $$ || exit; sleep 0.2; done; }; "
         "all() { await '[ $(paths 1) = 4 ]'; touch " +
         folder + "/$RANK.$1; await \"[ -e " + folder + "/0.$1 ] && [ -e " + folder +
         "/1.$1 ]\"; before=$(backs); touch " + folder +
         "/$1; }; { all up; await were_down; all back; } > /dev/null 2>&1 & ";
}

/// A plan of faults with the files for @up and @back.
inline std::string with_files_of(const std::string& folder, const std::string& plan) {
  return std::regex_replace(plan, std::regex("@(up|back)"), "@" + folder + "/$1");
}

}  // namespace nccl_ha::tests
