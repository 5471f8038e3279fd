// What an operator may get wrong: each is refused with a message that says what, where and what to
// do, with a status that is documented, and nothing is left over.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/temporary_folder.h"
#include "tests/support/tool_runner.h"

namespace nccl_ha::tests {
namespace {

using nlohmann::json;

struct Bad {
  const char* words;  ///< of the command line, separated by blanks; @ stands for an empty word
  const char* said;   ///< on standard error
  int status = 2;
};

std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words;
  std::istringstream in(line);
  for (std::string word; in >> word;) {
    words.push_back(word == "@" ? "" : word);
  }
  return words;
}

class BadInput : public ::testing::Test {
 protected:
  void expect(const Bad& bad, const Environment& environment = {}) {
    expect_of(NHA_TOOL_FILE, "nccl-ha", bad, environment);
  }
  void expect_of(const std::string& program, const std::string& name, const Bad& bad,
                 const Environment& environment = {}) {
    SCOPED_TRACE(bad.words);
    Environment whole = environment;
    whole.emplace_back("TMPDIR", folder_.path());
    const ToolRun run = run_program(program, words_of(bad.words), whole);
    EXPECT_EQ(run.status, bad.status) << run.out << run.err;
    EXPECT_NE(run.err.find(bad.said), std::string::npos) << run.err;
    EXPECT_TRUE(run.err.starts_with(name)) << "who says it: " << run.err;
    EXPECT_EQ(run.err.find("CLI::"), std::string::npos) << run.err;
    EXPECT_EQ(run.err.find("terminate"), std::string::npos) << run.err;
    EXPECT_TRUE(run.out.empty()) << run.out;
    ++count_;
  }
  template <size_t n>
  void expect_all(const Bad (&rows)[n]) {
    for (const Bad& row : rows) {
      expect(row);
    }
  }
  /// Nothing runs, and nothing lies where labs keep their state.
  void TearDown() override {
    const ToolRun labs = run_program(NHA_TOOL_FILE, {"lab", "list"});
    EXPECT_EQ(labs.out.find("bad-input"), std::string::npos) << labs.out;
    EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  }

  TemporaryFolder folder_;
  size_t count_ = 0;
};

TEST_F(BadInput, CommandsAndOptions) {
  constexpr Bad rows[] = {
      {"", "A subcommand is required"},
      {"prf", "there is no command 'prf' here; did you mean perf?"},
      {"chekc", "did you mean check?"},
      {"inof", "did you mean info?"},
      {"labs", "did you mean lab?"},
      {"relais", "did you mean relay?"},
      {"agnet", "did you mean agent?"},
      {"frobnicate", "there is no command 'frobnicate' here"},
      {"--verison", "did you mean --version?"},
      {"--frobnicate", "there is no option '--frobnicate' here"},
      {"-z", "there is no option '-z' here"},
      {"check --jsno", "did you mean --json?"},
      {"check --stric", "did you mean --strict?"},
      {"check extra", "there is no argument 'extra' here"},
      {"info extra", "there is no argument 'extra' here"},
      {"info --marcdown", "did you mean --markdown?"},
      {"lab", "A subcommand is required"},
      {"lab ct", "did you mean cut?"},
      {"lab strat", "there is no command 'strat' here"},
      {"lab show --jsn", "did you mean --json?"},
      {"relay statsu", "did you mean status?"},
      {"agent statu", "did you mean status?"},
      {"perf", "operation is required"},
      {"perf all_reduce --iterz 4", "did you mean --iters?"},
      {"perf all_reduce extra", "there is no argument 'extra' here"},
      {"perf all_reduce --iters", "--iters: 1 required"},
      {"perf all_reduce --ranks x", "x is not a number from 1 to 512 ranks"},
  };
  expect_all(rows);
}

TEST_F(BadInput, Perf) {
  constexpr Bad rows[] = {
      {"perf all_redcue", "did you mean all_reduce?"},
      {"perf allreduce", "did you mean all_reduce?"},
      {"perf frobnicate", "choose one of all_reduce"},
      {"perf all_reduce -d flaot", "did you mean float?"},
      {"perf all_reduce -d complex", "choose one of int8"},
      {"perf all_reduce -o smu", "did you mean sum?"},
      {"perf all_reduce -o xor", "choose one of sum"},
      {"perf all_reduce -b x", "'x' is not a size: it does not begin with a number"},
      {"perf all_reduce -b 8Q", "'8Q' is not a size: unknown unit"},
      {"perf all_reduce -b -8", "is not a size"},
      {"perf all_reduce -b @", "'' is not a size"},
      {"perf all_reduce -b 99999999999999999999", "too large"},
      {"perf all_reduce -e 18446744073709551615G", "too large"},
      {"perf all_reduce -b 16 -e 8", "--minbytes 16 is larger than --maxbytes 8"},
      {"perf all_reduce -f 1", "--stepfactor must be at least 2"},
      {"perf all_reduce -b 0 -e 1G -i 1", "more than 100000 sizes: raise --stepbytes"},
      {"perf all_reduce --ranks 1", "at least 2 ranks are needed"},
      {"perf all_reduce --ranks 0", "--ranks: 0 is not a number from 1 to 512 ranks"},
      {"perf all_reduce --ranks 513", "512"},
      {"perf all_reduce -n 0", "--iters"},
      {"perf all_reduce --seconds 0", "--seconds: 0 is not a number from 0.001 to 1000000 seconds"},
      {"perf all_reduce --seconds 1 -n 5", "excludes"},
      {"perf all_reduce --seconds 100 --timeout 60", "take 2200 s and more: raise --timeout"},
      {"perf all_reduce --baseline /does/not/exist", "/does/not/exist: cannot be opened"},
      {"perf all_reduce --baseline /etc/passwd", "/etc/passwd: no JSON"},
      {"perf all_reduce --ranks 129 -d bfloat16",
       "exact, and so can be checked, with at most 128 ranks"},
      {"perf all_reduce -d f8e4m3", "choose one of int8, uint8"},
      {"perf all_reduce -a 1",
       "-a is an option of nccl-tests: the time shown is always the slowest"},
      {"perf all_reduce -R 1", "-R is an option of nccl-tests: memory is always registered"},
      {"perf all_reduce -J x", "-J is an option of nccl-tests: results as JSON: --json"},
      {"perf all_reduce -N 2", "-N is an option of nccl-tests: turns at each size: --rounds"},
      {"perf all_reduce -w -1", "--warmup"},
      {"perf all_reduce --depth 0", "--depth 0 must be 1 to 32"},
      {"perf all_reduce --depth 33", "--depth 33 must be 1 to 32"},
      {"perf all_reduce --conns 0", "--conns 0 must be 1 to 64"},
      {"perf all_reduce --conns 65", "--conns 65 must be 1 to 64"},
      {"perf sendrecv --group 0", "--group 0 must be 1 to 8"},
      {"perf sendrecv --group 9", "--group 9 must be 1 to 8"},
      {"perf all_reduce --group 2", "--group works with sendrecv, alltoall and pt2pt"},
      {"perf all_reduce --bidirectional", "--bidirectional works with pt2pt only"},
      {"perf all_reduce --reuse", "--reuse works with pt2pt and sendrecv only"},
      {"perf all_reduce --pause 5", "--pause works with latency only"},
      {"perf all_reduce --send-first", "--send-first works with latency only"},
      {"perf broadcast -r 2", "--root 2 does not exist: ranks are 0 to 1"},
      {"perf all_reduce --step 3", "--step 3 must be a multiple of 4"},
      {"perf all_reduce --step 0", "--step 0 must be"},
      {"perf all_reduce --step 2G", "at most 1G"},
      {"perf all_reduce --env X", "'X' is not of the form NAME=VALUE"},
      {"perf all_reduce --env =x", "'=x' is not of the form NAME=VALUE"},
      {"perf all_reduce --env-against X=1", "--env-against requires --against"},
      {"perf all_reduce --timeout 0", "--timeout"},
      {"perf all_reduce --neighbours 2000", "--neighbours"},
      {"perf all_reduce --fault cut", "--fault"},
      {"perf latency --fault cut", "--fault"},
      {"perf all_reduce --hosts @", "--hosts is empty"},
      {"perf all_reduce --hosts a", "give 2 to 4096 hosts, not 1"},
      {"perf all_reduce -g 1", "-g is an option of nccl-tests: there are no GPUs here"},
      {"perf all_reduce -t 2", "-t is an option of nccl-tests: each rank is a process"},
      {"perf all_reduce -G 1", "-G is an option of nccl-tests"},
      {"perf all_reduce -z 1", "-z is an option of nccl-tests"},
      {"perf all_reduce -c 2", "2 is not a number from 0 to 1"},
      {"perf all_reduce --rounds 0", "0 is not a number from 1 to 100000 rounds"},
      {"perf all_reduce --abi-against 9", "requires --against"},
      {"perf all_reduce --fault cut@1s -b 8 -e 8", "--fault"},
  };
  expect_all(rows);
}

TEST_F(BadInput, Check) {
  constexpr Bad rows[] = {
      {"check --hosts @", "--hosts is empty: name 2 hosts or more"},
      {"check --hosts= ", "--hosts"},
      {"check --hosts a", "give 2 to 4096 hosts, not 1"},
      {"check --hosts a,a", "a is there twice"},
      {"check --hosts a,", "'' is not of the form NAME or NAME=ADDRESS"},
      {"check --hosts a,b;rm", "'b;rm' is not of the form"},
      {"check --hosts a,$(x)", "'$(x)' is not of the form"},
      {"check --hosts -oProxyCommand=x,b", "--hosts"},
      {"check --hosts a,b=", "'b=' is not of the form"},
      {"check --hosts n[1-", "'n[1-' cannot be read"},
      {"check --hosts n[3-1]", "'n[3-1]' cannot be read"},
      {"check --hosts n[a-b]", "'n[a-b]' cannot be read"},
      {"check --hosts n[1-99999]", "at most 4096 hosts"},
      {"check --hosts n[1-2],n1", "n1 is there twice"},
      {"check --hosts n[1-3]=10.0.0.[1-2]", "cannot be read"},
      {"check --hosts job", "this is no job of Slurm, PBS or LSF"},
      {"check --hosts-file /does/not/exist", "cannot read the hosts in /does/not/exist"},
      {"check --hosts-file /dev/null", "give 2 to 4096 hosts, not 0"},
      {"check --hosts-file /etc", "/etc"},
      {"check --hosts a,b --hosts-file /dev/null", "excludes"},
      {"check --hosts a,b --ssh /does/not/exist", "cannot run /does/not/exist"},
      {"check --hosts a,b --ssh false", "nothing could be started on"},
      {"check --hosts a,b --ssh true", "nothing could be started on"},
      {"check --hosts a,b --program a;b", "cannot be passed to a remote shell"},
      {"check --hosts a,b --port 80", "--port"},
      {"check --hosts a,b --port 70000", "--port"},
      {"check --patience 0", "--patience"},
      {"check --patience x", "--patience"},
      {"check --timeout 0", "--timeout"},
      {"check --timeout -1", "--timeout"},
      {"check --timeout 1e9", "--timeout"},
      {"check --timeout nan", "--timeout"},
  };
  expect_all(rows);
  expect({"check --hosts a,b --ssh true", "'LD_LIBRARY_PATH=$(reboot)' cannot be passed"},
         {{"LD_LIBRARY_PATH", "$(reboot)"}});
  expect({"check", "PMI_RANK=x is not a number"}, {{"PMI_RANK", "x"}, {"PMI_SIZE", "2"}});
  expect({"check", "RANK=5 does not fit WORLD_SIZE=2"}, {{"RANK", "5"}, {"WORLD_SIZE", "2"}});
  expect({"check --rendezvous nowhere", "is not of the form HOST:PORT"},
         {{"RANK", "0"}, {"WORLD_SIZE", "2"}});
  expect({"check --rendezvous h:99999", "is not a number from 0 to 65534"},
         {{"RANK", "0"}, {"WORLD_SIZE", "2"}});
}

TEST_F(BadInput, Info) {
  constexpr Bad rows[] = {
      {"info --pid 0", "--pid"},
      {"info --pid x", "--pid"},
      {"info --pid -4", "--pid"},
      {"info --pid 2147483646", "there is no process 2147483646"},
      {"info --pid 1 --env", "excludes"},
      {"info --svg /tmp/x.svg", "requires"},
      {"info --routes --wait -1", "--wait"},
  };
  expect_all(rows);
  expect({"info --routes", "cannot read the topology file /does/not/exist"},
         {{"NCCL_MESH_TOPOLOGY_FILE", "/does/not/exist"}});
}

TEST_F(BadInput, Simulations) {
  constexpr Bad rows[] = {
      {"--seeed 4", "did you mean --seed?"},
      {"extra", "there is no argument 'extra' here"},
      {"--fabric tcp", "--fabric"},
      {"--kind nothing", "--kind"},
      {"--callers-help 2", "--callers-help"},
      {"--false-verdicts x", "--false-verdicts"},
      {"--seed x", "--seed"},
      {"--mesh --kind paths", "excludes"},
  };
  for (const Bad& row : rows) {
    expect_of(NHA_SIM_FILE, "nha-sim: ", row);
  }
  expect({"sim", "there is no command 'sim' here"});
}

TEST_F(BadInput, Labs) {
  constexpr Bad rows[] = {
      {"lab run", "topology is required"},
      {"lab run pair", "command is required"},
      {"lab run pare --name bad-input -- true", "there is no topology 'pare'", 125},
      {"lab run ring-0 --name bad-input -- true", "ring-0", 125},
      {"lab run ring-99999 --name bad-input -- true", "ring-99999", 125},
      {"lab run pair --name a/b -- true", "a/b", 125},
      {"lab run pair --name bad-input --on h9 -- true", "h9", 125},
      {"lab run pair --name bad-input --script nonsense -- true", "nonsense", 125},
      {"lab run pair --name bad-input --script 0s -- true", "0s", 125},
      {"lab run pair --name bad-input --env =x -- true", "=x", 125},
      {"lab run pair --name bad-input --mtu 100 -- true", "--mtu"},
      {"lab run pair --name bad-input --timeout 0 -- true", "--timeout"},
      {"lab cut rail0 --lab bad-input", "bad-input"},
      {"lab heal rail0 --lab bad-input", "bad-input"},
      {"lab show --lab bad-input", "bad-input"},
      {"lab stop --lab bad-input", "bad-input"},
      {"lab kill h1 --lab bad-input", "bad-input"},
      {"lab enter h1 --lab bad-input -- true", "bad-input", 125},
      {"lab cut", "required"},
      {"lab slow rail0", "required"},
      {"lab lose rail0", "required"},
      {"lab mtu rail0", "required"},
      {"lab enter", "host is required"},
  };
  expect_all(rows);
}

TEST_F(BadInput, Guests) {
  constexpr Bad rows[] = {
      {"--guests 9 --name bad-input -- true", "9", 125},
      {"--topology pare --name bad-input -- true", "there is no topology 'pare'", 125},
      {"--memory 1 -- true", "--memory"},
      {"--cpus 0 -- true", "--cpus"},
      {"--share /does/not/exist -- true", "--share"},
      {"--guests 1", "command is required"},
  };
  for (const Bad& row : rows) {
    expect_of(NHA_GUESTS_FILE, "nha-guests: ", row);
  }
  expect({"lab roce", "there is no command 'roce' here"});
}

TEST_F(BadInput, RelayAndAgent) {
  constexpr Bad rows[] = {
      {"relay make-key", "file is required"},
      {"relay make-key /does/not/exist/key", "/does/not/exist/key"},
      {"relay status extra", "there is no argument 'extra' here"},
      {"agent make-key", "file is required"},
      {"agent make-key /does/not/exist/key", "/does/not/exist/key"},
      {"agent status --dir /does/not/exist", "/does/not/exist"},
      {"agent --settings /does/not/exist --check", "/does/not/exist"},
      {"agent --settings /etc/passwd --check", "/etc/passwd"},
      {"agent simulate-switch", "script is required"},
      {"agent simulate-switch nonsense", "nonsense"},
  };
  expect_all(rows);
  expect({"relay status", "127.0.0.1:1"}, {{"NCCL_MESH_PAGE", "127.0.0.1:1"}});
  expect({"relay", "/does/not/exist"}, {{"NCCL_MESH_KEY_FILE", "/does/not/exist"}});
}

TEST_F(BadInput, SettingsAreRefusedAlikeByWhateverReadsThem) {
  const std::pair<const char*, const char*> settings[] = {
      {"HA_NCCL_PROGRESS_THREADS", "0"},
      {"HA_NCCL_PROGRESS_THREADS", "many"},
      {"HA_NCCL_PROGRESS_CPUS", "3-1"},
      {"HA_NCCL_USE_PROGRESS_THREAD", "yes"},
      {"HA_NCCL_LISTEN_PORTS", "5100-5000"},
      {"HA_NCCL_LISTEN_PORTS", "70000"},
      {"HA_NCCL_RTO_MS", "1"},
      {"HA_NCCL_FABRIC", "rdma"},
      {"HA_NCCL_SOCKET_FAMILY", "ipv4"},
      {"NCCL_SOCKET_FAMILY", "ipv4"},
      {"HA_NCCL_DGRAM_WINDOW", "1000"},
      {"HA_NCCL_DGRAM_MTU", "700"},
      {"HA_NCCL_DGRAM_FAULTS", "drop=2"},
      {"HA_NCCL_IB_ADDR_RANGE", "10.0.0.0/40"},
      {"NCCL_IB_TIMEOUT", "99"},
      {"HA_NCCL_IFNAME", "eth0;eth1"},
      {"NCCL_MESH_RELAY", "on"},
      {"NCCL_MESH_PORT", "0"},
      {"NCCL_MESH_PEERS", "host"},
      {"MPIB_HCA_SUP", "mlx5_1"},
  };
  for (const auto& [name, value] : settings) {
    const std::string said = std::string(name) + "=" + value;
    for (const char* command : {"check", "info", "info --env"}) {
      expect({command, said.c_str()}, {{name, value}});
    }
  }
  EXPECT_EQ(count_, 60U);
}

TEST_F(BadInput, JsonIsOneDocumentWhateverGoesWrong) {
  for (const char* words :
       {"check --json --hosts a", "check --json --frobnicate",
        "check --json --hosts a,b --ssh false", "info --json --pid 2147483646",
        "lab show --json --lab bad-input", "perf frobnicate --json -",
        "perf all_reduce --json - --ranks 1", "relay status --json extra",
        "agent status --json --dir /does/not/exist", "stat --json --pid 2147483646",
        "stat --json --sort frobnicate", "trace summary --json /does/not/exist",
        "trace critical --json /does/not/exist"}) {
    SCOPED_TRACE(words);
    const ToolRun run = run_program(NHA_TOOL_FILE, words_of(words));
    EXPECT_EQ(run.status, 2) << run.err;
    const json document = json::parse(run.out, nullptr, false);
    ASSERT_TRUE(document.is_object()) << run.out;
    EXPECT_EQ(document.value("ok", true), false);
    for (const char* key : {"command", "version", "commit", "date", "error"}) {
      EXPECT_FALSE(document.value(key, "").empty()) << key;
    }
    // The same name as where it works.
    const std::string command = document.value("command", "");
    EXPECT_EQ(std::string(words).substr(0, command.size()), command);
    EXPECT_NE(run.err.find(document["error"].get<std::string>()), std::string::npos) << run.err;
  }
}

TEST_F(BadInput, AFullDiskIsNoticed) {
  for (const char* words :
       {"info", "info --env", "info --markdown", "check --json", "check", "--help",
        "lab list --help", "--version", "info --env --json", "stat", "stat --json --interval 0.05",
        "trace --help", "report --help", "tune --help"}) {
    SCOPED_TRACE(words);
    std::vector<std::string> command{"-c", R"("$0" "$@" > /dev/full)", NHA_TOOL_FILE};
    for (const std::string& word : words_of(words)) {
      command.push_back(word);
    }
    const ToolRun run = run_program("/bin/sh", command);
    EXPECT_EQ(run.status, 2);
    EXPECT_NE(run.err.find("No space left on device"), std::string::npos) << run.err;
    EXPECT_EQ(run.err.find("a mistake of this program"), std::string::npos) << run.err;
  }
}

}  // namespace
}  // namespace nccl_ha::tests
