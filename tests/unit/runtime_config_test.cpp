#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "runtime/base/config.h"

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
    EXPECT_TRUE(view.name.starts_with("HA_NCCL_") || view.name.starts_with("NCCL_MESH_") ||
                view.name.starts_with("MPIB_"))
        << view.name;
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

TEST(Config, TheDocumentedTableIsTheTable) {
  std::ifstream in(NHA_SOURCE_DIR "/docs/configuration.md");
  ASSERT_TRUE(in) << "docs/configuration.md is missing; make it with nccl-ha info --markdown";
  std::stringstream text;
  text << in.rdbuf();
  EXPECT_EQ(text.str(), configuration_markdown())
      << "docs/configuration.md is out of date; make it with nccl-ha info --markdown";
}

}  // namespace
}  // namespace nccl_ha
