// nccl-ha info --routes on hosts of a lab, which find each other over real sockets.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "tests/support/tool_runner.h"

namespace nccl_ha::tests {
namespace {

ToolRun routes_in(const std::string& topology, const std::vector<std::string>& arguments,
                  const std::vector<std::string>& environment = {}) {
  std::vector<std::string> all{"lab", "run", topology, "-q", "--timeout", "60"};
  for (const std::string& one : environment) {
    all.insert(all.end(), {"--env", one});
  }
  all.insert(all.end(), {"--", "nccl-ha", "info", "--routes"});
  all.insert(all.end(), arguments.begin(), arguments.end());
  return run_program(NHA_TOOL_FILE, all);
}

TEST(Routes, ARingIsFoundWithoutConfigurationByAllOfItsHosts) {
  const ToolRun run = routes_in("ring-4", {});
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(count(run.out, "] ring: 4 hosts, found out now"), 4U) << run.out;
}

TEST(Routes, ALineIsNoRing) {
  const ToolRun run = routes_in("line-3", {}, {"HA_NCCL_MESH_TOPOLOGY=ring"});
  EXPECT_NE(run.out.find("line: 3 hosts"), std::string::npos) << run.out << run.err;
  EXPECT_NE(run.out.find("warning: HA_NCCL_MESH_TOPOLOGY expects a ring, but 3 hosts make a line"),
            std::string::npos)
      << run.out;
  EXPECT_NE(run.out.find("in a ring it has two"), std::string::npos) << run.out;
}

TEST(Routes, AWrongPeerIsNamed) {
  const ToolRun wrong = routes_in("pair", {}, {"HA_NCCL_MESH_PEERS=h1"});
  EXPECT_NE(wrong.status, 0);
  EXPECT_NE((wrong.out + wrong.err).find("HA_NCCL_MESH_PEERS=h1: 'h1' is no IP address"),
            std::string::npos)
      << wrong.out << wrong.err;
}

class RoutesOfAFile : public ::testing::Test {
 protected:
  ToolRun run(const std::string& text, const std::vector<std::string>& arguments) {
    std::ofstream(file_) << text;
    std::vector<std::string> all{"info", "--routes"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return run_program(NHA_TOOL_FILE, all, {{"HA_NCCL_MESH_TOPOLOGY_FILE", file_}});
  }
  std::string file_ = testing::TempDir() + "nha_routes_" + std::to_string(getpid());
  ~RoutesOfAFile() override { std::remove(file_.c_str()); }
};

TEST_F(RoutesOfAFile, AWrongLineIsNamed) {
  const ToolRun wrong = run("node a 10.0.0.1\ncable a b\n", {});
  EXPECT_NE(wrong.status, 0);
  EXPECT_NE(wrong.err.find(file_ + ":2: no node 'b' above this line"), std::string::npos)
      << wrong.err;
}

TEST_F(RoutesOfAFile, AFileWithoutThisHostIsRefused) {
  const ToolRun wrong = run("node a 203.0.113.1\nnode b 203.0.113.2\ncable a b\n", {});
  EXPECT_NE(wrong.status, 0);
  EXPECT_NE(wrong.err.find("no node has an address of this host"), std::string::npos) << wrong.err;
}

}  // namespace
}  // namespace nccl_ha::tests
