// What a process counts is what it carried; others can read it while it runs and after it was
// killed, and nothing is left of one that ended in good order.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/plugin_fixture.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tool_runner.h"

namespace nccl_ha::test {
namespace {

using nlohmann::json;
using tests::ToolRun;

constexpr size_t message_sizes[] = {0, 8, 4096, 100'000, 1'000'000};
constexpr uint64_t total_bytes = 8 + 4096 + 100'000 + 1'000'000;

class CountersEndToEnd : public PluginFixture {
 protected:
  void SetUp() override {
    setenv("HA_NCCL_COUNTERS_DIR", folder_.c_str(), 1);
    setenv("HA_NCCL_FABRIC", "datagram", 1);
    PluginFixture::SetUp();
  }
  void TearDown() override {
    PluginFixture::TearDown();
    unsetenv("HA_NCCL_COUNTERS_DIR");
    unsetenv("HA_NCCL_FABRIC");
  }
  ToolRun info(pid_t pid, bool as_json) const {
    std::vector<std::string> arguments{"info", "--pid", std::to_string(pid)};
    if (as_json) {
      arguments.emplace_back("--json");
    }
    return tests::run_program(NHA_TOOL_FILE, arguments, {{"HA_NCCL_COUNTERS_DIR", folder_}});
  }
  json file_of(pid_t pid) const {
    const ToolRun run = info(pid, true);
    EXPECT_EQ(run.status, 0) << run.err;
    return run.status == 0 ? json::parse(run.out)["files"][0] : json();
  }
  /// Of all blocks of a scope whose label holds `label`; 0 when there are none.
  static uint64_t sum(const json& file, const std::string& scope, const std::string& counter,
                      const std::string& label = "") {
    uint64_t all = 0;
    for (const json& block : file["blocks"]) {
      if (block["scope"] == scope &&
          block["label"].get<std::string>().find(label) != std::string::npos) {
        all += block["counters"].at(counter).get<uint64_t>();
      }
    }
    return all;
  }
  void carry(const Connection& connection) {
    for (const size_t bytes : message_sizes) {
      exchange(connection, bytes, 3);
    }
  }
  static void expect_traffic(const json& file) {
    EXPECT_EQ(sum(file, "connection", "sends"), std::size(message_sizes));
    EXPECT_EQ(sum(file, "connection", "sends_done"), std::size(message_sizes));
    EXPECT_EQ(sum(file, "connection", "bytes_sent"), total_bytes);
    EXPECT_EQ(sum(file, "connection", "receives"), std::size(message_sizes));
    EXPECT_EQ(sum(file, "connection", "receives_done"), std::size(message_sizes));
    EXPECT_EQ(sum(file, "connection", "bytes_received"), total_bytes);
    EXPECT_EQ(sum(file, "connection", "sends", "send-connection"), std::size(message_sizes));
    EXPECT_EQ(sum(file, "path", "bytes_sent"), total_bytes);
    EXPECT_EQ(sum(file, "path", "bytes_received"), total_bytes);
    EXPECT_EQ(sum(file, "path", "usable"), 2U) << "one at each side";
    EXPECT_EQ(sum(file, "path", "made"), 2U);
    EXPECT_GE(sum(file, "datagram_path", "bytes_sent"), total_bytes);
    EXPECT_EQ(
        sum(file, "datagram_path", "bytes_received"),
        sum(file, "datagram_path", "bytes_direct") + sum(file, "datagram_path", "bytes_copied"));
    EXPECT_GT(sum(file, "datagram_port", "datagrams_sent"), 0U);
    EXPECT_EQ(sum(file, "process", "blocks_refused"), 0U);
    EXPECT_GT(sum(file, "worker", "turns"), sum(file, "worker", "busy_turns"));
    EXPECT_GT(sum(file, "poller", "busy_turns", "datagrams 127.0.0.1:"), 0U);
  }

  /// The listen is gone, and connect() says so, though the door stays open for the others.
  void connect_to_nobody() {
    tools::NetHandle handle{};
    auto listening = api().listen(0, handle);
    ASSERT_TRUE(listening);
    EXPECT_TRUE(api().close_listen(*listening));
    const int fd = connect_tcp(handle_port(handle));
    EXPECT_GE(fd, 0);
    close(fd);
    void* send = nullptr;
    EXPECT_TRUE(until([&] {
      auto got = api().connect(0, handle);
      send = got ? *got : nullptr;
      return !got || send != nullptr;
    }));
    EXPECT_EQ(send, nullptr);
  }
  /// Connections are ready at the listener that nobody accepts.
  void leave_unaccepted() {
    tools::NetHandle handle{};
    auto listening = api().listen(0, handle);
    ASSERT_TRUE(listening);
    const auto receivers = [&] { return blocks(file_of(getpid()), "connection", "receive"); };
    const size_t before = receivers();
    void* send = nullptr;
    ASSERT_TRUE(until([&] {
      auto got = api().connect(0, handle);
      EXPECT_TRUE(got);
      send = got ? *got : nullptr;
      return HasFailure() || (send != nullptr && receivers() > before);
    }));
    EXPECT_TRUE(api().close_listen(*listening));
    EXPECT_TRUE(api().close_send(send));
  }
  static size_t blocks(const json& file, const std::string& scope, const std::string& label) {
    return static_cast<size_t>(std::ranges::count_if(file["blocks"], [&](const json& block) {
      return block["scope"] == scope &&
             block["label"].get<std::string>().find(label) != std::string::npos;
    }));
  }

  tests::TemporaryFolder temporary_{"/dev/shm"};
  const std::string folder_{temporary_.path()};
};

TEST_P(CountersEndToEnd, AgreeWithTheTraffic) {
  Connection connection = open_connection();
  carry(connection);
  const json file = file_of(getpid());
  EXPECT_EQ(file["running"], true);
  expect_traffic(file);
  ASSERT_EQ(file["recorders"].size(), 2U) << "the worker's, and that of the thread that calls";
  EXPECT_GT(file["recorders"][0]["written"], std::size(message_sizes));
  const ToolRun table = info(getpid(), false);
  EXPECT_EQ(table.status, 0) << table.err;
  for (const char* part :
       {"it runs", "worker 0", "send-connection", "path 0 lo", "bytes_sent", "flight recorder:"}) {
    EXPECT_NE(table.out.find(part), std::string::npos) << part << " is missing in\n" << table.out;
  }
}

/// Whatever a connection came to, nothing lives on when its calls are over.
TEST_P(CountersEndToEnd, ActorsAreAsManyAsBeforeOnceAllIsClosed) {
  open_connection();  // stays
  const auto actors = [&] { return sum(file_of(getpid()), "worker", "actors"); };
  uint64_t before = 0;
  ASSERT_TRUE(until([&] { return std::exchange(before, actors()) == actors() && before >= 2; }));
  for (int round = 0; round < 4; ++round) {
    Connection used = open_connection();
    exchange(used, 1000, 5);
    close_connection(used);
    connect_to_nobody();
    leave_unaccepted();
  }
  EXPECT_TRUE(until([&] { return actors() == before; }))
      << actors() << " actors live, of which " << before << " are known";
}

TEST_P(CountersEndToEnd, AreGoneWithTheProcessThatEndsInGoodOrder) {
  Connection connection = open_connection();
  exchange(connection, 100, 1);
  EXPECT_FALSE(std::filesystem::is_empty(folder_));
  unload();
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
  const ToolRun run = info(getpid(), false);
  EXPECT_EQ(run.status, 2);
  EXPECT_NE(run.err.find("keeps no counters in"), std::string::npos) << run.err;
}

TEST_P(CountersEndToEnd, AreLeftByAProcessThatIsKilled) {
  ASSERT_EQ(plugin_threads(), 0U);  // none is lost in the fork
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    const Connection connection = open_connection();
    carry(connection);
    if (write(ready[1], "r", 1) == 1) {
      pause();
    }
    _exit(1);
  }
  close(ready[1]);
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1) << "the child carried nothing";
  close(ready[0]);
  ASSERT_EQ(kill(child, SIGKILL), 0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  const json file = file_of(child);
  EXPECT_EQ(file["running"], false);
  EXPECT_EQ(file["pid"], child);
  expect_traffic(file);
  ASSERT_EQ(file["recorders"].size(), 2U) << "the worker's, and that of the thread that calls";
  size_t posted = 0;
  for (const json& event : file["recorders"][0]["events"]) {
    const bool whole = event["name"] == "chunk_posted" && event["whole"] == 1;
    posted += whole || event["name"] == "transfer_posted" ? 1 : 0;
  }
  // The last ones may have had no time yet (Recorder::note).
  EXPECT_GE(posted, std::size(message_sizes) - 1);
  const ToolRun table = info(child, false);
  EXPECT_NE(table.out.find("it is gone, and these are its last values"), std::string::npos);
}

TEST_P(CountersEndToEnd, AForkThatEndsTakesNothingAway) {
  Connection connection = open_connection();
  exchange(connection, 100, 1);
  const pid_t child = fork();
  if (child == 0) {
    _exit(0);  // with a copy of everything, and without the threads that exit() would wait for
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  exchange(connection, 200, 1);
  EXPECT_EQ(sum(file_of(getpid()), "connection", "bytes_sent"), 300U);
}

INSTANTIATE_TEST_SUITE_P(Abi, CountersEndToEnd,
                         ::testing::Combine(::testing::Values(12), ::testing::Bool()),
                         instance_name);

}  // namespace
}  // namespace nccl_ha::test
