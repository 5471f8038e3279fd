// Two NICs as one device under the built plugin: who carries what, by the interfaces' own counts.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include "tests/support/tool_runner.h"

namespace nccl_ha::tests {
namespace {

constexpr const char* every_byte_right = "Out of bounds values : 0 OK";

/// Runs a shell line on every host of a lab.
ToolRun in_lab(const std::string& topology, const std::vector<std::string>& settings,
               const std::string& command) {
  static int labs = 0;
  std::vector<std::string> arguments{
      "lab",       "run",
      topology,    "-q",
      "--timeout", "110",
      "--name",    "rails" + std::to_string(getpid()) + "." + std::to_string(labs++)};
  for (const std::string& setting : settings) {
    arguments.insert(arguments.end(), {"--env", setting});
  }
  arguments.insert(arguments.end(), {"--env", "HA_NCCL_FABRIC=datagram", "--", "bash", "-c",
                                     "exec 2>&1; " + command});
  return run_program(NHA_TOOL_FILE, arguments, {}, std::chrono::seconds(120));
}

/// What the interfaces of the hosts have sent: "h1.sin" and so on.
std::map<std::string, uint64_t> sent_by(const ToolRun& run) {
  std::map<std::string, uint64_t> sent;
  const std::regex line(R"(\[(h\d+)\] sent (\w+) (\d+))");
  for (std::sregex_iterator it(run.out.begin(), run.out.end(), line), end; it != end; ++it) {
    sent[(*it)[1].str() + "." + (*it)[2].str()] = std::stoull((*it)[3]);
  }
  return sent;
}
constexpr const char* tell_sent =
    "; status=$?; for i in sout sin; do echo sent $i "
    "$(cat /sys/class/net/$i/statistics/tx_bytes); done; exit $status";

std::vector<std::string> islands(std::vector<std::string> more = {}) {
  more.insert(more.end(), {"MPIB_HCA_SOUT=sout", "MPIB_HCA_SUP=sin", "HA_NCCL_IFNAME=sout,sin"});
  return more;
}

/// Acknowledgements, heartbeats, control streams; each operation moves megabytes.
constexpr uint64_t little = 500'000;
constexpr uint64_t much = 5'000'000;

/// Seed 000, table 3.4.  In the ring h1 and h3 send to their neighbours in the island, h2 and h4 to
/// the other island.
TEST(RailsInLab, VanillaModeUsesSupWithinIslandsAndSoutBetween) {
  const ToolRun run = in_lab(
      "islands-2", islands(),
      std::string("nccl-ha perf all_reduce -b 1M -e 1M -w 0 -I 10 --timeout 90") + tell_sent);
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(count(run.out, every_byte_right), 1U) << run.out;
  const auto sent = sent_by(run);
  ASSERT_EQ(sent.size(), 8U) << run.out;
  for (const char* host : {"h1", "h3"}) {
    EXPECT_GT(sent.at(std::string(host) + ".sin"), much) << run.out;
    EXPECT_LT(sent.at(std::string(host) + ".sout"), little) << run.out;
  }
  for (const char* host : {"h2", "h4"}) {
    EXPECT_GT(sent.at(std::string(host) + ".sout"), much) << run.out;
    EXPECT_LT(sent.at(std::string(host) + ".sin"), little) << run.out;
  }
}

/// Islands of one host: nothing but the kernel ever sends there.
TEST(RailsInLab, BetweenIslandsNothingTakesSup) {
  const ToolRun run =
      in_lab("islands-1", islands(),
             std::string("ip6tables -A OUTPUT -o sin -j DROP 2>/dev/null; "
                         "nccl-ha perf all_reduce -b 1M -e 1M -w 0 -I 10 --timeout 90") +
                 tell_sent);
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(count(run.out, every_byte_right), 1U) << run.out;
  const auto sent = sent_by(run);
  ASSERT_EQ(sent.size(), 4U) << run.out;
  for (const char* host : {"h1", "h2"}) {
    EXPECT_GT(sent.at(std::string(host) + ".sout"), much) << run.out;
    EXPECT_LT(sent.at(std::string(host) + ".sin"), 2000U) << run.out;
  }
}

TEST(RailsInLab, SoutTakesOverWithinAnIslandWhenSupFails) {
  const ToolRun run =
      in_lab("islands-2", islands({"HA_NCCL_FAILBACK_MS=300"}),
             std::string("nccl-ha perf all_reduce -b 256K -e 256K -w 0 -I 20 --timeout 90 --fault "
                         "'cut h1.sin --for 1s@500ms, slow sout 8gbit@7s'") +
                 tell_sent);
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(count(run.out, every_byte_right), 1U) << run.out;
  const auto sent = sent_by(run);
  EXPECT_GT(sent.at("h1.sout"), much) << run.out;
  EXPECT_GT(sent.at("h1.sin"), sent.at("h1.sout")) << run.out;
  EXPECT_GE(count(run.out, " moved to path "), 1U) << run.out;
  EXPECT_GE(count(run.out, " moved back to path "), 1U) << run.out;
}

/// Bytes per second of one connection between two hosts.
double rate(const std::string& one, const std::string& other,
            const std::vector<std::string>& settings, int transfers = 16) {
  const ToolRun run = in_lab("pair", settings,
                             "if [ $RANK = 0 ]; then nccl-ha lab slow rail0 " + one +
                                 " && nccl-ha lab slow rail1 " + other +
                                 " || exit 9; fi >/dev/null; exec nccl-ha perf pt2pt --reuse -c 0 "
                                 "-b 8M -e 8M -w " +
                                 std::to_string(transfers / 4) + " -I " +
                                 std::to_string(transfers) + " --timeout 90");
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  const std::regex line(R"(8388608 +\d+ +\w+ +\w+ +-?\d+ +([0-9.]+))");
  std::smatch found;
  return std::regex_search(run.out, found, line) ? 8388608e6 / std::stod(found[1]) : 0;
}

/// The links, not the processors, are the limit.  Equal shares would make 0.67 of the sum, or less.
TEST(RailsInLab, UnequalRailsAddUpWithoutAnAgent) {
  const std::vector<std::string> both{"MPIB_HCA_SOUT=rail0", "MPIB_HCA_SUP=rail1", "MPIB_MODE=1",
                                      "MPIB_ISLAND_PREFIX_LEN=0"};
  const auto median = [](const std::function<double()>& measure) {
    std::array<double, 3> all{measure(), measure(), measure()};
    std::sort(all.begin(), all.end());
    return all[1];
  };
  const double first =
      median([] { return rate("400mbit", "400mbit", {"HA_NCCL_IFNAME=rail0"}, 40); });
  ASSERT_GT(first, 30e6);
  for (const char* slower : {"200mbit", "40mbit"}) {
    const double second = rate("400mbit", slower, {"HA_NCCL_IFNAME=rail1"}, 4);
    // A sixth of a second may be lost before rates are known.
    const double sum = median([&] { return rate("400mbit", slower, both, 40); });
    EXPECT_GT(second, 3e6) << slower;
    EXPECT_LT(second, 0.6 * first) << slower;
    EXPECT_GT(sum, 0.97 * (first + second))
        << slower << ": " << first << " and " << second << " make " << sum;
    RecordProperty(slower, std::to_string(sum / (first + second)));
  }
}

TEST(RailsInLab, OneRailCutUnderLoadAndHealed) {
  const ToolRun run = in_lab(
      "pair",
      {"MPIB_HCA_SOUT=rail0", "MPIB_HCA_SUP=rail1", "MPIB_MODE=1", "MPIB_ISLAND_PREFIX_LEN=0"},
      "nccl-ha perf all_reduce -b 1M -e 1M -w 0 -I 20 --timeout 90 --fault "
      "'cut rail1 --silent --for 1s@500ms, cut rail0 --silent --for 1s@3s, slow rail1 8gbit@6s'");
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(count(run.out, every_byte_right), 1U) << run.out;
  EXPECT_GE(count(run.out, " is back after "), 4U) << "both rails, at both ends: " << run.out;
}

}  // namespace
}  // namespace nccl_ha::tests
