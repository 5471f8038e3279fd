// nccl-ha info says what the plugin would do on this host, and refuses what the plugin refuses.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "tests/support/temporary_folder.h"
#include "tests/support/tool_runner.h"

namespace nccl_ha::tests {
namespace {

using nlohmann::json;

ToolRun info(const std::vector<std::string>& arguments, const Environment& environment) {
  std::vector<std::string> all{"info"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return run_program(NHA_TOOL_FILE, all, environment);
}

TEST(Info, NamesDeviceFabricAndSettings) {
  const ToolRun run = info({"--json"}, {{"HA_NCCL_IFNAME", "=lo"}, {"HA_NCCL_FABRIC", "datagram"}});
  ASSERT_EQ(run.status, 0) << run.err;
  const json out = json::parse(run.out);
  EXPECT_EQ(out["fabric"], "datagram");
  ASSERT_EQ(out["devices"].size(), 1U);
  EXPECT_EQ(out["devices"][0]["name"], "lo");
  EXPECT_EQ(out["interfaces"][0]["name"], "lo");
  std::set<std::string> origins;
  for (const json& setting : out["settings"]) {
    if (setting["name"] == "HA_NCCL_IFNAME") {
      EXPECT_EQ(setting["value"], "=lo");
      EXPECT_EQ(setting["origin"], "environment");
    }
    origins.insert(setting["origin"]);
  }
  EXPECT_TRUE(origins.contains("default"));
  ASSERT_EQ(out["rdma_notes"].size(), 1U);
  EXPECT_NE(out["rdma_notes"][0].get<std::string>().find("HA_NCCL_FABRIC=datagram"),
            std::string::npos);
}

const char* const lib_folder = NHA_MODULE_DIR;

TEST(Info, FindsThePluginOfItsBuildAndTellsWhatNcclWould) {
  const ToolRun lost = info({"--json"}, {{"LD_LIBRARY_PATH", ""}, {"NCCL_NET_PLUGIN", "ha"}});
  ASSERT_EQ(lost.status, 0) << lost.err;
  json plugin = json::parse(lost.out)["plugin"];
  EXPECT_TRUE(std::filesystem::equivalent(plugin["file"].get<std::string>(), NHA_PLUGIN_FILE));
  EXPECT_EQ(plugin["nccl_file"], "") << "is it installed on this machine?";
  EXPECT_NE(plugin["remedy"].get<std::string>().find(lib_folder), std::string::npos) << plugin;
  const ToolRun found =
      info({"--json"}, {{"LD_LIBRARY_PATH", lib_folder}, {"NCCL_NET_PLUGIN", "ha"}});
  ASSERT_EQ(found.status, 0) << found.err;
  plugin = json::parse(found.out)["plugin"];
  EXPECT_TRUE(std::filesystem::equivalent(plugin["nccl_file"].get<std::string>(), NHA_PLUGIN_FILE));
  EXPECT_EQ(plugin["nccl_origin"], "by LD_LIBRARY_PATH");
  EXPECT_EQ(plugin["remedy"], "");
}

// With `auto` RDMA ports are the devices, or a note says why not.
TEST(Info, TellsRdmaPortsOrWhyTheyAreNotUsed) {
  const auto with_a_nic = [](const char* wanted) {
    const ToolRun run = info({"--json"}, {{"HA_NCCL_FABRIC", "auto"},
                                          {"HA_NCCL_IB_HCA", wanted},
                                          {"LD_LIBRARY_PATH", NHA_MODULE_DIR "/fake_nic"}});
    EXPECT_EQ(run.status, 0) << run.err;
    return json::parse(run.out);
  };
  const json used = with_a_nic("=mlx5_0");
  EXPECT_EQ(used["fabric"], "verbs");
  ASSERT_EQ(used["devices"].size(), 1U) << used;
  EXPECT_EQ(used["devices"][0]["name"], "mlx5_0");
  EXPECT_TRUE(used["devices"][0].contains("link"));
  EXPECT_EQ(used["rdma_notes"], json::array());
  const json left_out = with_a_nic("=mlx5_1");
  EXPECT_EQ(left_out["fabric"], "datagram");
  EXPECT_EQ(left_out["devices"].size(), left_out["interfaces"].size());
  EXPECT_EQ(left_out["rdma_notes"], json::array({"mlx5_0 is left out by HA_NCCL_IB_HCA==mlx5_1"}));
}

TEST(Info, AnHcaThatIsNotThereIsAnErrorUnderVerbs) {
  const ToolRun run =
      info({}, {{"HA_NCCL_FABRIC", "verbs"}, {"HA_NCCL_IB_HCA", "=no_such_device"}});
  EXPECT_NE(run.status, 0);
  EXPECT_NE(run.err.find("HA_NCCL_FABRIC=verbs, but no RDMA port is usable"), std::string::npos)
      << run.err;
}

TEST(Info, SettingsOfNcclsFilesCountAndAreNamed) {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/nccl.conf";
  std::ofstream(file) << "# of the site\nHA_NCCL_IFNAME==lo\nHA_NCCL_RTO_MS=700\nNCCL_NET=Socket\n";
  const ToolRun run = info({"--json"}, {{"NCCL_CONF_FILE", file}, {"HA_NCCL_RTO_MS", "900"}});
  ASSERT_EQ(run.status, 0) << run.err;
  const json out = json::parse(run.out);
  size_t seen = 0;
  for (const json& setting : out["settings"]) {
    if (setting["name"] == "HA_NCCL_IFNAME") {
      ++seen;
      EXPECT_EQ(setting["value"], "=lo");
      EXPECT_EQ(setting["origin"], file);
    } else if (setting["name"] == "HA_NCCL_RTO_MS") {
      ++seen;
      EXPECT_EQ(setting["value"], "900") << "the environment comes first";
      EXPECT_EQ(setting["origin"], "environment");
    }
  }
  EXPECT_EQ(seen, 2U);
  EXPECT_EQ(out["plugin"]["nccl_net"], "Socket");
  EXPECT_EQ(out["nccl_conf"].size(), 2U) << out["nccl_conf"];
  const ToolRun text = info({}, {{"NCCL_CONF_FILE", file}});
  EXPECT_NE(text.out.find("NCCL_NET=Socket: NCCL uses that network"), std::string::npos)
      << text.out;
  EXPECT_NE(text.out.find("NCCL_NET=Socket  " + file), std::string::npos) << text.out;
}

TEST(Info, WrongSettingsAreRefused) {
  for (const auto& [name, value] :
       Environment{{"HA_NCCL_FABRIC", "token-ring"}, {"HA_NCCL_IB_ADDR_RANGE", "1.2.3"}}) {
    const ToolRun run = info({}, {{name, value}});
    EXPECT_NE(run.status, 0) << name;
    EXPECT_NE(run.err.find(name), std::string::npos) << run.err;
  }
}

TEST(Info, ReadableOutputHasAllParts) {
  const ToolRun run = info({}, {{"HA_NCCL_IFNAME", "=lo"}, {"HA_NCCL_IB_DISABLE", "1"}});
  ASSERT_EQ(run.status, 0) << run.err;
  for (const char* part : {"fabric: datagrams over UDP", "0 lo", "HA_NCCL_IB_DISABLE=1 leaves",
                           "socket buffers:", "HA_NCCL_USE_PROGRESS_THREAD"}) {
    EXPECT_NE(run.out.find(part), std::string::npos) << part << " is missing in\n" << run.out;
  }
}

}  // namespace
}  // namespace nccl_ha::tests
