#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "runtime/base/config.h"
#include "runtime/base/setting_rules.h"

namespace nccl_ha {
namespace {

Environment with(std::map<std::string, std::string> variables) {
  return Environment(std::move(variables));
}

TEST(Config, DefaultsAreThoseOfTheTable) {
  auto config = load_config(with({}), nullptr);
  ASSERT_TRUE(config);
  EXPECT_TRUE(config->use_progress_thread);
  EXPECT_EQ(config->progress_threads, 1);
  EXPECT_EQ(config->dgram_tiny, 768);
  for (const SettingView& view : describe(*config)) {
    EXPECT_EQ(view.origin, "default") << view.name;
    EXPECT_EQ(view.value, view.default_value) << view.name;
    EXPECT_FALSE(view.help.empty()) << view.name;
    EXPECT_FALSE(view.topic.empty()) << view.name;
    EXPECT_TRUE(view.name.starts_with("HA_NCCL_")) << view.name;
    EXPECT_TRUE(view.alias.empty() || view.alias.starts_with("NCCL_MESH_") ||
                view.alias.starts_with("MPIB_"))
        << view.alias;
  }
}

TEST(Config, ReadsValuesAndSaysWhereTheyCameFrom) {
  auto config = load_config(with({{"HA_NCCL_USE_PROGRESS_THREAD", "0"},
                                  {"HA_NCCL_PROGRESS_THREADS", "4"},
                                  {"NCCL_SOCKET_IFNAME", "eth"}}),
                            nullptr);
  ASSERT_TRUE(config);
  EXPECT_FALSE(config->use_progress_thread);
  EXPECT_EQ(config->progress_threads, 4);
  EXPECT_EQ(config->ifname, "eth");
  const auto views = describe(*config);
  const auto ifname = std::find_if(views.begin(), views.end(),
                                   [](const auto& v) { return v.name == "HA_NCCL_IFNAME"; });
  EXPECT_EQ(ifname->origin, "environment (NCCL_SOCKET_IFNAME)");
}

/// As sites write NCCL's traffic class.
TEST(Config, NumbersMayBeHexadecimal) {
  for (const char* value : {"0x6A", "0X6a", "106"}) {
    const auto config = load_config(with({{"NCCL_IB_TC", value}}), nullptr);
    ASSERT_TRUE(config) << config.error().message();
    EXPECT_EQ(config->ib_traffic_class, 106) << value;
  }
  for (const char* value : {"0x", "x6A", "6A", "0x6G", "0x1FF"}) {
    EXPECT_FALSE(load_config(with({{"NCCL_IB_TC", value}}), nullptr)) << value;
  }
}

TEST(Config, OursWinsOverNccls) {
  auto config =
      load_config(with({{"HA_NCCL_IFNAME", "ib"}, {"NCCL_SOCKET_IFNAME", "eth"}}), nullptr);
  ASSERT_TRUE(config);
  EXPECT_EQ(config->ifname, "ib");
}

TEST(Config, BadValuesNameVariableValueAndRange) {
  const std::pair<const char*, const char*> bad[] = {
      {"HA_NCCL_PROGRESS_THREADS", "0"},    {"HA_NCCL_PROGRESS_THREADS", "65"},
      {"HA_NCCL_PROGRESS_THREADS", "two"},  {"HA_NCCL_PROGRESS_THREADS", ""},
      {"HA_NCCL_PROGRESS_THREADS", "2 "},   {"HA_NCCL_USE_PROGRESS_THREAD", "yes"},
      {"HA_NCCL_USE_PROGRESS_THREAD", "2"}, {"HA_NCCL_DGRAM_WINDOW", "1000"},
      {"HA_NCCL_DGRAM_MTU", "700"},         {"HA_NCCL_DGRAM_DEAD_MS", "99999999999999999999"},
  };
  for (const auto& [name, value] : bad) {
    auto config = load_config(with({{name, value}}), nullptr);
    ASSERT_FALSE(config) << name << "=" << value;
    EXPECT_EQ(config.code(), Errc::invalid_argument);
    EXPECT_NE(config.error().what.find(std::string(name) + "=" + value), std::string::npos)
        << config.error().what;
  }
  auto config = load_config(with({{"HA_NCCL_PROGRESS_THREADS", "65"}}), nullptr);
  EXPECT_NE(config.error().what.find("1..64"), std::string::npos) << config.error().what;
}

TEST(Config, AnAliasMeansTheSameAndTheNameWins) {
  std::vector<std::string> warnings;
  const std::map<std::string, std::string> old{
      {"MPIB_MODE", "1"}, {"NCCL_MESH_PORT", "18741"}, {"NCCL_MESH_KEY_FILE", "/keys"}};
  auto config = load_config(with(old), &warnings);
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_TRUE(warnings.empty()) << warnings.front();
  EXPECT_EQ(config->mpib_mode, 1);
  EXPECT_EQ(config->mesh_port, 18741);
  EXPECT_EQ(config->mesh_key_file, "/keys");
  EXPECT_EQ(config->origins.at("mesh_port").variable, "NCCL_MESH_PORT");
  std::map<std::string, std::string> both = old;
  both["HA_NCCL_MESH_PORT"] = "18742";
  both["HA_NCCL_MESH_KEY_FILE"] = "";
  config = load_config(with(both), &warnings);
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->mesh_port, 18742);
  EXPECT_EQ(config->mesh_key_file, "") << "the name says that there is none";
  EXPECT_EQ(warnings,
            (std::vector<std::string>{
                "NCCL_MESH_PORT=18741 has no effect, as HA_NCCL_MESH_PORT=18742 is set too",
                "NCCL_MESH_KEY_FILE=/keys has no effect, as HA_NCCL_MESH_KEY_FILE= is set "
                "too"}));
  EXPECT_EQ(config->mpib_mode, 1);
}

TEST(Config, EachAliasIsRead) {
  size_t aliases = 0;
  for (const SettingView& view : describe(Config{})) {
    if (view.alias.empty() || view.range == "text") {
      continue;
    }
    ++aliases;
    const auto config = load_config(with({{view.alias, "x"}}), nullptr);
    ASSERT_FALSE(config) << view.alias;
    EXPECT_TRUE(config.error().what.starts_with(view.alias + "=x: ")) << config.error().what;
  }
  EXPECT_EQ(aliases, 21U);
}

TEST(Config, TheTenThatMatterComeFirst) {
  const std::vector<SettingView> views = describe(Config{});
  std::vector<std::string> topics;
  for (const SettingView& view : views) {
    if (topics.empty() || topics.back() != view.topic) {
      topics.push_back(view.topic);
    }
  }
  EXPECT_EQ(std::count_if(views.begin(), views.end(),
                          [&](const SettingView& view) { return view.topic == topics.front(); }),
            10);
  std::sort(topics.begin(), topics.end());
  EXPECT_EQ(std::adjacent_find(topics.begin(), topics.end()), topics.end());
}

TEST(Config, AnotherNameOfASettingIsKnown) {
  std::vector<std::string> warnings;
  const auto config = load_config(with({{"NCCL_MESH_MAX_RELAY_HOPS", "3"}}), &warnings);
  ASSERT_TRUE(config);
  EXPECT_EQ(config->mesh_max_hops, 3);
  EXPECT_TRUE(warnings.empty()) << warnings.front();
  const auto both = load_config(
      with({{"NCCL_MESH_MAX_RELAY_HOPS", "3"}, {"NCCL_MESH_MAX_HOPS", "2"}}), &warnings);
  ASSERT_TRUE(both);
  EXPECT_EQ(both->mesh_max_hops, 2) << "the documented one wins";
}

TEST(Config, UnknownNamesGetTheNearestOne) {
  std::vector<std::string> warnings;
  auto config = load_config(with({{"HA_NCCL_PROGRES_THREADS", "2"}, {"PATH", "/bin"}}), &warnings);
  ASSERT_TRUE(config);
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("HA_NCCL_PROGRES_THREADS"), std::string::npos);
  EXPECT_NE(warnings[0].find("did you mean HA_NCCL_PROGRESS_THREADS"), std::string::npos);
}

TEST(Config, WhatASiteRanWithBeforeIsDoubtedOnly) {
  const std::pair<std::map<std::string, std::string>, const char*> warned[] = {
      {{{"HA_NCCL_RETRY_BUDGET_MS", "500"}},
       "HA_NCCL_RTO_MS=1000 (the default) must not be longer than HA_NCCL_RETRY_BUDGET_MS=500"},
      {{{"NCCL_SOCKET_IFNAME", "eth0, eth1"}}, "NCCL_SOCKET_IFNAME=eth0, eth1: ' ' cannot be"},
      {{{"NCCL_IB_HCA", "=mlx5_0:1, mlx5_1:1"}}, "NCCL_IB_HCA==mlx5_0:1, mlx5_1:1: ' ' cannot be"},
  };
  for (const auto& [variables, said] : warned) {
    std::vector<std::string> warnings;
    const auto config = load_config(with(variables), &warnings);
    ASSERT_TRUE(config) << config.error().message();
    ASSERT_EQ(warnings.size(), 1U) << said;
    EXPECT_TRUE(warnings[0].starts_with(said)) << warnings[0];
  }
  EXPECT_FALSE(load_config(with({{"NCCL_MESH_IFNAME", "a b"}}), nullptr)) << "it is none of NCCL's";
  EXPECT_FALSE(load_config(with({{"NCCL_SOCKET_IFNAME", "a; b"}}), nullptr)) << "not the blank";
}

TEST(Config, RetriesOfTheNicThatOutlastFailoverAreNamed) {
  EXPECT_FALSE(slow_retries(Config{})) << "the defaults fit";
  auto config = load_config(with({{"NCCL_IB_TIMEOUT", "20"}}), nullptr);
  ASSERT_TRUE(config);
  const auto slow = slow_retries(*config);
  ASSERT_TRUE(slow);
  EXPECT_EQ(slow->what,
            "RDMA NICs retry for 34359 ms or more before they report a dead path "
            "(NCCL_IB_TIMEOUT=20, HA_NCCL_IB_RETRY_CNT=7 (the default)), longer than "
            "HA_NCCL_RTO_MS=1000 (the default) and than HA_NCCL_RETRY_BUDGET_MS=30000 (the "
            "default)");
  EXPECT_TRUE(slow->remedy.starts_with("set HA_NCCL_FORCE_IB_TIMEOUT=14,")) << slow->remedy;
  config->force_ib_timeout = 14;
  EXPECT_FALSE(slow_retries(*config)) << "it wins";
  config->force_ib_timeout = 15;
  EXPECT_EQ(slow_retries(*config)->what.find("BUDGET"), std::string::npos) << "1 s, not 30";
}

struct WrongSetting {
  std::map<std::string, std::string> variables;
  std::vector<const char*> said;
};

TEST(Config, WhatCannotBeReadOrContradictsAnotherSettingIsNamed) {
  const WrongSetting wrong[] = {
      {{{"HA_NCCL_LISTEN_PORTS", "70000"}}, {"HA_NCCL_LISTEN_PORTS=70000", "65535"}},
      {{{"HA_NCCL_LISTEN_PORTS", "5100-5000"}}, {"HA_NCCL_LISTEN_PORTS=5100-5000", "lower one"}},
      {{{"HA_NCCL_LISTEN_PORTS", "5000-"}}, {"HA_NCCL_LISTEN_PORTS=5000-"}},
      {{{"HA_NCCL_LISTEN_PORTS", ""}}, {"HA_NCCL_LISTEN_PORTS="}},
      {{{"HA_NCCL_LISTEN_PORTS", "0-9"}}, {"HA_NCCL_LISTEN_PORTS=0-9"}},
      {{{"HA_NCCL_PROGRESS_CPUS", "0-2147483647"}},
       {"HA_NCCL_PROGRESS_CPUS=0-2147483647", "0-3,8"}},
      {{{"HA_NCCL_PROGRESS_CPUS", "3-1"}}, {"HA_NCCL_PROGRESS_CPUS=3-1"}},
      {{{"HA_NCCL_PROGRESS_CPUS", "0,"}}, {"HA_NCCL_PROGRESS_CPUS=0,"}},
      {{{"HA_NCCL_DGRAM_RTO_MIN_US", "900000"}, {"HA_NCCL_DGRAM_RTO_MAX_MS", "500"}},
       {"HA_NCCL_DGRAM_RTO_MIN_US=900000", "HA_NCCL_DGRAM_RTO_MAX_MS=500"}},
      {{{"HA_NCCL_DGRAM_RTO_MAX_MS", "50"}},
       {"HA_NCCL_DGRAM_RTO_INIT_MS=100 (the default)", "HA_NCCL_DGRAM_RTO_MAX_MS=50"}},
      {{{"HA_NCCL_RTO_MS", "5000"}, {"HA_NCCL_RETRY_BUDGET_MS", "2000"}},
       {"HA_NCCL_RTO_MS=5000", "HA_NCCL_RETRY_BUDGET_MS=2000"}},
      {{{"NCCL_MESH_DEAD_MS", "999"}},
       {"NCCL_MESH_DEAD_MS=999", "twice", "NCCL_MESH_HELLO_MS=500 (the default)"}},
      {{{"HA_NCCL_FABRIC", "rdma"}}, {"HA_NCCL_FABRIC=rdma", "auto, verbs, ud or datagram"}},
      {{{"NCCL_MESH_RELAY", "on"}}, {"NCCL_MESH_RELAY=on", "auto, inline or off"}},
      {{{"NCCL_MESH_TOPOLOGY", "torus"}}, {"NCCL_MESH_TOPOLOGY=torus", "ring"}},
      {{{"NCCL_MESH_PEERS", "10.0.0.1,host"}}, {"NCCL_MESH_PEERS=10.0.0.1,host", "'host'"}},
      {{{"NCCL_MESH_PAGE", "7473"}}, {"NCCL_MESH_PAGE=7473", "127.0.0.1:7473"}},
      {{{"NCCL_MESH_PAGE", "127.0.0.1:99999"}}, {"NCCL_MESH_PAGE=127.0.0.1:99999"}},
      {{{"HA_NCCL_DGRAM_FAULTS", "drop=2"}}, {"HA_NCCL_DGRAM_FAULTS=drop=2", "probability"}},
      {{{"HA_NCCL_IB_ADDR_RANGE", "10.0.0.0/40"}}, {"HA_NCCL_IB_ADDR_RANGE=10.0.0.0/40", "0..32"}},
      {{{"HA_NCCL_IB_ADDR_FAMILY", "AF_IB"}},
       {"HA_NCCL_IB_ADDR_FAMILY=AF_IB", "AF_INET or AF_INET6"}},
      {{{"HA_NCCL_IB_HCA", "mlx5_0:x"}}, {"HA_NCCL_IB_HCA=mlx5_0:x", "1 to 255"}},
      {{{"HA_NCCL_IFNAME", "eth0 eth1"}}, {"HA_NCCL_IFNAME=eth0 eth1", "commas"}},
      {{{"HA_NCCL_IFNAME", "^"}}, {"HA_NCCL_IFNAME=^", "name"}},
      {{{"HA_NCCL_COUNTERS_DIR", "shm"}}, {"HA_NCCL_COUNTERS_DIR=shm", "from / on"}},
      {{{"MPIB_HCA_SUP", "mlx5_1"}}, {"MPIB_HCA_SUP=mlx5_1", "only one"}},
      {{{"MPIB_HCA_SUP", "a"}, {"MPIB_HCA_SOUT", "a"}}, {"MPIB_HCA_SUP=a", "two"}},
      {{{"HA_NCCL_RTO_MS", "1"}}, {"HA_NCCL_RTO_MS=1", "50..600000 ms"}},
  };
  for (const WrongSetting& one : wrong) {
    auto config = load_config(Environment(one.variables), nullptr);
    ASSERT_FALSE(config) << one.said.front();
    EXPECT_EQ(config.code(), Errc::invalid_argument);
    for (const char* part : one.said) {
      EXPECT_NE(config.error().what.find(part), std::string::npos)
          << part << ": " << config.error().what;
    }
  }
}

TEST(Config, SeveralMistakesAreSaidAtOnce) {
  auto config = load_config(
      with({{"HA_NCCL_PROGRESS_THREADS", "0"}, {"HA_NCCL_LISTEN_PORTS", "99999"}}), nullptr);
  ASSERT_FALSE(config);
  for (const char* part : {"HA_NCCL_PROGRESS_THREADS=0", "HA_NCCL_LISTEN_PORTS=99999"}) {
    EXPECT_NE(config.error().what.find(part), std::string::npos) << config.error().what;
  }
}

TEST(Config, TheNameThatWasSetIsBlamed) {
  const std::pair<const char*, const char*> bad[] = {{"NCCL_SOCKET_FAMILY", "AF_INET7"},
                                                     {"NCCL_IB_ADDR_RANGE", "ten"},
                                                     {"NCCL_IB_TIMEOUT", "99"},
                                                     {"NCCL_SOCKET_IFNAME", "eth0;eth1"}};
  for (const auto& [name, value] : bad) {
    auto config = load_config(with({{name, value}}), nullptr);
    ASSERT_FALSE(config) << name;
    EXPECT_TRUE(config.error().what.starts_with(std::string(name) + "=" + value))
        << config.error().what;
  }
  EXPECT_TRUE(load_config(with({{"NCCL_IB_TIMEOUT", ""}}), nullptr)) << "NCCL takes it for none";
}

TEST(Config, NamesThatLookLikeOursAreWarnedAbout) {
  const std::pair<const char*, const char*> near[] = {
      {"NCCL_HA_RTO_MS", "HA_NCCL_RTO_MS"},
      {"HA_NCL_RTO_MS", "HA_NCCL_RTO_MS"},
      {"ha_nccl_rto_ms", "HA_NCCL_RTO_MS"},
      {"Ha_Nccl_Fabric", "HA_NCCL_FABRIC"},
      {"HANCCL_IFNAME", "HA_NCCL_IFNAME"},
      {"nccl_mesh_port", "HA_NCCL_MESH_PORT"},
      {"NCCL_MESH_PORTS", "HA_NCCL_MESH_PORT"},
      {"mpib_mode", "HA_NCCL_RAIL_MODE"},
      {"ha_nccl_mesh_ifname", "HA_NCCL_MESH_IFNAME"},
      {"HA_NCCL_BACKUP", "HA_NCCL_ENABLE_BACKUP"},
      {"HA_NNCL_HEARTBEAT_MS", "HA_NCCL_HEARTBEAT_MS"},
      {"H_NCCL_RETRY_BUDGET_MS", "HA_NCCL_RETRY_BUDGET_MS"}};
  for (const auto& [name, meant] : near) {
    std::vector<std::string> warnings;
    ASSERT_TRUE(load_config(with({{name, "1"}}), &warnings)) << name;
    ASSERT_EQ(warnings.size(), 1U) << name;
    EXPECT_NE(warnings[0].find(name), std::string::npos) << warnings[0];
    EXPECT_NE(warnings[0].find(std::string("did you mean ") + meant + "?"), std::string::npos)
        << warnings[0];
  }
  for (const char* others : {"NCCL_DEBUG", "NCCL_IB_HCA", "NCCL_IB_TIMEOUT", "NCCL_SOCKET_NTHREADS",
                             "MPI_HOME", "MPIR_CVAR_X", "PATH", "HA", "nccl",
                             "NCCL_IB_ADAPTIVE_ROUTING", "NHA_LAB", "HADOOP_HOME"}) {
    std::vector<std::string> warnings;
    static_cast<void>(load_config(with({{others, "1"}}), &warnings));
    EXPECT_TRUE(warnings.empty()) << warnings.front();
  }
}

/// A file of the sources as text; none is an empty one.
std::string source_text(const std::string& name) {
  std::ifstream in(std::string(NHA_SOURCE_DIR "/") + name);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST(Config, TheDocumentedTableIsTheTable) {
  EXPECT_EQ(source_text("docs/configuration.md"), configuration_markdown())
      << "make docs/configuration.md with nccl-ha info --markdown";
}

TEST(Config, TheManualPageIsTheTable) {
  EXPECT_EQ(source_text("tools/man/nccl-ha.7"), configuration_man_page())
      << "make tools/man/nccl-ha.7 with nccl-ha info --man";
}

}  // namespace
}  // namespace nccl_ha
