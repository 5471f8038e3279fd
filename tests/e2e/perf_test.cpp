// nccl-ha perf with libnccl-net-ha.so, as a user runs it.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/support/tool_runner.h"

namespace nccl_ha::tests {
namespace {

using nlohmann::json;
using std::chrono::seconds;

std::string corrupting_plugin() { return NHA_MODULE_DIR "/corrupting_net.so"; }

ToolRun perf(std::vector<std::string> arguments, const Environment& environment = {},
             seconds limit = seconds(150)) {
  arguments.insert(arguments.begin(), "perf");
  return run_program(NHA_TOOL_FILE, arguments, environment, limit);
}

std::string said(const ToolRun& run) {
  return "status " + std::to_string(run.status) + "\n--- stdout\n" + run.out + "--- stderr\n" +
         run.err;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// A run that must succeed; returns its JSON report.
json good_report(std::vector<std::string> arguments, const Environment& environment = {}) {
  arguments.insert(arguments.end(), {"--json", "-"});
  const ToolRun run = perf(std::move(arguments), environment);
  EXPECT_EQ(run.status, 0) << said(run);
  json report = json::parse(run.out, nullptr, false);
  if (report.is_discarded()) {
    ADD_FAILURE() << "no JSON: " << said(run);
    return json::object();
  }
  EXPECT_EQ(report["wrong"], 0) << said(run);
  EXPECT_TRUE(report["ok"].get<bool>());
  EXPECT_TRUE(report["checked"].get<bool>());
  return report;
}

// ---- every operation is right -----------------------------------------------------------------

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

/// Operations differ in the order of their sends and receives, which is the tool's: address
/// sanitizer sees all of them once, and of the plugin's threads a sanitizer sees all there is in
/// three.
std::vector<const char*> operations() {
#if defined(__SANITIZE_THREAD__)
  return {"all_reduce", "alltoall", "pt2pt"};
#else
  return {"all_reduce", "all_gather", "reduce_scatter", "broadcast",
          "alltoall",   "sendrecv",   "pt2pt"};
#endif
}
std::vector<const char*> few_operations() {
  return sanitized ? std::vector<const char*>{"all_reduce", "alltoall", "pt2pt"} : operations();
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::array rank_counts{"3"};  // has all of the others
#else
constexpr std::array rank_counts{"2", "3", "4"};
#endif

using OperationAndThread = std::tuple<const char*, const char*>;
class Operations : public testing::TestWithParam<OperationAndThread> {};

TEST_P(Operations, are_exact_for_odd_sizes_and_several_ranks) {
  const auto [op, progress_thread] = GetParam();
  for (const char* ranks : rank_counts) {
    const json report =
        good_report({op, "--ranks", ranks, "-b", "0", "-e", "2000000", "-f", "37", "-d", "int8",
                     "-I", "3", "-w", "1", "--plugin", NHA_PLUGIN_FILE},
                    {{"HA_NCCL_USE_PROGRESS_THREAD", progress_thread}});
    ASSERT_EQ(report["results"].size(), 6U) << ranks << " ranks";
    EXPECT_EQ(report["plugins"][0]["name"], "HA");
  }
}

TEST(DefaultPlugin, is_the_one_of_this_build) {
  const json report = good_report({"all_reduce", "--ranks", "2", "-b", "64", "-e", "64", "-I", "2"},
                                  {{"LD_LIBRARY_PATH", ""}});
  EXPECT_TRUE(std::filesystem::equivalent(report["plugins"][0]["file"].get<std::string>(),
                                          NHA_PLUGIN_FILE));
}

const auto operation_name = [](const auto& parameter) {
  return std::string(std::get<0>(parameter.param)) + "_thread" + std::get<1>(parameter.param);
};
INSTANTIATE_TEST_SUITE_P(all, Operations,
                         testing::Combine(testing::ValuesIn(operations()),
                                          testing::Values("0", "1")),
                         operation_name);

using OperationAndLoss = std::tuple<const char*, const char*>;
class Loss : public testing::TestWithParam<OperationAndLoss> {};

TEST_P(Loss, does_not_change_a_single_byte) {
  const auto [op, percent] = GetParam();
  const std::string p = std::string("0.0") + percent;
  const std::string faults = "drop=" + p + ",dup=" + p + ",reorder=" + p + ",seed=1";
  // Ethernet's packet size gives thousands of packets to lose; the default here is loopback's.
  for (const char* mtu : {"1500", "0"}) {
    const ToolRun run =
        perf({op, "--ranks", "3", "-b", "5", "-e", "2000000", "-f", "600", "-d", "int8", "-I", "3",
              "-w", "1", "--plugin", NHA_PLUGIN_FILE, "--json", "-"},
             {{"HA_NCCL_DGRAM_FAULTS", faults}, {"HA_NCCL_DGRAM_MTU", mtu}});
    ASSERT_EQ(run.status, 0) << said(run);
    EXPECT_TRUE(contains(run.err, "fault injection is on")) << "nothing was lost: " << said(run);
    const json report = json::parse(run.out, nullptr, false);
    ASSERT_FALSE(report.is_discarded()) << said(run);
    EXPECT_EQ(report["wrong"], 0);
    EXPECT_EQ(report["results"].size(), 3U);
  }
}

INSTANTIATE_TEST_SUITE_P(
    all, Loss, testing::Combine(testing::ValuesIn(few_operations()), testing::Values("1", "5")),
    [](const auto& parameter) {
      return std::string(std::get<0>(parameter.param)) + "_percent" + std::get<1>(parameter.param);
    });

TEST(Types, and_reductions_are_exact) {
  for (const char* type : {"int8", "int32", "half", "bfloat16", "float", "double"}) {
    for (const char* op : {"sum", "avg"}) {
      good_report({"all_reduce", "--ranks", "3", "-b", "700000", "-e", "700000", "-d", type, "-o",
                   op, "-I", "2", "-w", "0", "--plugin", NHA_PLUGIN_FILE});
    }
  }
}

TEST(Abi, every_version_works) {
  for (int version = 6; version <= 12; ++version) {
    const json report =
        good_report({"sendrecv", "-b", "1", "-e", "1000000", "-f", "1000", "-d", "int8", "-I", "2",
                     "--plugin", NHA_PLUGIN_FILE, "--abi", std::to_string(version)});
    EXPECT_EQ(report["plugins"][0]["abi"], version);
  }
  const json by_symbol = good_report({"sendrecv", "-b", "64", "-e", "64", "-I", "2", "--plugin",
                                      std::string(NHA_PLUGIN_FILE) + ":ncclNetPlugin_v9"});
  EXPECT_EQ(by_symbol["plugins"][0]["abi"], 9);
}

TEST(Modes, groups_channels_reuse_and_both_directions_are_exact) {
  const std::vector<std::string> sizes{"-b",     "100000", "-e",       "3000000",
                                       "-f",     "30",     "-I",       "3",
                                       "--step", "65536",  "--plugin", NHA_PLUGIN_FILE};
  const std::vector<std::vector<std::string>> modes{
      {"sendrecv", "--group", "8"},
      {"alltoall", "--ranks", "3", "--group", "3"},
      {"pt2pt", "--group", "5", "--bidirectional"},
      {"all_reduce", "--ranks", "3", "--conns", "4"},
      {"alltoall", "--ranks", "3", "--conns", "2"},
      {"pt2pt", "--reuse", "--bidirectional"},
      {"sendrecv", "--ranks", "3", "--reuse", "--conns", "2"},
      {"broadcast", "--ranks", "3", "-r", "2", "--depth", "1"},
      {"all_gather", "--ranks", "3", "--depth", "32"},
  };
  for (auto mode : modes) {
    SCOPED_TRACE(mode[0] + " " + mode[1] + " " + mode[2]);
    mode.insert(mode.end(), sizes.begin(), sizes.end());
    good_report(mode);
  }
}

TEST(Latency, is_reported_with_ordered_percentiles) {
  const auto begin = std::chrono::steady_clock::now();
  const json report = good_report(
      {"latency", "-b", "8", "-e", "8", "-I", "500", "-w", "50", "--plugin", NHA_PLUGIN_FILE});
  const json& plugin = report["results"][0]["plugins"][0];
  EXPECT_GT(plugin["min_us"].get<double>(), 0.1) << "a message between processes takes that long";
  EXPECT_LT(plugin["min_us"].get<double>(), plugin["p99_us"].get<double>());
  EXPECT_LE(plugin["min_us"].get<double>(), plugin["p50_us"].get<double>());
  EXPECT_LE(plugin["p50_us"].get<double>(), plugin["p99_us"].get<double>());
  // Half of the 500 round trips take at least the median's twice, and all fit into the run.
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(plugin["p50_us"].get<double>() * 2 * 250, took.count());
}

TEST(Latency, rests_between_round_trips_if_told_to) {
  const auto begin = std::chrono::steady_clock::now();
  const json report = good_report({"latency", "-b", "8", "-e", "8", "-I", "20", "-w", "0",
                                   "--pause", "50000", "--plugin", NHA_PLUGIN_FILE});
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
  EXPECT_EQ(report["pause_us"], 50000);
  // Half of a rest would be in every round trip; the shortest is what a busy machine delays least.
  EXPECT_LT(report["results"][0]["plugins"][0]["min_us"].get<double>(), 10000.0)
      << "the rest is no part of what is measured";
}

TEST(Latency, waits_for_the_send_first_beside_busy_neighbours_if_told_to) {
  const json report =
      good_report({"latency", "-b", "8", "-e", "8", "-I", "200", "-w", "0", "--send-first",
                   "--spin", "--neighbours", "2", "--plugin", NHA_PLUGIN_FILE});
  EXPECT_EQ(report["send_first"], true);
  EXPECT_EQ(report["spin"], true);
  EXPECT_EQ(report["neighbours"], 2);
  EXPECT_EQ(report["wrong"], 0);
}

TEST(Against, runs_both_in_turn_and_prints_the_ratio) {
  const json report =
      good_report({"pt2pt", "-b", "1M", "-e", "1M", "-I", "3", "--rounds", "3", "--plugin",
                   NHA_PLUGIN_FILE, "--against", NHA_PLUGIN_FILE, "--abi-against", "8"});
  ASSERT_EQ(report["plugins"].size(), 2U);
  EXPECT_EQ(report["plugins"][1]["abi"], 8);
  const json& row = report["results"][0];
  EXPECT_EQ(row["plugins"][0]["rounds"].size(), 3U);
  EXPECT_EQ(row["plugins"][1]["rounds"].size(), 3U);
  EXPECT_GT(row["ratio"].get<double>(), 0.0);
}

TEST(Seconds, run_each_size_that_long_and_no_longer) {
  for (const char* op : {"pt2pt", "latency"}) {
    const json report = good_report({op, "-b", "1024", "-e", "1024", "--seconds", "0.3", "-w", "1",
                                     "--rounds", "3", "--plugin", NHA_PLUGIN_FILE});
    EXPECT_EQ(report["seconds"], 0.3);
    const json& rounds = report["results"][0]["plugins"][0]["rounds"];
    ASSERT_EQ(rounds.size(), 3U);
    double least_beyond = 1;
    for (const json& round : rounds) {
      EXPECT_GE(round["iterations"].get<uint64_t>(), 2U) << op;
      EXPECT_LE(round["p99_us"].get<double>(), round["max_us"].get<double>()) << op;
      // The ranks agree on the end by messages between the iterations, of which a round trip is
      // two.
      const bool latency = op == std::string("latency");
      const double each_us =
          latency ? 2 * round["mean_us"].get<double>() : round["time_us"].get<double>();
      const double measured = each_us * round["iterations"].get<double>() * 1e-6;
      EXPECT_GT(measured, 0.15) << op;
      least_beyond = std::min(least_beyond, measured - 2e-6 * round["max_us"].get<double>());
    }
    // A busy machine may slow the last iterations of a round, of which the clock is not looked at.
    EXPECT_LT(least_beyond, 0.35) << op;
  }
}

TEST(Device, is_chosen_by_its_name) {
  const json report = good_report(
      {"sendrecv", "-b", "8", "-e", "8", "-n", "1", "--device", "lo", "--plugin", NHA_PLUGIN_FILE});
  EXPECT_EQ(report["plugins"][0]["device"], "lo");
}

TEST(Baseline, is_compared_with_size_by_size) {
  const auto file = std::filesystem::temp_directory_path() /
                    ("nha-baseline-" + std::to_string(getpid()) + ".json");
  const std::vector<std::string> common{"sendrecv", "-b", "8",        "-e",           "8",
                                        "-n",       "2",  "--plugin", NHA_PLUGIN_FILE};
  auto first = common;
  first.insert(first.end(), {"--rounds", "4", "--json", file});
  EXPECT_EQ(perf(first).status, 0);
  auto second = common;
  second.insert(second.end(), {"--baseline", file});
  const json report = good_report(second);
  const ToolRun table = perf(second);
  std::filesystem::remove(file);
  ASSERT_EQ(report["baseline"]["sizes"].size(), 1U) << report.dump(1);
  EXPECT_GT(report["baseline"]["sizes"][0]["ratio"].get<double>(), 0.0);
  EXPECT_EQ(report["results"][0]["plugins"][0]["rounds"].size(), 5U) << "enough by default";
  EXPECT_TRUE(contains(table.out, "now/then")) << said(table);
  EXPECT_TRUE(contains(table.out, file)) << said(table);
}

/// perf that gets a signal as soon as a line of its table is there; what it printed and its status.
std::pair<std::string, int> interrupted_by(int signal, const std::string& json_file) {
  int out[2];
  EXPECT_EQ(pipe(out), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(out[1], STDOUT_FILENO);
    close(out[0]);
    close(out[1]);
    // Two sizes, of which the second takes minutes.
    execl(NHA_TOOL_FILE, NHA_TOOL_FILE, "perf", "pt2pt", "-b", "8", "-e", "64M", "-i", "67108856",
          "-n", "2000", "-w", "0", "-c", "0", "--timeout", "100", "--plugin", NHA_PLUGIN_FILE,
          "--json", json_file.c_str(), nullptr);
    _exit(127);
  }
  close(out[1]);
  std::string said;
  bool sent = false;
  char part[4096];
  for (ssize_t got = 0; (got = read(out[0], part, sizeof part)) > 0;) {
    said.append(part, static_cast<size_t>(got));
    if (!sent && contains(said, "\n            8 ")) {
      kill(child, signal);
      sent = true;
    }
  }
  close(out[0]);
  EXPECT_TRUE(sent);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return {said, status};
}

TEST(Interrupt, keeps_the_averages_of_what_was_measured) {
  const auto file = std::filesystem::temp_directory_path() /
                    ("nha-interrupted-" + std::to_string(getpid()) + ".json");
  for (const int signal : {SIGINT, SIGTERM}) {
    const auto [said, status] = interrupted_by(signal, file);
    ASSERT_TRUE(WIFEXITED(status)) << said;
    EXPECT_EQ(WEXITSTATUS(status), 1) << said;
    EXPECT_TRUE(contains(said, "INCOMPLETE")) << said;
    EXPECT_TRUE(contains(said, "Avg bus bandwidth")) << said;
    std::ifstream stream(file);
    const json report = json::parse(stream, nullptr, false);
    ASSERT_TRUE(report.is_object()) << said;
    EXPECT_EQ(report["results"].size(), 1U) << report.dump(1);
    EXPECT_FALSE(report["ok"].get<bool>());
    EXPECT_TRUE(contains(report["errors"][0], "interrupted at pt2pt 67108864 bytes"))
        << report["errors"].dump();
    std::filesystem::remove(file);
  }
}

TEST(Table, has_the_columns_of_nccl_tests) {
  const ToolRun run = perf({"all_reduce", "--ranks", "2", "-b", "8", "-e", "1M", "-f", "32",
                            "--plugin", NHA_PLUGIN_FILE});
  EXPECT_EQ(run.status, 0) << said(run);
  for (const char* word : {"size", "count", "type", "redop", "root", "time", "algbw", "busbw",
                           "#wrong", "Avg bus bandwidth", " 262144 "}) {
    EXPECT_TRUE(contains(run.out, word)) << word << "\n" << said(run);
  }
}

// ---- ranks started by somebody else -----------------------------------------------------------

TEST(Launcher, two_processes_with_torchrun_variables_form_one_run) {
  const std::string port = port_to_meet_at();
  ToolRun runs[2];
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      runs[rank] = perf({"all_reduce", "-b", "1000", "-e", "1M", "-f", "10", "-I", "3", "--plugin",
                         NHA_PLUGIN_FILE, "--rendezvous", "127.0.0.1:" + port},
                        {{"RANK", std::to_string(rank)},
                         {"WORLD_SIZE", "2"},
                         {"LOCAL_RANK", std::to_string(rank)},
                         {"LOCAL_WORLD_SIZE", "2"}});
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(runs[0].status, 0) << said(runs[0]);
  EXPECT_EQ(runs[1].status, 0) << said(runs[1]);
  EXPECT_TRUE(contains(runs[0].out, "2 ranks on 1 host")) << said(runs[0]);
  EXPECT_TRUE(runs[1].out.empty()) << "only rank 0 prints: " << said(runs[1]);
}

TEST(Launcher, a_rank_that_never_comes_ends_the_run_in_time) {
  const ToolRun run = perf(
      {"all_reduce", "--plugin", NHA_PLUGIN_FILE, "--timeout", "2", "--rendezvous", "127.0.0.1:1"},
      {{"RANK", "1"}, {"WORLD_SIZE", "2"}}, seconds(30));
  EXPECT_FALSE(run.timed_out);
  EXPECT_EQ(run.status, 1) << said(run);
  EXPECT_TRUE(contains(run.err, "cannot reach rank 0 at 127.0.0.1 port 1")) << said(run);
}

// ---- bad input --------------------------------------------------------------------------------

void expect_refused(std::vector<std::string> arguments, const std::vector<std::string>& words,
                    const Environment& environment = {}) {
  const ToolRun run = perf(std::move(arguments), environment, seconds(60));
  EXPECT_FALSE(run.timed_out);
  EXPECT_NE(run.status, 0) << said(run);
  EXPECT_LT(run.status, 128) << "killed: " << said(run);
  for (const std::string& word : words) {
    EXPECT_TRUE(contains(run.err, word)) << word << "\n" << said(run);
  }
}

TEST(PerfBadInput, wrong_plugin_files_are_named) {
  expect_refused({"sendrecv", "--plugin", "/no/such/file.so"},
                 {"/no/such/file.so", "No such file"});
  expect_refused({"sendrecv", "--plugin", "/etc/passwd"}, {"/etc/passwd", "not an ELF file"});
  expect_refused({"sendrecv", "--plugin", "/tmp"}, {"/tmp is not a file"});
  expect_refused({"sendrecv", "--plugin", "libm.so.6"},
                 {"no NCCL network plugin", "ncclNetPlugin_v12", "ncclNetPlugin_v6"});
}

TEST(PerfBadInput, a_version_the_plugin_lacks_is_named_with_those_it_has) {
  expect_refused({"sendrecv", "--plugin", corrupting_plugin(), "--abi", "12"},
                 {"has no ABI v12", "it offers v8"});
  expect_refused({"sendrecv", "--plugin", NHA_PLUGIN_FILE, "--abi", "13"}, {"--abi 13", "6 to 12"});
  expect_refused({"sendrecv", "--plugin", std::string(NHA_PLUGIN_FILE) + ":nothing"},
                 {"no symbol nothing"});
}

TEST(PerfBadInput, options_that_cannot_work_are_named) {
  expect_refused({"dance"}, {"dance", "all_reduce"});
  expect_refused({"sendrecv", "-b", "8x"}, {"8x"});
  expect_refused({"broadcast", "-r", "7"}, {"--root 7"});
  expect_refused({"sendrecv", "--device", "99", "--plugin", NHA_PLUGIN_FILE}, {"--device 99"});
  expect_refused({"sendrecv", "--env", "FOO"}, {"FOO"});
}

TEST(PerfBadInput, each_of_several_settings_reaches_the_plugin) {
  for (const bool first : {true, false}) {  // the bad one
    std::vector<std::string> arguments{"sendrecv", "--plugin", NHA_PLUGIN_FILE};
    for (const bool bad : {first, !first}) {
      arguments.insert(arguments.end(),
                       {"--env", bad ? "HA_NCCL_PROGRESS_THREADS=many" : "HA_NCCL_DEBUG=0"});
    }
    expect_refused(arguments, {"HA_NCCL_PROGRESS_THREADS"});
  }
}

TEST(PerfBadInput, what_the_plugin_says_about_a_bad_setting_is_passed_on) {
  expect_refused({"sendrecv", "--plugin", NHA_PLUGIN_FILE}, {"HA_NCCL_PROGRESS_THREADS"},
                 {{"HA_NCCL_PROGRESS_THREADS", "many"}});
  expect_refused({"sendrecv", "--plugin", NHA_PLUGIN_FILE}, {"nha_no_such_interface"},
                 {{"HA_NCCL_IFNAME", "nha_no_such_interface"}});
}

// ---- what goes wrong on the way is noticed ----------------------------------------------------

ToolRun misdeed(const std::string& what, std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), {"--plugin", corrupting_plugin()});
  return perf(std::move(arguments), {{"NHA_INNER_PLUGIN", NHA_PLUGIN_FILE}, {"NHA_MISDEED", what}},
              seconds(90));
}

class Corruption : public testing::TestWithParam<const char*> {};

// One bit in one message of one iteration, timed ones included.
TEST_P(Corruption, of_a_single_byte_is_found) {
  for (const char* message : {"flip:1", "flip:7", "flip:23"}) {
    const ToolRun run = misdeed(message, {GetParam(), "--ranks", "3", "-b", "200000", "-e",
                                          "200000", "--step", "32768", "-I", "5", "-w", "2"});
    EXPECT_EQ(run.status, 1) << message << "\n" << said(run);
    EXPECT_TRUE(contains(run.out, "FAILED")) << said(run);
    EXPECT_TRUE(contains(run.err, "wrong elements")) << said(run);
  }
}

INSTANTIATE_TEST_SUITE_P(all, Corruption, testing::ValuesIn(few_operations()),
                         [](const auto& parameter) { return std::string(parameter.param); });

TEST(Corruption, is_found_in_reused_steps_and_in_the_latency_test) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"pt2pt", "--reuse", "-b", "1M", "-e", "1M", "-I", "3"},
        std::vector<std::string>{"latency", "-b", "8", "-e", "8", "-I", "50", "-w", "5"}}) {
    const ToolRun run = misdeed("flip:9", arguments);
    EXPECT_EQ(run.status, 1) << said(run);
    EXPECT_TRUE(contains(run.out, "FAILED")) << said(run);
  }
}

TEST(Corruption, the_same_plugin_without_its_misdeed_passes) {
  const ToolRun run = misdeed("flip:1000000000", {"all_reduce", "-b", "1M", "-e", "1M"});
  EXPECT_EQ(run.status, 0) << said(run);
}

TEST(Corruption, a_wrong_size_is_found) {
  const ToolRun run = misdeed("short:5", {"sendrecv", "-b", "1M", "-e", "1M", "--step", "65536"});
  EXPECT_EQ(run.status, 1) << said(run);
  EXPECT_TRUE(contains(run.err, "reported 65535 bytes")) << said(run);
}

TEST(Failure, of_a_call_ends_the_run_with_call_rank_and_code) {
  const ToolRun run =
      misdeed("error:5", {"sendrecv", "--ranks", "3", "-b", "1M", "-e", "1M", "--step", "65536"});
  EXPECT_EQ(run.status, 1) << said(run);
  EXPECT_TRUE(contains(run.err, "test of Corrupting gave ncclRemoteError")) << said(run);
  EXPECT_LT(run.took.count(), 30.0);
}

TEST(Failure, a_rank_killed_in_the_middle_of_a_transfer_ends_the_run_at_once) {
  const ToolRun run =
      misdeed("die:40", {"sendrecv", "--ranks", "3", "-b", "32M", "-e", "32M", "-I", "1000"});
  EXPECT_EQ(run.status, 1) << said(run);
  EXPECT_TRUE(contains(run.err, "was killed by signal 9")) << said(run);
  // It really was in the middle: the rank itself counted what it had in flight.
  const size_t at = run.err.find("dying with ");
  ASSERT_NE(at, std::string::npos) << said(run);
  EXPECT_GT(std::stoi(run.err.substr(at + 11)), 0) << said(run);
  EXPECT_TRUE(contains(run.out, "INCOMPLETE")) << said(run);
  EXPECT_LT(run.took.count(), 40.0);
}

TEST(Failure, a_transfer_that_stops_ends_at_the_timeout_and_says_where) {
  const ToolRun run = misdeed("stall:20", {"sendrecv", "-b", "8M", "-e", "8M", "--timeout", "4"});
  EXPECT_FALSE(run.timed_out) << said(run);
  EXPECT_EQ(run.status, 1) << said(run);
  EXPECT_TRUE(contains(run.err, "the time was up")) << said(run);
  EXPECT_TRUE(contains(run.err, "in flight")) << said(run);
  EXPECT_LT(run.took.count(), 20.0);
}

TEST(Report, a_failed_run_is_no_success_in_the_json_either) {
  const ToolRun run = misdeed("flip:3", {"sendrecv", "-b", "1M", "-e", "1M", "--json", "-"});
  EXPECT_EQ(run.status, 1) << said(run);
  const json report = json::parse(run.out, nullptr, false);
  ASSERT_FALSE(report.is_discarded()) << said(run);
  EXPECT_FALSE(report["ok"].get<bool>());
  EXPECT_GT(report["wrong"].get<uint64_t>(), 0U);
  EXPECT_FALSE(report["errors"].empty());
}

}  // namespace
}  // namespace nccl_ha::tests
