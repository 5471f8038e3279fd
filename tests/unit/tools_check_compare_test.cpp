// What nccl-ha check makes of what hosts tell of themselves, laid side by side.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "tools/check/compare.h"

namespace nccl_ha::tools {
namespace {

HostSheet sheet(const std::string& name, int number) {
  HostSheet made;
  made.name = name;
  made.machine = name;
  made.version = "1.0.0";
  made.commit = "c";
  made.protocol = 10;
  made.protocol_oldest = 9;
  made.settings = {
      {"HA_NCCL_ENABLE_BACKUP", "1"}, {"HA_NCCL_IFNAME", "x" + name}, {"HA_NCCL_RTO_MS", "1000"}};
  for (int rail = 0; rail < 2; ++rail) {
    made.rails.push_back({"rail" + std::to_string(rail),
                          {"10.0." + std::to_string(rail) + "." + std::to_string(number)},
                          {"10.0." + std::to_string(rail) + ".0/24"},
                          4200,
                          100000,
                          ""});
  }
  return made;
}

std::vector<HostSheet> three_hosts() { return {sheet("a", 1), sheet("b", 2), sheet("c", 3)}; }

/// The findings that a change to three good hosts makes.
std::vector<Finding> found_after(const std::function<void(std::vector<HostSheet>&)>& change) {
  std::vector<HostSheet> sheets = three_hosts();
  change(sheets);
  return compare(sheets, distinct_names(sheets));
}

void expect_one(const std::function<void(std::vector<HostSheet>&)>& change, Level level,
                const std::vector<const char*>& parts) {
  const auto found = found_after(change);
  ASSERT_EQ(found.size(), 1U) << parts.front();
  EXPECT_EQ(found[0].level, level) << found[0].what;
  for (const char* part : parts) {
    EXPECT_NE(found[0].what.find(part), std::string::npos) << part << ": " << found[0].what;
  }
  EXPECT_FALSE(found[0].remedy.empty());
}

TEST(CheckCompare, EqualHostsHaveNothingToSay) {
  EXPECT_TRUE(found_after([](auto&) {}).empty());
  EXPECT_TRUE(compare({}, {}).empty());
}

TEST(CheckCompare, VersionsAndSettings) {
  using Sheets = std::vector<HostSheet>;
  expect_one([](Sheets& s) { s[2].protocol = s[2].protocol_oldest = 8; }, Level::error,
             {"no version of the plugin's protocol", "9 to 10 on a, b", "8 on c"});
  expect_one(
      [](Sheets& s) {
        s[1].protocol = s[1].protocol_oldest = 9;
        s[2].protocol = 11;
        s[2].protocol_oldest = 10;
      },
      Level::error, {"9 to 10 on a", "9 on b", "10 to 11 on c"});
  EXPECT_TRUE(found_after([](Sheets& s) {
                s[2].protocol = 11;
                s[2].protocol_oldest = 10;
              }).empty())
      << "neighbours connect";
  expect_one([](Sheets& s) { s[1].version = "0.9"; }, Level::warning, {"0.9 on b"});
  expect_one([](Sheets& s) { s[1].commit = "d"; }, Level::hint, {"d on b"});
  expect_one([](Sheets& s) { s[1].settings["HA_NCCL_ENABLE_BACKUP"] = "0"; }, Level::warning,
             {"HA_NCCL_ENABLE_BACKUP differs", "0 on b"});
  expect_one([](Sheets& s) { s[0].settings["HA_NCCL_RTO_MS"] = "50"; }, Level::hint,
             {"HA_NCCL_RTO_MS", "50 on a"});
  expect_one([](Sheets& s) { s[0].settings.erase("HA_NCCL_RTO_MS"); }, Level::hint,
             {"HA_NCCL_RTO_MS", "(not known) on a"});
}

TEST(CheckCompare, MeshPortsMatterWhereThereIsAMesh) {
  const auto differ = [](std::vector<HostSheet>& hosts) {
    for (HostSheet& host : hosts) {
      host.settings["HA_NCCL_MESH_PORT"] = "18740";
    }
    hosts[1].settings["HA_NCCL_MESH_PORT"] = "18741";
  };
  expect_one(differ, Level::warning, {"HA_NCCL_MESH_PORT differs"});
  const auto found = found_after([&](std::vector<HostSheet>& hosts) {
    differ(hosts);
    // A line: a and c reach each other over b only.
    hosts[0].rails.pop_back();
    hosts[2].rails.erase(hosts[2].rails.begin());
  });
  EXPECT_TRUE(std::any_of(found.begin(), found.end(), [](const Finding& one) {
    return one.level == Level::error && one.what.find("HA_NCCL_MESH_PORT") != std::string::npos;
  }));
}

TEST(CheckCompare, AddressesAndNetworks) {
  using Sheets = std::vector<HostSheet>;
  expect_one([](Sheets& s) { s[2].rails[1].addresses = {"10.0.1.1"}; }, Level::error,
             {"10.0.1.1", "a (rail1)", "c (rail1)"});
  expect_one([](Sheets& s) { std::swap(s[1].rails[0], s[1].rails[1]); }, Level::error,
             {"rails are crossed", "on b"});
  expect_one(
      [](Sheets& s) {
        s[1].rails[1].addresses = {"10.0.0.99"};
        s[1].rails[1].networks = {"10.0.0.0/24"};
      },
      Level::warning, {"rail0, rail1 of b are both in 10.0.0.0/24"});
  expect_one(
      [](Sheets& s) {
        s[1].rails[1].addresses = {"10.9.0.2"};
        s[1].rails[1].networks = {"10.9.0.0/24"};
      },
      Level::warning, {"rail1 of b is in 10.9.0.0/24, where no other host is"});
  expect_one([](Sheets& s) { s[0].rails[0].mtu = 1500; }, Level::warning,
             {"MTU differs in 10.0.0.0/24", "1500 bytes on a (rail0)"});
  expect_one([](Sheets& s) { s[0].rails[0].speed_mbps = 25000; }, Level::warning,
             {"speed differs", "25000 Mbit/s on a (rail0)"});
}

TEST(CheckCompare, APluginThatIsNotAskedForEverywhere) {
  using Sheets = std::vector<HostSheet>;
  const auto ask = [](Sheets& s) {
    for (HostSheet& one : s) {
      one.plugin_asked = "ha";
      one.asks_for_plugin = true;
    }
  };
  EXPECT_TRUE(found_after(ask).empty());
  expect_one(
      [&](Sheets& s) {
        ask(s);
        s[1].plugin_asked = "";
        s[1].asks_for_plugin = false;
      },
      Level::error, {"NCCL_NET_PLUGIN differs: ha on a, not set on b"});
  EXPECT_TRUE(found_after([&](Sheets& s) {
                ask(s);
                s[1].plugin_asked = "/opt/lib/libnccl-net-ha.so";
              }).empty())
      << "another name for it";
}

TEST(CheckCompare, ARailWithoutItsAddress) {
  const auto lose = [](HostSheet& host, size_t rail) {
    host.rails[rail].mac = "02:00:00:00:00:01";
    host.rails[rail].addresses.clear();
    host.rails[rail].networks.clear();
  };
  expect_one(
      [&](auto& s) { lose(s[1], 1); }, Level::warning,
      {"rail1 of b has only a link-local address", "all other hosts have one in 10.0.1.0/24"});
  std::vector<HostSheet> two{sheet("a", 1), sheet("b", 2)};
  lose(two[1], 0);
  const auto found = compare(two, distinct_names(two));
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].rails.front().host, 1U);
  EXPECT_EQ(found[0].rails.front().rail, "rail0");
  EXPECT_TRUE(found_after([&](auto& s) {
                for (HostSheet& one : s) {
                  lose(one, 1);
                }
              }).empty())
      << "no host has one there";
}

TEST(CheckCompare, ASettingThatLeavesAHostAloneInItsNetworks) {
  const auto only = [](HostSheet& host, size_t rail) {
    host.settings["HA_NCCL_IFNAME"] = "=rail" + std::to_string(rail);
    host.rails = {host.rails[rail]};
  };
  expect_one(
      [&](auto& s) {
        only(s[0], 0);
        only(s[1], 1);
        only(s[2], 0);
      },
      Level::warning,
      {"HA_NCCL_IFNAME differs: =rail0 on a, c; =rail1 on b: no other host is in the networks of "
       "b"});
}

TEST(CheckCompare, ARingOfCablesIsNotCrossed) {
  std::vector<HostSheet> ring{sheet("a", 1), sheet("b", 2), sheet("c", 3), sheet("d", 4)};
  for (int i = 0; i < 4; ++i) {
    for (int side = 0; side < 2; ++side) {
      const int cable = (i + 3 * (1 - side)) % 4;
      RailSheet& rail = ring[static_cast<size_t>(i)].rails[static_cast<size_t>(side)];
      rail.networks = {"10.1." + std::to_string(cable) + ".0/24"};
      rail.addresses = {"10.1." + std::to_string(cable) + "." + std::to_string(i + 1)};
    }
  }
  EXPECT_TRUE(compare(ring, distinct_names(ring)).empty());
}

TEST(CheckCompare, NamesAndClocks) {
  using Sheets = std::vector<HostSheet>;
  expect_one([](Sheets& s) { s[1].clock_s = 90; }, Level::warning, {"clock of b is 90.0 s ahead"});
  expect_one([](Sheets& s) { s[2].name = "a"; }, Level::warning,
             {"ranks 0 and 2", "both called a"});
  std::vector<HostSheet> sheets = three_hosts();
  sheets[2].name = "a";
  EXPECT_EQ(distinct_names(sheets), (std::vector<std::string>{"a#0", "b", "a#2"}));
}

TEST(CheckCompare, SheetsSurviveTheWayThroughJson) {
  const HostSheet one = sheet("a", 1);
  const auto back = sheet_from_json(to_json(one));
  ASSERT_TRUE(back) << back.error().message();
  EXPECT_EQ(to_json(*back), to_json(one));
  EXPECT_FALSE(sheet_from_json(nlohmann::json::parse(R"({"name": 3})")));
  const auto old = sheet_from_json(nlohmann::json::parse(
      R"({"name": "b", "version": "0.9", "commit": "d", "protocol": 8, "rails": [{"name": "r"}],
          "of_later": 1})"));
  ASSERT_TRUE(old) << old.error().message();
  const auto found = compare({one, *old}, {"a", "b"});
  EXPECT_TRUE(std::any_of(found.begin(), found.end(), [](const Finding& f) {
    return f.what.find("no version of the plugin's protocol") != std::string::npos;
  })) << "that another version tells less of itself does not hide that it is another one";
  EXPECT_FALSE(sheet_from_json(nlohmann::json::parse("[]")));
}

}  // namespace
}  // namespace nccl_ha::tools
