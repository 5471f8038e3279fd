// What takes too long for every change: tests/long.sh runs it (label roce_long).
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <thread>

#include "tests/support/guest_lab.h"
#include "tests/support/temporary_folder.h"

namespace nccl_ha::tests {
namespace {

// And where one rank is told to use what the other one is told not to, both say so.
TEST(RoceTwoGuests, OperationsAreRightOverRcAndUdAndAForcedFabricThatThePeerLacksIsAnError) {
  const ToolRun run = guests(
      NHA_TOOL_FILE, {},
      "for fabric in verbs ud; do "
      "for op in all_reduce alltoall pt2pt all_gather reduce_scatter broadcast sendrecv; do "
      "HA_NCCL_FABRIC=$fabric nccl-ha perf $op --ranks 2 -b 8 -e 256K -f 8 -I 2 -w 1 || exit 1; "
      "done; done; "
      "if [ $RANK = 1 ]; then export HA_NCCL_FABRIC=verbs; else export HA_NCCL_FABRIC=datagram; "
      "fi; nccl-ha perf pt2pt -b 8 -e 8 -I 1 2>&1 && exit 9; exit 0");
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(count(run.out, "Out of bounds values : 0 OK"), 2 * 7U) << run.out;
  EXPECT_GE(count(run.out, "2 ranks on 2 hosts"), 2 * 7U) << run.out;
  EXPECT_NE(run.err.find("every link was tried"), std::string::npos) << run.err;
  EXPECT_GE(count(run.out, "the peer wants datagrams over UDP, but rxe0 on h2 uses RDMA"), 2U)
      << run.out;
}

// Its memory has to be known to the other device, and flushes go to both.  Emulated processors are
// too slow to be impatient with: only the lost carrier shall move traffic.
TEST(RoceTwoGuests, ARailThatIsGoneForGoodMovesTrafficToTheOtherDevice) {
  const ToolRun run = reduce_in_guests(NHA_TOOL_FILE, "gone", "2",
                                       {"HA_NCCL_IB_FLUSH=1", "HA_NCCL_SOFT_TIMEOUT_MS=5000",
                                        "HA_NCCL_HEARTBEAT_MS=2000", "HA_NCCL_RTO_MS=5000"},
                                       "40", {{"cut", "rail0"}});
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(count(run.out, "Out of bounds values : 0 OK"), 1U) << run.out;
  EXPECT_GE(count(run.out, "port error; check cable and switch"), 2U) << run.out;
  EXPECT_GE(count(run.out, " moved to the shadow path 1: RoCE rxe1"), 2U) << run.out;
  EXPECT_EQ(count(run.out, " is back after "), 0U) << run.out;
}

// Nothing is set against ARP on the wrong port; the second rail's cable goes when the first one is
// back.
TEST(RoceTwoGuests, OfTwoRailsInOneSubnetEitherMayGo) {
  const ToolRun run =
      guests(NHA_TOOL_FILE, {"--topology", "flat-2x2", "--no-check"},
             "exec nccl-ha perf all_reduce -b 256K -e 256K -w 0 -I 60 --timeout 180 -v --fault "
             "'cut rail0 --for 4s@12s..12500ms, cut rail1 --for 4s@24s..24500ms' 2>&1");
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(count(run.out, "Out of bounds values : 0 OK"), 1U) << run.out;
  EXPECT_GE(count(run.out, " stands by: RoCE rxe1:1 198.18.1."), 4U) << run.out;
  EXPECT_GE(count(run.out, " moved to the shadow path 1: RoCE rxe1"), 2U) << run.out;
  EXPECT_GE(count(run.out, " moved back to path 0: RoCE rxe0"), 2U) << run.out;
  EXPECT_EQ(count(run.out, ": stall "), 2U) << run.out;
}

TEST(RoceTwoGuests, ContractHoldsOverRcAndUd) {
  // h2 has the second side; h1 runs the suite and ends it.
  const std::string tests = beside(NHA_TOOL_FILE, "nha_contract_tests");
  const std::string peer = beside(NHA_TOOL_FILE, "nha_contract_peer");
  const ToolRun run = guests(
      NHA_TOOL_FILE, {"--rails", "1"},
      "if [ $RANK = 1 ]; then exec " + peer + " 7000; fi; " + "NHA_CONTRACT_PEER=198.19.0.2:7000 " +
          tests + " --gtest_filter='*verbs*'; s=$?; " + peer + " quit 198.19.0.2 7000; exit $s");
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  expect_whole_contract(run, tests, {"verbs_rc", "verbs_ud", "verbs_ud_lossy"});
}

TEST(RoceOneGuest, ContractHoldsOverLossyUd) {
  const std::string tests = beside(NHA_TOOL_FILE, "nha_contract_tests");
  const ToolRun run = guests(NHA_TOOL_FILE, {"--guests", "1", "--cpus", "2", "--no-check"},
                             "exec " + tests + " --gtest_filter='*verbs_ud_lossy'");
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  expect_whole_contract(run, tests, {"verbs_ud_lossy"});
}

constexpr const char* verified = "Out of bounds values : 0 OK";

/// Faults that a job survives (docs/failover.md has the table).
struct Survivable {
  const char* name;
  const char* rails;
  std::vector<std::string> settings;
  std::vector<std::vector<std::string>> cuts;
  const char* trace;  ///< what the fault left in the output
};

class RoceFaults : public testing::TestWithParam<Survivable> {};

TEST_P(RoceFaults, CostTimeOnly) {
  const Survivable& fault = GetParam();
  const ToolRun run =
      reduce_in_guests(NHA_TOOL_FILE, fault.name, fault.rails, fault.settings, "80", fault.cuts);
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(count(run.out, verified), 1U) << run.out;
  EXPECT_GE(count(run.out, fault.trace), 1U) << run.out;
}

INSTANTIATE_TEST_SUITE_P(
    All, RoceFaults,
    testing::Values(
        Survivable{"flap1", "1", {}, {{"cut", "rail0", "--for", "200ms"}}, "port error"},
        Survivable{"flap2", "2", {}, {{"cut", "rail0", "--for", "200ms"}}, "port error"},
        Survivable{"there",
                   "2",
                   {},
                   {{"cut", "rail0", "--silent", "--from", "h1"}},
                   " moved to the shadow"},
        Survivable{"back",
                   "2",
                   {},
                   {{"cut", "rail0", "--silent", "--from", "h2"}},
                   " moved to the shadow"},
        Survivable{"both", "2", {}, {{"cut", "rail0", "--silent"}}, " moved to the shadow"},
        Survivable{"long1",
                   "1",
                   {},
                   {{"cut", "rail0", "--for", "10s"}, {"cut", "mgmt", "--for", "10s"}},
                   " is back after "},
        Survivable{"long2",
                   "2",
                   {"HA_NCCL_ENABLE_FAILBACK=1", "HA_NCCL_FAILBACK_MS=500"},
                   {{"cut", "rail0", "--for", "3s"}},
                   " moved back to path 0"},
        Survivable{"ud", "2", {"HA_NCCL_FABRIC=ud"}, {{"cut", "rail0"}}, " moved to the shadow"},
        Survivable{"udp", "1", {}, {{"cut", "rail0"}}, " moved to the shadow path 1: datagram "},
        Survivable{"udp_and_back",
                   "1",
                   {"HA_NCCL_FAILBACK_MS=500"},
                   {{"cut", "rail0", "--silent", "--for", "3s"}},
                   " moved back to path 0"},
        Survivable{"udp_after_two",
                   "2",
                   {},
                   {{"cut", "rail0"}, {"cut", "rail1"}},
                   " ms: datagram 198.19.0."}),
    [](const auto& instance) { return std::string(instance.param.name); });

TEST(RoceTwoGuests, ASilentCutBeyondTheBudgetIsAnErrorInTime) {
  const auto begin = std::chrono::steady_clock::now();
  const ToolRun run = reduce_in_guests(
      NHA_TOOL_FILE, "silent", "1", {"HA_NCCL_RETRY_BUDGET_MS=2000", "HA_NCCL_SHADOW_DATAGRAMS=0"},
      "1000000", {{"cut", "rail0", "--silent"}});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(90));
  EXPECT_EQ(run.status, 1) << run.out << run.err;
  // Each side's error says which time was over, and what the path failed of: the NIC's verdict or a
  // heartbeat's, whichever came first.
  const std::regex error(
      "rank [01] [^\n]* failed: no path came back within 2000 ms \\(HA_NCCL_RETRY_BUDGET_MS\\); "
      "the last failed with: [^\n]*(no heartbeat for|the peer acknowledges nothing any more)");
  for (const char* rank : {"rank 0 ", "rank 1 "}) {
    bool named = false;
    for (std::sregex_iterator at(run.out.begin(), run.out.end(), error), end; at != end; ++at) {
      named = named || at->str().starts_with(rank);
    }
    EXPECT_TRUE(named) << rank << run.out;
  }
  EXPECT_GE(count(run.out, "ncclRemoteError"), 2U) << "on both sides: " << run.out;
}

/// A host that loses its power says nothing to anybody.  The other side ends HA_NCCL_HEARTBEAT_MS,
/// three times HA_NCCL_RTO_MS and HA_NCCL_RETRY_BUDGET_MS later (docs/failover.md).
constexpr auto dead_host = std::chrono::milliseconds(200 + 3 * 1000 + 5000);
/// Guests of a busy machine stand still now and then, and take time to end.
constexpr auto slack = std::chrono::seconds(20);

struct PowerLoss {
  const char* name;
  const char* host;     ///< the one without power
  const char* traffic;  ///< of nccl-ha perf
  const char* told;     ///< what the other side says once: an idle caller asks for nothing, it logs
  uint64_t carried;     ///< bytes on the rail, by which it is under way
};

class RoceHostWithoutPower : public testing::TestWithParam<PowerLoss> {};

TEST_P(RoceHostWithoutPower, EndsTheOtherSideInTime) {
  const PowerLoss& loss = GetParam();
  BackgroundLab lab(NHA_TOOL_FILE, loss.name + std::to_string(getpid()),
                    {"guests", "--rails", "1", "--timeout", guests_timeout, "--no-check", "--env",
                     "HA_NCCL_RETRY_BUDGET_MS=5000", "--", "bash", "-c",
                     std::string("nccl-ha perf ") + loss.traffic + " 2>&1"},
                    guests_limit);
  ASSERT_TRUE(lab.carried("rail0", loss.carried));
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(lab.ask({"kill", loss.host}).status, 0);
  const ToolRun run = lab.wait();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, dead_host + slack);
  EXPECT_GE(count(run.out, loss.told), 1U) << run.out << run.err;
  EXPECT_NE(run.err.find(std::string(loss.host) + " killed"), std::string::npos) << run.err;
}

INSTANTIATE_TEST_SUITE_P(
    All, RoceHostWithoutPower,
    testing::Values(
        PowerLoss{"busy_h1", "h1", "all_reduce -b 1M -e 1M -c 0 -I 1000000 --timeout 200",
                  "gave ncclRemoteError", 12'000'000},
        PowerLoss{"busy_h2", "h2", "all_reduce -b 1M -e 1M -c 0 -I 1000000 --timeout 200",
                  "gave ncclRemoteError", 12'000'000},
        // What is carried after the first message are heartbeats. The program ends when its time is
        // up; by then its connections have.
        PowerLoss{"idle_h1", "h1", "latency -b 8 -e 8 -w 0 -I 2 --pause 190000000 --timeout 20",
                  "failed: no path came back within 5000 ms", 6000},
        PowerLoss{"idle_h2", "h2", "latency -b 8 -e 8 -w 0 -I 2 --pause 190000000 --timeout 20",
                  "failed: no path came back within 5000 ms", 6000}),
    [](const auto& instance) { return std::string(instance.param.name); });

/// How often the rail is looked at meanwhile.

class RoceWithoutManagement : public testing::TestWithParam<int> {};

// Control streams lie there.  A kernel gives one up within a minute or so, each end by itself.
TEST_P(RoceWithoutManagement, NothingHappensToTheJob) {
  const auto away = std::chrono::seconds(GetParam());
  BackgroundLab lab(
      NHA_TOOL_FILE, "mgmt" + std::to_string(GetParam()) + std::to_string(getpid()),
      {"guests", "--rails", "1", "--timeout", guests_timeout, "--no-check", "--", "bash", "-c",
       "nccl-ha perf all_reduce -b 256K -e 256K -c 0 -I 1000000 --timeout 230 2>&1"},
      guests_limit);
  ASSERT_TRUE(lab.carried("rail0", 5'000'000));
  ASSERT_EQ(lab.ask({"cut", "mgmt", "--silent"}).status, 0);
  const auto end = std::chrono::steady_clock::now() + away;
  uint64_t before = lab.carried("rail0");
  while (std::chrono::steady_clock::now() < end) {
    ASSERT_TRUE(lab.carried("rail0", before + 1'000'000))
        << "data stands still without the management network";
    before = lab.carried("rail0");
  }
  ASSERT_EQ(lab.ask({"heal", "mgmt"}).status, 0);
  // The other end's reset or close comes now, and control streams are made anew.
  ASSERT_TRUE(lab.carried("rail0", before + 20'000'000));
  ASSERT_EQ(lab.ask({"stop"}).status, 0);
  const ToolRun run = lab.wait();
  // Path 1 stands by over the management network itself.
  for (const char* trouble : {"path 0 of ", "moved to the shadow", " failed: ", "gave nccl"}) {
    EXPECT_EQ(count(run.out, trouble), 0U) << run.out << run.err;
  }
}

INSTANTIATE_TEST_SUITE_P(All, RoceWithoutManagement, testing::Values(10, 58, 62, 120));

/// What a process may lock, in KiB: room for the buffers of one device and all small things, but
/// not for the buffers of a second one.
constexpr const char* locked_kib = "60000";

// The second device stands by and cannot take the buffers: the flap is waited out.
TEST(RoceTwoGuests, AFlapIsSurvivedWhereTheSecondDeviceCannotTakeTheMemory) {
  BackgroundLab lab(NHA_TOOL_FILE, "memlock" + std::to_string(getpid()),
                    {"guests", "--rails", "2", "--timeout", guests_timeout, "--no-check", "--env",
                     "HA_NCCL_SHADOW_DATAGRAMS=0", "--", "setpriv", "--bounding-set=-ipc_lock",
                     "--", "bash", "-c",
                     std::string("ulimit -l ") + locked_kib +
                         " && nccl-ha perf all_reduce -b 16M -e 16M -w 0 -I 12 --timeout 200 2>&1"},
                    guests_limit);
  ASSERT_TRUE(lab.carried("rail0", 40'000'000));
  ASSERT_EQ(lab.ask({"cut", "rail0", "--for", "1s"}).status, 0);
  const ToolRun run = lab.wait();
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(count(run.out, verified), 1U) << run.out;
  EXPECT_GE(count(run.out, "port error"), 1U) << run.out;
  EXPECT_GE(count(run.out, " cannot take over through a device "), 1U) << run.out;
  EXPECT_GE(count(run.out, " is back after "), 1U) << run.out;
}

/// Two guests with one rail, between which transfers run that would take hours.  `fault` happens to
/// them when enough has crossed the cable to be sure that it is in the middle of a transfer.
ToolRun break_transfers(const std::string& name, const char* setting,
                        const std::vector<std::vector<std::string>>& fault) {
  BackgroundLab lab(
      NHA_TOOL_FILE, name + std::to_string(getpid()),
      {"guests", "--rails", "1", "--timeout", guests_timeout, "--env", setting, "--", "bash", "-c",
       "nccl-ha perf pt2pt -b 1M -e 1M -c 0 -I 1000000 --timeout 200 2>&1"},
      guests_limit);
  EXPECT_TRUE(lab.carried("rail0", 20'000'000));
  const auto begin = std::chrono::steady_clock::now();
  for (const auto& request : fault) {
    EXPECT_EQ(lab.ask(request).status, 0);
  }
  ToolRun run = lab.wait();
  run.took = std::chrono::steady_clock::now() - begin;
  EXPECT_EQ(run.status, 1) << run.out << run.err;
  return run;
}

/// Retries take 5 s (HA_NCCL_IB_TIMEOUT, HA_NCCL_IB_RETRY_CNT); the rest is for a slow machine.
constexpr auto noticed = std::chrono::seconds(40);

// The management network goes as well: each side has to find out for itself.
TEST(RoceTwoGuests, APulledCableIsAnErrorOnBothSidesInTime) {
  const ToolRun run =
      break_transfers("pulled", "HA_NCCL_ENABLE_BACKUP=0", {{"cut", "rail0"}, {"cut", "mgmt"}});
  EXPECT_LT(run.took, noticed);
  EXPECT_EQ(count(run.out, "gave ncclRemoteError"), 2U) << run.out;
  EXPECT_GE(count(run.out, "port error; check cable and switch"), 2U) << run.out;
  for (const char* rank : {"[h1] nccl-ha perf: rank 0", "[h2] nccl-ha perf: rank 1"}) {
    EXPECT_NE(run.out.find(rank), std::string::npos) << run.out;
  }
}

TEST(RoceTwoGuests, AKilledGuestIsAnErrorOnTheOther) {
  const ToolRun run = break_transfers("killed", "HA_NCCL_RETRY_BUDGET_MS=2000", {{"kill", "h2"}});
  EXPECT_NE(run.err.find("h1 1, h2 killed"), std::string::npos) << run.err;
}

// An Ethernet MTU of 1500 leaves RoCE 1024, which is less than a command datagram would like to be.
TEST(RoceTwoGuests, CheckTriesEveryRailAndSeesASmallMtu) {
  const ToolRun run = guests(NHA_TOOL_FILE, {"--no-check", "--mtu", "1500"},
                             "nccl-ha check && HA_NCCL_FABRIC=ud nccl-ha check --strict");
  EXPECT_EQ(run.status, 1) << "the second run is strict: " << run.out << run.err;
  EXPECT_GE(count(run.out, "RDMA port rxe0:1 (rail0) has an MTU of 1024, 4096 are possible"), 2U)
      << run.out;
  for (const char* rail : {"h1 and h2                rxe0", "h1 and h2                rxe1"}) {
    EXPECT_EQ(count(run.out, rail), 2U) << run.out;
  }
  EXPECT_EQ(count(run.out, "[h1] 0 errors"), 2U) << run.out;
}

// A lab that is broken says so, instead of leaving the blame to what is tested in it.
TEST(RoceLab, ABrokenLabIsNotTheCommandsFault) {
  const TemporaryFolder folder;
  const auto program = std::filesystem::path(folder.path()) / "ibv_rc_pingpong";
  std::ofstream(program) << "#!/bin/sh\necho 'no luck' >&2\nexit 1\n";
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  std::string path = getenv("PATH");
  path.insert(0, folder.path() + ":");
  const ToolRun run =
      guests(NHA_TOOL_FILE, {"--guests", "2", "--rails", "1"}, "echo never", {{"PATH", path}});
  EXPECT_EQ(run.status, 125) << run.out << run.err;
  EXPECT_NE(run.err.find("the lab itself is broken: no luck"), std::string::npos) << run.err;
  EXPECT_EQ(run.out.find("never"), std::string::npos);
}

// As `nccl-ha perf --fault` does; both guests at once.
TEST(RoceLab, AGuestAsksItsOwnLab) {
  const ToolRun run = guests(
      NHA_TOOL_FILE, {"--guests", "2", "--no-check"},
      "for i in 1 2 3; do nccl-ha lab cut rail$RANK && nccl-ha lab heal rail$RANK || exit 7; done; "
      "nccl-ha lab cut rail$RANK --lab unknown && nccl-ha lab show; "
      "until [ $(cat /sys/class/net/rail$RANK/carrier) = 0 ]; do :; done; "
      "nccl-ha lab cut nothing && exit 8; exit 0");
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_GE(count(run.out, "  rail0        h1 > h2"), 2U) << run.out;
  EXPECT_EQ(count(run.err, "lab: cut rail0 at"), 4U) << run.err;
  EXPECT_EQ(count(run.err, "lab: cut rail1 at"), 4U) << run.err;
}

}  // namespace
}  // namespace nccl_ha::tests
