#include "tests/support/mesh_lab.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace nccl_ha::tests {

ToolRun MeshLab::run(const std::string& topology, const std::string& how,
                     const std::string& command) {
  static int labs = 0;
  return run_program(tool_,
                     {"lab", "run", topology, "-q", "--timeout", std::to_string(limit_.count()),
                      "--name", "mesh" + std::to_string(getpid()) + "." + std::to_string(labs++),
                      "--env", "NCCL_MESH_RELAY=" + how, "--env", "HA_NCCL_FABRIC=datagram", "--",
                      "bash", "-c", "exec 2>&1; cd " + folder_.path() + "; " + command},
                     {}, limit_ + std::chrono::seconds(10));
}

ToolRun MeshLab::run_with_nodes(const std::string& topology, const std::string& shape, size_t hosts,
                                const std::string& command) {
  const std::string all = std::to_string(hosts);
  return run(topology, "auto",
             ": > $RANK.log; nccl-ha relay >> $RANK.log & pid=$!; "
             "grep -q 'relay node' <(tail -n +1 -f --pid=$pid $RANK.log) || exit 9; "
             "until nccl-ha info --routes 2>/dev/null | grep -q '" +
                 shape +
                 "'; do kill -0 $pid || exit 9; sleep 0.05; done; touch $RANK.ready; "
                 "until [ $(ls | grep -c ready) = " +
                 all + " ]; do sleep 0.05; done; " + command +
                 "; status=$?; touch $RANK.done; until [ $(ls | grep -c done) = " + all +
                 " ]; do sleep 0.05; done; kill $pid 2>/dev/null; wait $pid; exit $status");
}

void expect_right(const ToolRun& run, size_t operations) {
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(count(run.out, all_bytes_right), operations) << run.out;
}

}  // namespace nccl_ha::tests
