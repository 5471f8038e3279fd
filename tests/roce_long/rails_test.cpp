// Two RDMA devices as one, in guests: who carries what, by the count of each interface.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <map>
#include <regex>
#include <string>
#include <utility>

#include "tests/support/guest_lab.h"

namespace nccl_ha::tests {
namespace {

constexpr const char* every_byte_right = "Out of bounds values : 0 OK";
constexpr uint64_t moved = 24U << 20;

/// Runs what h1 sends to h2, and tells what each rail of a host has sent by then.
/// carry NAME SETTING...
constexpr const char* carry = R"sh(exec 2>&1
export MPIB_HCA_SOUT=rxe0 MPIB_HCA_SUP=rxe1
sent() { cat /sys/class/net/$1/statistics/tx_bytes; }
carry() {
  local name=$1; shift
  local sout=$(sent rail0) sup=$(sent rail1)
  env "$@" nccl-ha perf pt2pt --reuse -b 1M -e 1M -w 0 -I 24 --timeout 100 || exit 8
  echo "carried $name $(( $(sent rail0) - sout )) $(( $(sent rail1) - sup ))"
}
)sh";

/// The rank that is given hints has an agent, and a switch that says one thing all the time.
/// hinted NAME SETTINGS LEVELS SETTING...
constexpr const char* hinted = R"sh(
nccl-ha agent make-key /tmp/keys || exit 7
hinted() {
  local name=$1 settings=$2 levels=$3; shift 3
  local dir=/tmp/agent.$name
  if [ $RANK = 0 ]; then
    echo '{"directory": "'$dir'", "page": ""'"$settings"', "telemetry":' >$dir.json
    echo '{"listen": "127.0.0.1:7471", "keys": "/tmp/keys"}}' >>$dir.json
    nccl-ha agent --settings $dir.json & agent=$!
    until nccl-ha agent status --dir $dir >/dev/null 2>&1; do
      kill -0 $agent || exit 6
      sleep 0.1
    done
    nccl-ha agent simulate-switch "0s sup 0; 0s sout 0; 0s $levels; 200s sup 0" --keys /tmp/keys &
    switch=$!
  fi
  carry $name MPIB_MODE=1 MPIB_AGENT_DIR=$dir "$@"
  if [ $RANK = 0 ]; then
    kill $switch $agent; wait
  fi
}
)sh";

using Sent = std::pair<uint64_t, uint64_t>;  ///< over SOUT and over SUP

/// By name, what h1 has sent.
std::map<std::string, Sent> sent_by_h1(const ToolRun& run) {
  std::map<std::string, Sent> sent;
  const std::regex line(R"(\[h1\] carried (\w+) (\d+) (\d+))");
  for (std::sregex_iterator it(run.out.begin(), run.out.end(), line), end; it != end; ++it) {
    sent[(*it)[1].str()] = {std::stoull((*it)[2]), std::stoull((*it)[3])};
  }
  return sent;
}

double share(const Sent& sent) {
  return static_cast<double>(sent.second) / static_cast<double>(sent.first + sent.second);
}

/// Heartbeats, acknowledgements of the kernel's; each run moves 24 MiB.
constexpr uint64_t little = 1'000'000;

class RoceRails : public testing::TestWithParam<const char*> {
 protected:
  /// Two guests with two rails each.
  static ToolRun run(const std::string& script) {
    return guests(
        NHA_TOOL_FILE,
        {"--rails", "2", "--no-check", "--env", std::string("HA_NCCL_FABRIC=") + GetParam()},
        script);
  }
};
INSTANTIATE_TEST_SUITE_P(Fabrics, RoceRails, testing::Values("verbs", "ud"),
                         [](const auto& one) { return std::string(one.param); });

/// Seed 000, table 3.4.  The rails' addresses are 198.18.RAIL.HOST: by 24 bits both hosts are one
/// island, by 32 bits one each.
TEST_P(RoceRails, EachModeTakesItsRails) {
  const ToolRun ran = run(std::string(carry) +
                          "carry within MPIB_MODE=0\n"
                          "carry between MPIB_MODE=0 MPIB_ISLAND_PREFIX_LEN=32\n"
                          "carry both MPIB_MODE=1\n");
  EXPECT_EQ(ran.status, 0) << ran.out << ran.err;
  EXPECT_EQ(count(ran.out, every_byte_right), 3U) << ran.out;
  EXPECT_GE(count(ran.out, "rxe0+rxe1"), 3U) << "they were no device of two rails: " << ran.out;
  const auto sent = sent_by_h1(ran);
  ASSERT_EQ(sent.size(), 3U) << ran.out;
  EXPECT_GE(sent.at("within").second, moved) << ran.out;
  EXPECT_LT(sent.at("within").first, little) << ran.out;
  EXPECT_GE(sent.at("between").first, moved) << ran.out;
  EXPECT_LT(sent.at("between").second, 2000U) << "neighbour discovery at most: " << ran.out;
  EXPECT_GT(share(sent.at("both")), 0.2) << ran.out;
  EXPECT_LT(share(sent.at("both")), 0.8) << ran.out;
}

TEST_P(RoceRails, HintsAreTheSharesOfBytesAndPressureEmptiesARail) {
  std::string script = std::string(carry) + hinted;
  for (const char* hint : {"0", "256", "512", "1024"}) {
    script += std::string("hinted h") + hint + R"( ', "policy": {"floor": )" + hint +
              R"(, "ceiling": )" + hint + "}' 'sup 0'\n";
  }
  script +=
      "hinted even '' 'sup 0'\n"
      "hinted congested '' 'sup 225'\n"
      "hinted pressed '' 'sup 250'\n";
  const ToolRun ran = run(script);
  EXPECT_EQ(ran.status, 0) << ran.out << ran.err;
  EXPECT_EQ(count(ran.out, every_byte_right), 7U) << ran.out;
  const auto sent = sent_by_h1(ran);
  ASSERT_EQ(sent.size(), 7U) << ran.out;
  for (const int hint : {0, 256, 512, 1024}) {
    const Sent& of = sent.at("h" + std::to_string(hint));
    EXPECT_GE(of.first + of.second, moved);
    EXPECT_NEAR(share(of), hint / 1024.0, 0.02) << hint << "\n" << ran.out;
    std::printf("%s: hint %4d: %.4f of the bytes over SUP\n", GetParam(), hint, share(of));
  }
  EXPECT_NEAR(share(sent.at("even")), 0.5, 0.05) << ran.out;
  EXPECT_LT(share(sent.at("congested")), 0.4) << ran.out;
  EXPECT_LT(share(sent.at("pressed")), 0.02) << ran.out;
}

/// A rail that goes takes nothing along, and both carry again when it is back.
TEST_P(RoceRails, OneRailCutUnderLoadAndHealed) {
  const ToolRun ran =
      run("exec 2>&1; export MPIB_HCA_SOUT=rxe0 MPIB_HCA_SUP=rxe1 MPIB_MODE=1; exec nccl-ha perf "
          "all_reduce -b 512K -e 512K -w 0 -I 60 --timeout 150 --fault 'cut rail1 --for 2s@2s, cut "
          "rail0 --for 2s@9s'");
  EXPECT_EQ(ran.status, 0) << ran.out << ran.err;
  EXPECT_EQ(count(ran.out, every_byte_right), 1U) << ran.out;
  EXPECT_GE(count(ran.out, " is down: "), 2U) << ran.out;
  EXPECT_GE(count(ran.out, " is back after "), 2U) << ran.out;
}

}  // namespace
}  // namespace nccl_ha::tests
