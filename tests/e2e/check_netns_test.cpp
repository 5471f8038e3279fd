// nccl-ha check on labs that are right and on labs that are not.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/background_lab.h"
#include "tests/support/temporary_folder.h"

namespace nccl_ha::tests {
namespace {

using nlohmann::json;

ToolRun lab_check(const std::string& topology, const std::string& script,
                  const std::vector<std::string>& arguments = {},
                  const std::vector<std::string>& of_lab = {}) {
  std::vector<std::string> all{
      "lab", "run", topology, "-q", "--env", "HA_NCCL_FABRIC=datagram", "--timeout", "100"};
  if (!script.empty()) {
    all.insert(all.end(), {"--script", script});
  }
  all.insert(all.end(), of_lab.begin(), of_lab.end());
  all.insert(all.end(), {"--", "nccl-ha", "check", "--patience", "3"});
  all.insert(all.end(), arguments.begin(), arguments.end());
  return run_program(NHA_TOOL_FILE, all);
}

TEST(Check, AGoodNetworkIsGood) {
  const ToolRun run = lab_check("rails-3x2", "");
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_NE(run.out.find("network: 6 pairs of hosts and devices"), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("0 errors"), std::string::npos) << run.out;
}

TEST(Check, NamesTheRailThatIsCut) {
  // The plugin stays loaded where dumps have a folder, and is to see the second rail all the same.
  const ToolRun run =
      lab_check("pair", "0s cut rail1 --silent", {}, {"--env", "HA_NCCL_TRACE_DIR=/tmp"});
  EXPECT_EQ(run.status, 1) << run.out << run.err;
  EXPECT_NE(run.out.find("error: h1 and h2 on rail1: "), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("198.18.1."), std::string::npos) << "says which addresses: " << run.out;
  EXPECT_EQ(run.out.find("on rail0"), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("do: check cable"), std::string::npos) << run.out;
  // Both hosts end alike, so that a script may ask either.
  EXPECT_NE(run.out.find("1 error,"), std::string::npos) << run.out;
}

TEST(Check, NamesTheRailWhoseSwitchHasASmallMtu) {
  const ToolRun run = lab_check("pair", "0s mtu rail0 1500");
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_NE(run.out.find("on rail0: NET/HA : path"), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("using 1500. Check the MTU of the switches between"), std::string::npos)
      << run.out;
  EXPECT_EQ(run.out.find("on rail1: NET/HA : path"), std::string::npos) << run.out;
  EXPECT_EQ(lab_check("pair", "0s mtu rail0 1500", {"--strict"}).status, 1);
}

TEST(Check, HostsWithoutACableBetweenAreNoMistakeWhereAPathOverOthersIs) {
  const ToolRun run = lab_check("line-3", "");
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_NE(run.out.find("network: line of 3 hosts, 2 cables"), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("pairs of hosts without a cable: 1; the processes of a job"),
            std::string::npos)
      << run.out;
  EXPECT_NE(run.out.find("h1 and h2                to-h2/to-h1 "), std::string::npos) << run.out;
  EXPECT_EQ(run.out.find("h1 and h3 "), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("0 errors"), std::string::npos) << run.out;
}

TEST(Check, AHostThatDoesNotRelayIsNamed) {
  const ToolRun run = run_program(
      NHA_TOOL_FILE,
      {"lab", "run", "line-3", "-q", "--env", "HA_NCCL_FABRIC=datagram", "--timeout", "100", "--",
       "sh", "-c",
       "[ $RANK != 1 ] || export NCCL_MESH_RELAY=off; exec nccl-ha check --json --patience 3"});
  EXPECT_EQ(run.status, 1) << run.out << run.err;
  // Only the first rank prints; its lines are JSON behind the lab's prefix.
  std::string text;
  size_t from = 0;
  for (size_t end = run.out.find('\n'); end != std::string::npos; end = run.out.find('\n', from)) {
    const std::string line = run.out.substr(from, end - from);
    from = end + 1;
    EXPECT_TRUE(line.starts_with("[h1] ")) << line;
    text += line.substr(std::min<size_t>(line.size(), 5)) + "\n";
  }
  const json report = json::parse(text, nullptr, false);
  ASSERT_TRUE(report.is_object()) << run.out << run.err;
  EXPECT_EQ(report["ok"], false);
  EXPECT_EQ(report["errors"], 1);
  EXPECT_EQ(report["mesh"]["shape"], "line");
  EXPECT_EQ(report["pairs"].size(), 2U);
  EXPECT_NE(report["network"].dump().find("NCCL_MESH_RELAY=off on h2"), std::string::npos)
      << report["network"];
}

TEST(Check, StartsItselfOnTheHostsGiven) {
  const std::string name = "check" + std::to_string(getpid());
  BackgroundLab lab(NHA_TOOL_FILE, name, {"run", "pair", "-q", "--", "tail", "-f", "/dev/null"});
  ASSERT_TRUE(lab.up());
  const std::vector<std::string> check{"check",
                                       "--hosts",
                                       "h1=198.19.0.1,h2=198.19.0.2",
                                       "--patience",
                                       "3",
                                       "--ssh",
                                       std::string(NHA_TOOL_FILE) + " lab enter --lab " + name};
  const Environment environment{{"HA_NCCL_IFNAME", "^mgmt,lo"}, {"HA_NCCL_FABRIC", "datagram"}};
  ToolRun run = run_program(NHA_TOOL_FILE, check, environment);
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_NE(run.out.find("h1 and h2                rail1"), std::string::npos) << run.out;
  EXPECT_EQ(lab.ask({"cut", "rail0", "--silent"}).status, 0);
  run = run_program(NHA_TOOL_FILE, check, environment);
  EXPECT_EQ(run.status, 1) << run.out << run.err;
  // A host that is not there.
  auto wrong = check;
  wrong[2] = "h1=198.19.0.1,h9=198.19.0.9";
  run = run_program(NHA_TOOL_FILE, wrong, environment);
  EXPECT_EQ(run.status, 2);
  EXPECT_NE(run.err.find("nothing could be started on h9"), std::string::npos) << run.err;
}

TEST(Check, HostsWithoutAnAddressFamilyInCommonAreToldWhichHasWhich) {
  const ToolRun run = run_program(
      NHA_TOOL_FILE, {"lab", "run", "rails-2x1", "-q", "--env", "HA_NCCL_IFNAME=^mgmt,lo", "--env",
                      "HA_NCCL_FABRIC=datagram", "--", "sh", "-c",
                      "PATH=$PATH:/sbin:/usr/sbin; if [ $RANK = 0 ]; then ip -6 addr flush dev "
                      "rail0; else ip -4 addr flush dev rail0; ip addr add fd00:1::2/64 dev rail0 "
                      "nodad; fi; exec nccl-ha check --plugin " NHA_PLUGIN_FILE " --patience 4"});
  EXPECT_EQ(run.status, 1) << run.out << run.err;
  EXPECT_EQ(count(run.out, "and the peer IPv6 only (fd00:1::2): give both"), 1U) << run.out;
  EXPECT_EQ(count(run.out, "this host uses IPv6 only (fd00:1::2) and the peer IPv4 only"), 1U)
      << run.out;
  EXPECT_GE(count(run.out, "set NCCL_SOCKET_FAMILY alike on all hosts"), 1U) << run.out;
  EXPECT_EQ(count(run.out, "check cable"), 0U) << run.out;
}

/// What takes the place of a remote shell: `text` with the host's name in $host and the command in
/// "$@".
std::string shell(const TemporaryFolder& folder, const std::string& text) {
  const std::string file = folder.path() + "/shell";
  std::ofstream(file) << "#!/bin/sh\nhost=$1; shift 2\n" << text << "\n";
  std::filesystem::permissions(file, std::filesystem::perms::owner_all);
  return file;
}

TEST(Check, ASilentShellIsNamedWhenTheTimeIsUp) {
  const TemporaryFolder folder;
  const ToolRun run =
      run_program(NHA_TOOL_FILE,
                  {"check", "--json", "--hosts", "h1=127.0.0.1,h2=127.0.0.1", "--port",
                   port_to_meet_at(), "--timeout", "2", "--ssh",
                   shell(folder, R"([ "$host" = h1 ] || exec tail -f /dev/null; exec "$@")")},
                  {{"HA_NCCL_IFNAME", "lo"}});
  EXPECT_EQ(run.status, 2) << run.out << run.err;
  EXPECT_NE(run.err.find("nothing runs on h2 yet"), std::string::npos) << run.err;
  EXPECT_LT(run.took.count(), 30);
  const json document = json::parse(run.out, nullptr, false);
  ASSERT_TRUE(document.is_object()) << run.out;
  EXPECT_EQ(document["ok"], false);
}

TEST(Check, ARankWithoutStandardInputSaysWhyItEnds) {
  const TemporaryFolder folder;
  const ToolRun run =
      run_program(NHA_TOOL_FILE,
                  {"check", "--json", "--hosts", "h1=127.0.0.1,h2=127.0.0.1", "--port",
                   port_to_meet_at(), "--ssh", shell(folder, R"(exec "$@" </dev/null)")},
                  {{"HA_NCCL_IFNAME", "lo"}});
  EXPECT_EQ(run.status, 2) << run.out << run.err;
  EXPECT_NE(run.err.find("standard input has ended"), std::string::npos) << run.err;
  const json document = json::parse(run.out, nullptr, false);
  ASSERT_TRUE(document.is_object()) << run.out;
  EXPECT_EQ(document["ok"], false);
}

TEST(Check, SettingsReachRanksAndNoCommandLine) {
  const TemporaryFolder folder;
  const std::string file =
      shell(folder, "echo \"$@\" > " + folder.path() + "/$host; exec env -i PATH=\"$PATH\" \"$@\"");
  const ToolRun run = run_program(
      NHA_TOOL_FILE,
      {"perf", "pt2pt", "-b", "8", "-e", "8", "-I", "2", "-v", "--plugin", NHA_PLUGIN_FILE,
       "--hosts", "h1=127.0.0.1,h2=127.0.0.1", "--port", port_to_meet_at(), "--ssh", file},
      {{"HA_NCCL_IFNAME", "lo"}, {"HA_NCCL_FABRIC", "datagram"}, {"HA_NCCL_LISTEN_PORTS", "0"}});
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(count(run.out + run.err, "settings HA_NCCL_FABRIC=datagram HA_NCCL_IFNAME=lo"), 2U)
      << run.out << run.err;
  for (const char* host : {"/h1", "/h2"}) {
    const std::string command = content_of(folder.path() + host);
    EXPECT_GT(count(command, "RANK="), 0U) << command;
    EXPECT_EQ(count(command, "NCCL_"), 0U) << command;
  }
}

TEST(Check, MoreHostsThanTheSoftLimitOfOpenFilesAllows) {
  const TemporaryFolder folder;
  // Takes the place of the ranks too: each says that it runs, and what its own limit is.
  const std::string file = shell(folder, "echo 'nccl-ha: this rank runs'; ulimit -Sn");
  const ToolRun run =
      run_program("/bin/sh", {"-c", R"(ulimit -Sn 32; exec "$@")", "sh", NHA_TOOL_FILE, "check",
                              "--hosts", "h[01-20]", "--ssh", file});
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(run.out, "32\n") << "a rank has the limit that it would have without --hosts";
  EXPECT_EQ(count(run.err, ": 32\n"), 19U) << run.err;
}

TEST(Check, RanksEndWithTheCommandThatStartedThem) {
  const TemporaryFolder folder;
  // The second never comes, so that the first waits; it is beyond the reach of signals.
  const std::string number = folder.path() + "/rank";
  const std::string file =
      shell(folder, "[ $host = h1 ] || exec tail -f /dev/null\n\"$@\" <&0 &\necho $! > " + number +
                        "\nexec tail -f /dev/null");
  const ToolRun run = run_program(
      "/bin/sh",
      {"-c",
       R"("$@" & command=$!; sleep 2; until [ -s "$0" ]; do kill -0 $command || exit 0; )"
       "sleep 0.05; done; kill -TERM $command; wait $command",
       number, NHA_TOOL_FILE, "check", "--hosts", "h1=127.0.0.1,h2=127.0.0.1", "--port",
       port_to_meet_at(), "--timeout", "60", "--ssh", file});
  EXPECT_NE(run.status, 0);
  pid_t rank = -1;
  std::ifstream(number) >> rank;
  ASSERT_GT(rank, 0) << run.out << run.err;
  const int handle = static_cast<int>(syscall(SYS_pidfd_open, rank, 0));
  if (handle >= 0) {  // else it is gone already
    pollfd ended{handle, POLLIN, 0};
    EXPECT_EQ(poll(&ended, 1, 20'000), 1) << "rank " << rank << " still runs";
    close(handle);
  }
}

TEST(Check, SaysItInOneLine) {
  ToolRun run = run_program(NHA_TOOL_FILE, {"check", "--brief"},
                            {{"NCCL_NET_PLUGIN", "/none.so"}, {"HA_NCCL_IFNAME", "lo"}});
  EXPECT_EQ(run.status, 1) << run.out;
  EXPECT_EQ(count(run.out, "\n"), 1U) << run.out;
  EXPECT_TRUE(
      run.out.starts_with("nccl-ha check failed: with NCCL_NET_PLUGIN=/none.so NCCL finds "))
      << run.out;
  EXPECT_LE(run.out.size(), 81U) << "a line of a terminal: " << run.out;
}

TEST(Check, ANodeOnWhichNcclFindsNoPluginIsNotPassedWhereOneIsRequired) {
  // As in a prolog: nothing of the job's environment is here.
  const Environment bare{
      {"NCCL_NET_PLUGIN", ""}, {"LD_LIBRARY_PATH", ""}, {"HA_NCCL_IFNAME", "lo"}};
  EXPECT_EQ(run_program(NHA_TOOL_FILE, {"check", "--brief"}, bare).status, 0);
  ToolRun run = run_program(NHA_TOOL_FILE, {"check", "--brief", "--require-plugin"}, bare);
  EXPECT_EQ(run.status, 1) << run.out;
  EXPECT_TRUE(run.out.starts_with("nccl-ha check failed: with NCCL_NET_PLUGIN=ha NCCL finds "))
      << run.out;
  const Environment found{
      {"NCCL_NET_PLUGIN", ""}, {"LD_LIBRARY_PATH", NHA_MODULE_DIR}, {"HA_NCCL_IFNAME", "lo"}};
  run = run_program(NHA_TOOL_FILE, {"check", "--brief", "--require-plugin"}, found);
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_TRUE(run.out.starts_with("nccl-ha check passed: ")) << run.out;
}

TEST(Check, AFileOfNcclsThatChoosesAnotherNetworkIsNamed) {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/conf";
  std::ofstream(file) << "NCCL_NET=Socket\n";
  const ToolRun run = run_program(
      NHA_TOOL_FILE, {"check"},
      {{"NCCL_NET_PLUGIN", "ha"}, {"LD_LIBRARY_PATH", NHA_MODULE_DIR}, {"NCCL_CONF_FILE", file}});
  EXPECT_EQ(run.status, 1) << run.out << run.err;
  EXPECT_NE(run.out.find("error: NCCL_NET=Socket (set in " + file + "): NCCL uses that network"),
            std::string::npos)
      << run.out;
}

TEST(Check, AloneItLooksAtThisHost) {
  ToolRun run = run_program(NHA_TOOL_FILE, {"check", "--json"}, {{"HA_NCCL_FABRIC", "datagram"}});
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  const json report = json::parse(run.out, nullptr, false);
  ASSERT_TRUE(report.is_object()) << run.out;
  EXPECT_EQ(report["hosts"].size(), 1U);
  run = run_program(NHA_TOOL_FILE, {"check"}, {{"NCCL_NET_PLUGIN", "ha"}, {"LD_LIBRARY_PATH", ""}});
  EXPECT_EQ(run.status, 1) << "NCCL would not find the plugin: " << run.out;
  EXPECT_NE(run.out.find("error: with NCCL_NET_PLUGIN=ha NCCL finds nothing"), std::string::npos)
      << run.out;
  run = run_program(NHA_TOOL_FILE, {"check"},
                    {{"NCCL_NET_PLUGIN", "ha"}, {"LD_LIBRARY_PATH", NHA_MODULE_DIR}});
  EXPECT_EQ(run.status, 0) << run.out;
  EXPECT_NE(run.out.find("libnccl-net-ha.so, found by LD_LIBRARY_PATH"), std::string::npos)
      << run.out;
  run = run_program(NHA_TOOL_FILE, {"check"}, {{"HA_NCCL_FABRIC", "nonsense"}});
  EXPECT_EQ(run.status, 2) << run.out;
  EXPECT_NE(run.err.find("HA_NCCL_FABRIC=nonsense"), std::string::npos) << run.err;
  run = run_program(NHA_TOOL_FILE, {"check", "--hosts", "a"});
  EXPECT_EQ(run.status, 2);
}

}  // namespace
}  // namespace nccl_ha::tests
