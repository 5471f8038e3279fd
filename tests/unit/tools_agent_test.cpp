// Parts of nccl-ha agent: settings, scripts, keys, sources of NIC counters, its web server.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/temporary_folder.h"
#include "tools/agent/ask_agent.h"
#include "tools/agent/http_port.h"
#include "tools/agent/keys.h"
#include "tools/agent/nic_sources.h"
#include "tools/agent/service_manager.h"
#include "tools/agent/settings.h"
#include "tools/agent/switch_script.h"

namespace nccl_ha::tools {
namespace {

class AgentPartsTest : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text, mode_t mode = 0600) {
    const std::string path = folder_ + "/" + name;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path) << text;
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    return path;
  }

  tests::TemporaryFolder temporary_;
  const std::string folder_{temporary_.path()};
};

TEST(AgentSettings, AnEmptyFileIsTheDefaults) {
  const auto settings = AgentSettings::parse("");
  ASSERT_TRUE(settings) << settings.error().message();
  EXPECT_EQ(settings->slots, 4096U);
  EXPECT_EQ(settings->page->text(), "127.0.0.1:7470");
  EXPECT_TRUE(settings->page->address.loopback());
  EXPECT_EQ(settings->telemetry->port, 7471);
  EXPECT_FALSE(settings->unauthenticated);
  EXPECT_FALSE(settings->all_counters);
  EXPECT_EQ(settings->allow.size(), 2U);
}

TEST(AgentSettings, AServiceIsForEverybodyAndAPersonsAgentForThatPerson) {
  // Only root can be somebody else.
  const uid_t own = geteuid();
  std::vector<std::pair<uid_t, bool>> expected{{own, own < 1000}};
  if (own == 0) {
    expected = {{0, true}, {999, true}, {1000, false}};
  }
  for (const auto& [user, all] : expected) {
    ASSERT_EQ(seteuid(user), 0);
    const bool all_users = AgentSettings::parse("")->all_users;
    ASSERT_EQ(seteuid(own), 0);
    EXPECT_EQ(all_users, all) << user;
  }
}

TEST(AgentSettings, AllThatIsDocumentedIsRead) {
  const auto settings = AgentSettings::parse(R"({ // a comment
    "directory": "/run/x", "slots": 7, "processes": 8, "connections_per_process": 9,
    "users": [1000], "counters_of_all_users": true,
    "heartbeat_ms": 30, "drain_ms": 1500, "page": "",
    "telemetry": {"listen": "[::1]:5", "allow": ["10.0.0.0/8", "fd00::/16"],
                  "unauthenticated": true,
                  "age_ms": 100},
    "reports": {"to": "10.0.0.1:6", "every_ms": 50},
    "rails": [{"interface": "a"}, {"interface": "b", "speed_mbps": 400000}],
    "policy": {"gain": 2, "floor": 1, "ceiling": 1000,
               "backpressure_on": 200, "backpressure_off": 100,
               "smoothing_ms": 0.5, "speed": 100, "speed_after_turns": 1, "backpressure_hold_ms": 2,
               "backpressure_hold_most_ms": 20, "fresh_ms": 10, "stale_ms": 90}})");
  ASSERT_TRUE(settings) << settings.error().message();
  EXPECT_EQ(settings->directory, "/run/x");
  EXPECT_EQ(settings->slots, 7U);
  EXPECT_EQ(settings->clients, 8U);
  EXPECT_EQ(settings->connections_per_client, 9U);
  EXPECT_FALSE(settings->all_users);
  EXPECT_EQ(settings->users, std::vector<uid_t>{1000});
  EXPECT_TRUE(settings->all_counters);
  EXPECT_EQ(settings->heartbeat, std::chrono::milliseconds(30));
  EXPECT_EQ(settings->drain, std::chrono::milliseconds(1500));
  EXPECT_FALSE(settings->page);
  EXPECT_EQ(settings->telemetry->text(), "[::1]:5");
  EXPECT_EQ(settings->allow.size(), 2U);
  EXPECT_TRUE(settings->unauthenticated);
  EXPECT_EQ(settings->report_to->text(), "10.0.0.1:6");
  EXPECT_EQ(settings->rails[1].interface, "b");
  EXPECT_EQ(settings->rails[1].speed_mbps, 400000);
  EXPECT_EQ(settings->policy.smoothing, std::chrono::microseconds(500));
  EXPECT_EQ(settings->policy.pressure_on, 200);
  EXPECT_EQ(settings->policy.stale_after, std::chrono::milliseconds(90));
}

TEST(AgentSettings, WhatIsWrongIsNamed) {
  for (const auto& [text, part] : std::initializer_list<std::pair<const char*, const char*>>{
           {"{", "no JSON"},
           {"[]", "an object"},
           {R"({"slot": 1})", "slot: there is no such setting"},
           {R"({"slots": 0})", "slots: a number from 1"},
           {R"({"slots": "7"})", "slots: a number"},
           {R"({"page": "localhost:1"})", "page: 'localhost' is no IP address"},
           {R"({"page": "127.0.0.1:70000"})", "page:"},
           {R"({"telemetry": {"allow": ["10.0.0.0/33"]}})", "a prefix of 0..32 bits"},
           {R"({"telemetry": {"keys": 1}})", "telemetry.keys: a text"},
           {R"({"telemetry": 1})", "an object"},
           {R"({"policy": {"floor": 900, "ceiling": 100}})", "floor and ceiling"},
           {R"({"rails": [{}, {}, {}]})", "rails: a list of at most 2"},
           {R"({"rails": [{"name": "x"}]})", "rails.name: there is no such setting"},
           {R"({"slots": 1.5})", "slots: a whole number"},
           {R"({"policy": {"floor": 0.1}})", "policy.floor: a whole number"},
           {R"({"directory": "run/mpib"})", "directory: an absolute path"},
           {R"({"rails": [{"interface": "a"}, {"interface": "a"}]})", "rails: both are a"},
           {R"({"users": [-1]})", "users are numbers"}}) {
    const auto settings = AgentSettings::parse(text);
    ASSERT_FALSE(settings) << text;
    EXPECT_NE(settings.error().what.find(part), std::string::npos) << settings.error().what;
  }
}

TEST_F(AgentPartsTest, AFileThatIsNotThereIsTheDefaultsAndAFolderIsNone) {
  const auto none = AgentSettings::read(folder_ + "/none.json");
  ASSERT_TRUE(none) << none.error().message();
  EXPECT_EQ(none->slots, 4096U);
  const auto folder = AgentSettings::read(folder_);
  ASSERT_FALSE(folder);
  EXPECT_NE(folder.error().what.find("is a folder"), std::string::npos) << folder.error().what;
  const auto some = AgentSettings::read(write("some.json", R"({"slots": 5})"));
  ASSERT_TRUE(some) << some.error().message();
  EXPECT_EQ(some->slots, 5U);
}

TEST(AgentSettings, TheCommandLinesDirectoryStaysWhateverTheFileSays) {
  auto in_force = *AgentSettings::parse(R"({"directory": "/run/x"})");
  EXPECT_EQ(in_force.fixed_differences(*AgentSettings::parse(R"({"directory": "/run/y"})")),
            "directory");
  in_force.directory_given = true;
  for (const char* text : {"", R"({"directory": "/run/y"})"}) {
    auto next = *AgentSettings::parse(text);
    EXPECT_EQ(in_force.fixed_differences(next), "") << text;
    next.keep_fixed(in_force);
    EXPECT_EQ(next.directory, "/run/x");
    EXPECT_TRUE(next.directory_given) << "after the next time, too";
  }
}

TEST_F(AgentPartsTest, AKeysFolderIsMade) {
  const std::string path = folder_ + "/nccl-ha/keys";
  ASSERT_TRUE(TelemetryKeys::make(path));
  EXPECT_TRUE(TelemetryKeys::read(path));
}

TEST_F(AgentPartsTest, KeysSignAndOnlyTheirOwnerReadsThem) {
  const std::string path = folder_ + "/keys";
  ASSERT_TRUE(TelemetryKeys::make(path));
  EXPECT_FALSE(TelemetryKeys::make(path)) << "it is there already";
  const auto keys = TelemetryKeys::read(path);
  ASSERT_TRUE(keys) << keys.error().message();
  EXPECT_EQ(keys->newest(), 1U);
  std::vector<std::byte> datagram(100, std::byte{7});
  keys->sign(1, datagram);
  const auto covered = std::span(std::as_const(datagram)).first(68);
  const auto tag = std::span(std::as_const(datagram)).last(32);
  EXPECT_TRUE(keys->verify(1, covered, tag));
  EXPECT_FALSE(keys->verify(2, covered, tag));
  EXPECT_FALSE(keys->verify(1, covered.first(67), tag));
  EXPECT_FALSE(keys->verify(1, covered, tag.first(31)));
  ASSERT_EQ(chmod(path.c_str(), 0644), 0);
  const auto refused = TelemetryKeys::read(path);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().what.find("chmod 600"), std::string::npos);
}

TEST_F(AgentPartsTest, AKeyFileThatIsWrongIsRefusedWithTheLine) {
  const std::string key(64, 'a');
  EXPECT_TRUE(TelemetryKeys::read(write("k", "# old\n1 " + key + "\n\n7 " + key + " # new\n")));
  EXPECT_EQ(TelemetryKeys::read(write("k", "1 " + key + "\n7 " + key + "\n"))->newest(), 7U);
  for (const std::string& text :
       {"0 " + key, "1 " + key + "a", "1 " + std::string(62, 'a'), "1 " + std::string(64, 'g'),
        "x " + key, std::string("1"), "1 " + key + " more", std::string()}) {
    const auto keys = TelemetryKeys::read(write("k", text + "\n"));
    EXPECT_FALSE(keys) << text;
  }
  EXPECT_NE(TelemetryKeys::read(write("k", "1 " + key + "\n2 x\n")).error().what.find("k:2:"),
            std::string::npos);
}

TEST(AskAgent, WhatAnotherBuildSaysIsShownAsFarAsItIsKnown) {
  using nlohmann::json;
  for (const char* said :
       {"{}", R"({"version": 7, "slots": [], "flows": [{}, 3, {"levels": [1], "share": "x"}]})",
        R"({"telemetry": {"trouble": 1, "age_ms": "no"}, "rails": {"a": {}}, "flows": null})",
        R"({"host": "h1", "flows": [{"source": "10.0.0.1", "share": 300,
            "backpressure": [true, false]}]})"}) {
    testing::internal::CaptureStdout();
    print_agent(json::parse(said));
    const std::string shown = testing::internal::GetCapturedStdout();
    EXPECT_NE(shown.find("agent "), std::string::npos) << said;
    if (std::string(said).find("300") != std::string::npos) {
      EXPECT_NE(shown.find("on h1"), std::string::npos) << shown;
      EXPECT_NE(shown.find("300   1024"), std::string::npos) << shown;
      EXPECT_NE(shown.find("backpressure"), std::string::npos) << shown;
    }
  }
}

TEST(SwitchScript, StepsAreReadInTheOrderOfTheirTimes) {
  const auto steps =
      parse_switch_script("2s sup 200 # later\n500ms sout 7; 0s 1 255 10.0.1.1 fd00::2\n\n");
  ASSERT_TRUE(steps) << steps.error().message();
  ASSERT_EQ(steps->size(), 3U);
  EXPECT_EQ((*steps)[0].rail, 1);
  EXPECT_EQ((*steps)[0].level, 255);
  EXPECT_EQ((*steps)[0].flow.source.family, 4);
  EXPECT_EQ((*steps)[0].flow.destination.family, 6);
  EXPECT_EQ((*steps)[1], (SwitchStep{std::chrono::milliseconds(500), 0, 7, {}}));
  EXPECT_EQ((*steps)[2].at, std::chrono::seconds(2));
  for (const char* wrong : {"", "# nothing", "2 sup 1", "2s up 1", "2s sup 256", "2s sup",
                            "-1s sup 1", "2s sup 1 10.0.0.1", "2s sup 1 a b", "nans sup 1"}) {
    EXPECT_FALSE(parse_switch_script(wrong)) << wrong;
  }
}

TEST(NicSources, DriversNamesAreUnderstood) {
  ha::NicReading reading;
  add_driver_statistics({{"rx_prio3_pause", 5},
                         {"tx_prio3_pause", 7},
                         {"rx_prio3_pause_duration", 1000},
                         {"rx_prio3_pause_transition", 1000},
                         {"rx_global_pause", 1000},
                         {"rx_discards_phy", 2},
                         {"rx_out_of_buffer", 1},
                         {"tx_queue_depth_bytes", 4096},
                         {"rx_packets", 99}},
                        reading);
  EXPECT_EQ(reading.pauses_in, 5U);
  EXPECT_EQ(reading.pauses_out, 7U);
  EXPECT_EQ(reading.discards, 3U);
  EXPECT_EQ(reading.queue_out, 4096U);
  EXPECT_EQ(reading.queue_in, std::nullopt);
}

TEST_F(AgentPartsTest, KernelAndRdmaCountersAddUp) {
  const std::string net = "class/net/nhanic0/";
  write(net + "statistics/tx_bytes", "100\n");
  write(net + "statistics/rx_bytes", "200\n");
  write(net + "statistics/tx_dropped", "3\n");
  const std::string port = net + "device/infiniband/mlx5_7/ports/1/";
  write(port + "counters/port_xmit_data", "10\n");
  write(port + "counters/port_rcv_data", "20\n");
  write(port + "hw_counters/out_of_buffer", "4\n");
  auto sources = nic_sources("nhanic0", folder_);
  ASSERT_EQ(sources.size(), 2U);
  EXPECT_EQ(sources[1]->name(), "rdma mlx5_7");
  ha::NicReading reading;
  for (const auto& source : sources) {
    EXPECT_TRUE(source->add(reading));
  }
  EXPECT_EQ(reading.bytes_out, 140U);
  EXPECT_EQ(reading.bytes_in, 280U);
  EXPECT_EQ(reading.discards, 7U);
  ha::NicReading none;
  EXPECT_FALSE(nic_sources("nhanic9", folder_)[0]->add(none));
}

TEST(HttpPort, HeadersAreFound) {
  const std::string request = "GET / HTTP/1.1\r\nhost:  a:1 \r\nAccept: x\r\n\r\n";
  EXPECT_EQ(http_header(request, "Host"), "a:1");
  EXPECT_EQ(http_header(request, "ACCEPT"), "x");
  EXPECT_EQ(http_header(request, "Cookie"), std::nullopt);
  EXPECT_EQ(http_header("GET", "Host"), std::nullopt);
}

TEST(HttpPort, NamesOfOthersAreNoAddresses) {
  for (const char* good : {"127.0.0.1", "127.0.0.1:80", "[::1]:80", "localhost:1", "LocalHost"}) {
    EXPECT_TRUE(names_an_address(good)) << good;
  }
  for (const char* bad : {"", "evil.example", "127.0.0.1.evil.example", "[evil]", "[::1"}) {
    EXPECT_FALSE(names_an_address(bad)) << bad;
  }
}

TEST(ServiceManager, WithoutASocketNothingIsSaidAndAWrongOneIsAnError) {
  EXPECT_TRUE(ServiceManager("", std::nullopt).ready("x"));
  EXPECT_FALSE(ServiceManager("relative", std::nullopt).alive());
  EXPECT_FALSE(ServiceManager("/nowhere/at/all", std::nullopt).alive());
}

}  // namespace
}  // namespace nccl_ha::tools
