// What the flight recorders of a job tell while it runs and after it was killed, through nccl-ha.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/agent_process.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tool_runner.h"

namespace nccl_ha::tests {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class TraceOfAJob : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("HA_NCCL_COUNTERS_DIR", folder_.path().c_str(), 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    job_ = fork();
    ASSERT_GE(job_, 0);
    if (job_ == 0) {
      setpgid(0, 0);
      const int nowhere = open_nowhere();
      dup2(nowhere, STDOUT_FILENO);
      dup2(nowhere, STDERR_FILENO);
      execl(NHA_TOOL_FILE, NHA_TOOL_FILE, "perf", "all_reduce", "--ranks", "2", "-b", "1M", "-e",
            "1M", "-I", "1000000", "-c", "0", "--plugin", NHA_PLUGIN_FILE, nullptr);
      _exit(127);
    }
    setpgid(job_, job_);
  }
  void TearDown() override {
    end_job();
    unsetenv("HA_NCCL_COUNTERS_DIR");
    unsetenv("NCCL_SOCKET_IFNAME");
  }

  static int open_nowhere() { return fileno(std::fopen("/dev/null", "w")); }
  void end_job() {
    if (job_ > 0) {
      kill(-job_, SIGKILL);
      waitpid(job_, nullptr, 0);
      job_ = 0;
    }
  }
  static ToolRun tool(std::vector<std::string> arguments) {
    return run_program(NHA_TOOL_FILE, arguments);
  }
  std::vector<std::string> files(const std::string& ending) const {
    std::vector<std::string> all;
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      if (entry.path().string().ends_with(ending)) {
        all.push_back(entry.path().string());
      }
    }
    return all;
  }
  /// Rows of connections over which data goes, once there are as many as two ranks have.
  json busy_connections() const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (std::chrono::steady_clock::now() < deadline) {
      const ToolRun stat = tool({"stat", "--json", "--interval", "0.1"});
      const json all = json::parse(stat.out, nullptr, false);
      json busy = json::array();
      for (const json& row : stat.status == 0 ? all["rows"] : json::array()) {
        if (row["kind"] == "connection" && row["bytes_sent"] > 10'000'000) {
          busy.push_back(row);
        }
      }
      if (busy.size() >= 2) {
        return busy;
      }
    }
    return json::array();
  }

  TemporaryFolder folder_{"/dev/shm"};
  pid_t job_ = 0;
};

TEST_F(TraceOfAJob, IsTheSameLiveDumpedAndAfterAKill) {
  const json busy = busy_connections();
  ASSERT_GE(busy.size(), 2U) << "two ranks send to each other";
  const auto pid = std::to_string(busy[0]["pid"].get<int>());

  const ToolRun prometheus = tool({"stat", "--prometheus"});
  EXPECT_NE(prometheus.out.find("nccl_ha_connection_bytes_sent_total{"), std::string::npos);
  const std::string textfile = folder_.path() + "/nccl-ha.prom";
  EXPECT_EQ(tool({"stat", "--textfile", textfile}).status, 0);
  std::stringstream totals;
  totals << std::ifstream(textfile).rdbuf();
  EXPECT_NE(totals.str().find("nccl_ha_connection_bytes_sent_total{host="), std::string::npos);
  EXPECT_EQ(totals.str().find("pid"), std::string::npos) << totals.str();
  EXPECT_TRUE(fs::exists(textfile + ".state"));
  const ToolRun top = tool({"top", "--count", "2", "--interval", "0.1", "--sort", "rate"});
  EXPECT_EQ(count(top.out, "nccl-ha top:"), 2U) << top.out;

  // Of the running process, by its number and among all.
  for (const std::vector<std::string>& from : {std::vector{pid}, std::vector<std::string>{}}) {
    std::vector<std::string> words{"trace", "waiting", "--json"};
    words.insert(words.end(), from.begin(), from.end());
    const ToolRun waiting = tool(words);
    EXPECT_EQ(waiting.status, 0) << waiting.err;
    const json open = json::parse(waiting.out, nullptr, false);
    ASSERT_FALSE(open.is_discarded()) << waiting.out;
    EXPECT_EQ(open["command"], "trace waiting");
    EXPECT_TRUE(open["waiting"].is_array()) << waiting.out;
  }

  // A signal makes a dump, and the process goes on.
  kill(std::stoi(pid), SIGUSR2);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (files(".trace").empty() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  ASSERT_EQ(files(".trace").size(), 1U);
  const ToolRun dumped = tool({"trace", "summary", files(".trace").front()});
  EXPECT_EQ(dumped.status, 0) << dumped.err;
  EXPECT_NE(dumped.out.find("dumped as SIGUSR2"), std::string::npos) << dumped.out;

  std::vector<std::string> all = files(".counters");
  const std::string merged = folder_.path() + "/merged";
  std::vector<std::string> merge{"trace", "merge", "-o", merged};
  merge.insert(merge.end(), all.begin(), all.end());
  EXPECT_EQ(tool(merge).status, 0);
  const ToolRun critical = tool({"trace", "critical", merged, "--json"});
  const json way = json::parse(critical.out, nullptr, false);
  ASSERT_FALSE(way.is_discarded()) << critical.out << critical.err;
  EXPECT_GT(way["steps"], 10) << critical.out;
  EXPECT_EQ(way["command"], "trace critical");
  const ToolRun exported = tool({"trace", "export", merged, "-o", merged + ".pftrace"});
  EXPECT_EQ(exported.status, 0) << exported.err;
  EXPECT_GT(fs::file_size(merged + ".pftrace"), 10'000U);
  // Somebody else's reader of the encoding, with the field numbers of the published schema.
  const ToolRun read =
      run_program("/usr/bin/env", {"python3", NHA_SOURCE_DIR "/tools/dev/read_track_events.py",
                                   merged + ".pftrace", "-o", merged + ".picture.svg"});
  EXPECT_EQ(read.status, 0) << read.out << read.err;
  EXPECT_GT(fs::file_size(merged + ".picture.svg"), 1000U);
  EXPECT_EQ(tool({"trace", "plot", merged, "-o", merged + ".svg"}).status, 0);

  end_job();  // SIGKILL, in the middle of all_reduce
  const ToolRun last = tool({"trace", "show", pid, "--last", "200"});
  EXPECT_EQ(last.status, 0) << last.err;
  EXPECT_GT(count(last.out, "chunk_posted") + count(last.out, "chunk_arrived"), 10U) << last.out;
  const ToolRun summary = tool({"trace", "summary", pid, "--json"});
  const json told = json::parse(summary.out, nullptr, false);
  ASSERT_FALSE(told.is_discarded()) << summary.err;
  EXPECT_FALSE(told["latencies"].empty());
  EXPECT_EQ(told["command"], "trace summary");

  // What is read is never written over, and what nobody has is said.
  const std::string dump = files(".trace").front();
  const auto size = fs::file_size(dump);
  for (const std::string verb : {"plot", "export", "merge", "dump"}) {
    const ToolRun over = tool({"trace", verb, dump, "-o", dump});
    EXPECT_EQ(over.status, 2) << verb;
    EXPECT_NE(over.err.find("that is what is read"), std::string::npos) << verb << over.err;
  }
  EXPECT_EQ(fs::file_size(dump), size);
  const ToolRun misspelt = tool({"trace", "show", dump, "--event", "chunk_postd"});
  EXPECT_EQ(misspelt.status, 2);
  EXPECT_NE(misspelt.err.find("chunk_posted"), std::string::npos) << misspelt.err;
  const ToolRun nothing = tool({"trace", "show", dump, "--connection", "to nowhere"});
  EXPECT_EQ(nothing.status, 0);
  EXPECT_EQ(nothing.out, "");
  EXPECT_NE(nothing.err.find("passes the filters"), std::string::npos) << nothing.err;

  // NCCL's thread has its own recorder, which says when it asked and when it noticed.
  EXPECT_GT(count(last.out, "caller "), 10U) << last.out;
  ASSERT_FALSE(told["calls"].empty());
  for (const json& row : told["calls"]) {
    EXPECT_GT(row["queued"]["count"], 100) << row;
    EXPECT_GT(row["unnoticed"]["count"], 100) << row;
    EXPECT_LT(row["queued"]["p50_ns"], 1'000'000'000) << row;
  }

  // Of a dump that was cut, what is there.
  const std::string cut = merged + ".cut";
  fs::copy_file(files(".trace").front(), cut);
  fs::resize_file(cut, fs::file_size(cut) * 3 / 4);
  const ToolRun rest = tool({"trace", "show", cut, "--last", "5"});
  EXPECT_EQ(rest.status, 0) << rest.err;
  EXPECT_NE(rest.err.find("the rest is read"), std::string::npos) << rest.err;
  std::ofstream(cut) << "not a dump";
  const ToolRun refused = tool({"trace", "show", cut});
  EXPECT_EQ(refused.status, 2);
  EXPECT_NE(refused.err.find("holds no counters of nccl-ha"), std::string::npos) << refused.err;
}

TEST_F(TraceOfAJob, IsTheSameThroughTheAgentsOfItsHosts) {
  ASSERT_GE(busy_connections().size(), 2U);
  const test::AgentProcess agent(NHA_TOOL_FILE);
  const std::string page = agent.status()["page"].get<std::string>();
  const size_t colon = page.rfind(':');
  const std::string port = std::to_string(std::stoi(page.substr(colon + 1)));
  const ToolRun run = tool({"stat", "--json", "--interval", "0.1", "--agent-port", port, "--hosts",
                            "127.0.0.1,gone=127.0.0.9"});
  EXPECT_EQ(run.status, 1) << "a host that was named is missing: " << run.err;
  const json told = json::parse(run.out, nullptr, false);
  ASSERT_FALSE(told.is_discarded()) << run.out << run.err;
  size_t busy = 0;
  for (const json& row : told["rows"]) {
    busy += row["kind"] == "connection" && row["bytes_sent"] > 10'000'000 && row["sent_per_s"] > 0
                ? 1
                : 0;
  }
  EXPECT_GE(busy, 2U) << run.out;
  ASSERT_EQ(told["unreadable"].size(), 1U);
  EXPECT_NE(run.err.find("agent of 127.0.0.9, port " + port + ": cannot be reached"),
            std::string::npos)
      << run.err;
  const ToolRun top = tool(
      {"top", "--count", "1", "--interval", "0.1", "--agent-port", port, "--hosts", "127.0.0.1"});
  EXPECT_NE(top.out.find("send-connection"), std::string::npos) << top.out << top.err;
  const ToolRun nobody = tool({"stat", "--agent-port", port, "--hosts", "127.0.0.9"});
  EXPECT_EQ(nobody.status, 2) << nobody.out;
}

}  // namespace
}  // namespace nccl_ha::tests
