// Jobs on hosts whose interfaces are not what they seem: which NIC carries, and what a cut does.
// What needs drivers that not every kernel has is in tests/unit/fabric_interfaces_test.cpp.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include "tests/support/paths_in_lab.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tool_runner.h"

namespace nccl_ha::tests {
namespace {

/// Two hosts with two rails, in which `setup` runs first: N is the number of the host, M that of
/// the other one; `later` runs beside the job, once its log has a line with `after`.
struct NicSituation {
  std::string name;
  std::string setup;
  std::string fault = "cut rail0 --for 1200ms@up";  ///< as paths_in_lab.h has it
  /// The job goes on over the shadow; else it waits until its own NIC is back.
  bool moves = true;
  /// Carries while rail0 is cut.
  std::string carrier = "rail1";
  std::string later = "true";
  std::string devices = "rail0 rail1";  ///< that NCCL is offered
  std::string after = "using datagrams";
};
void PrintTo(const NicSituation& situation, std::ostream* out) { *out << situation.name; }

/// A bridge as containers have, with a carrier; `address` is the bridge's.
std::string a_bridge(const std::string& name, const std::string& address) {
  return "ip link add " + name + " type bridge; ip link add " + name + "p type veth peer name " +
         name + "q; ip link set " + name + "p master " + name + " up; ip link set " + name +
         "q up; ip addr add " + address + " dev " + name + "; ip link set " + name + " up; ";
}

/// Waits until the job has said it; reads from a pipe, which ends with the shell.
std::string logged(const std::string& line) {
  return "tail -n +1 -F --pid=$$ $LOG | grep -qm1 '" + line + "'; ";
}

/// Where the other host has noticed first, a path that only stood by goes without such a line.
std::string noticed(const std::string& line) {
  return "timeout 1 grep -qm1 '" + line + "' < <(tail -n +1 -F --pid=$$ $LOG); ";
}

/// P is a process that lives in it.
const std::string other_namespace =
    "coproc IN_IT { exec unshare -n bash -c 'echo; exec sleep 50'; }; P=$IN_IT_PID; "
    "read -u ${IN_IT[0]}; ";

const std::string no_ipv4 = "ip -4 addr flush dev rail0; ip -4 addr flush dev rail1; ";

/// Where both hosts change something: the other one may have begun before this one's path stood by.
const std::string ready_or_begun = "stands by\\|unreachable\\|is down";

const std::vector<NicSituation> nic_situations = {
    {"TwoRails", ""},
    {"ABridgeWithTheSameAddressOnEachHost", a_bridge("docker0", "172.17.0.1/16")},
    {"ABridgeOfAnotherSubnetOnEachHost", a_bridge("cni0", "10.244.$N.1/24")},
    {"EndsOfContainersCables",
     "for i in 1 2 3; do ip link add cali$i type veth peer name c$i; ip link set cali$i up; "
     "unshare -n sleep 30 & ip link set c$i netns $! up 2>/dev/null || ip link set c$i up; done; "},
    {"AnAddressThatBothHostsHave",
     "ip link add shared type veth peer name sharedq; ip link set sharedq up; "
     "ip addr add 10.1.0.1/32 dev shared; ip link set shared up; "},
    {"OnlyTheSecondAddressIsInACommonSubnet",
     "ip addr flush dev rail1; ip addr add 10.$N.9.9/24 dev rail1; "
     "ip addr add 198.18.1.$N/24 dev rail1; "},
    {"ManyAddressesThatLeadNowhere",
     "for i in 1 2 3 4 5; do ip addr add 10.$((N * 10 + i)).9.9/24 dev rail1; "
     "ip addr add 10.$((N * 10 + i)).8.9/24 dev rail0; done; "},
    {"ALabel", "ip addr add 198.18.5.$N/24 dev rail0 label rail0:1; "},
    {"AMacvlanIsNoSecondCable",
     "ip link add link rail0 name mv0 type macvlan mode bridge; "
     "ip addr add 198.18.7.$N/24 dev mv0; ip link set mv0 up; "},
    {"AMacvlanOnTheOnlyCable",
     "ip link set rail1 down; ip addr flush dev rail1; "
     "ip link add link rail0 name mv0 type macvlan mode bridge; "
     "ip addr add 198.18.7.$N/24 dev mv0; ip link set mv0 up; ",
     "cut rail0 --for 800ms@1s", false, "rail0", "true", "rail0"},
    {"LinkLocalAddressesOnly", no_ipv4},
    {"Ipv6Only", no_ipv4 + "ip addr add 2001:db8::$N/64 dev rail0 nodad; "
                           "ip addr add 2001:db8:1::$N/64 dev rail1 nodad; "},
    {"DhcpHasFailedOnOne", "ip addr flush dev rail1; ip addr add 169.254.7.$N/16 dev rail1; ",
     "cut rail0 --for 1200ms@up", true, "rail1", "true", "rail0"},
    {"HostRoutes",
     "for i in 0 1; do ip -4 addr flush dev rail$i; ip addr add 10.9.$i.$N/32 dev rail$i; "
     "ip route add 10.9.$i.$M/32 dev rail$i src 10.9.$i.$N; done; "},
    {"ATunnel",
     "ip link add vx0 type vxlan id 7 dstport 4789 remote 198.18.0.$M dev rail0; "
     "ip addr add 10.8.0.$N/24 dev vx0; ip link set vx0 up; "},
    {"DownAtTheStart", "ip link set rail1 down; ", "cut rail0 --for 1200ms@2s", true, "rail1",
     "ip link set rail1 up", "rail0"},
    {"AnAddressComesLater", "ip addr flush dev rail1; ", "cut rail0 --for 1200ms@2s", true, "rail1",
     "ip addr add 198.18.1.$N/24 dev rail1", "rail0"},
    {"TheStandbysAddressChanges", "", "cut rail0 --for 1200ms@3s", true, "rail1",
     "ip addr flush dev rail1; ip addr add 198.18.9.$N/24 dev rail1", "rail0 rail1",
     ready_or_begun},
    {"TheStandbysAddressChangesOnOneHost", "", "cut rail0 --for 1200ms@3s", true, "rail1",
     "[ $N = 2 ] && { ip addr del 198.18.1.2/24 dev rail1; "
     "ip addr add 198.18.1.77/24 dev rail1; }",
     "rail0 rail1", "stands by"},
    {"TheStandbyLosesItsAddress", "", "cut rail0 --for 1200ms@3s", true, "rail1",
     "[ $N = 2 ] && ip addr del 198.18.1.2/24 dev rail1", "rail0 rail1", "stands by"},
    {"ItIsRenamed", "", "cut rail0 --for 1200ms@3s", true, "blue",
     "ip link set rail1 down; ip link set rail1 name blue; ip link set blue up", "rail0 rail1",
     ready_or_begun},
    {"ItWasInAnotherNamespace", other_namespace + "ip link set rail1 netns $P; ",
     "cut rail0 --for 1200ms@3s", true, "rail1",
     "nsenter -t $P -n ip link set rail1 netns $$; "
     "ip addr add 198.18.1.$N/24 dev rail1; ip link set rail1 up",
     "rail0"},
    {"ItGoesAndComesBack", other_namespace, "cut rail0 --for 1200ms@3s", true, "rail1",
     "ip link set rail1 netns $P; " + noticed("path 1 .* is down") +
         "ip link add x type bridge; nsenter -t $P -n ip link set rail1 netns $$; "
         "ip addr add 198.18.1.$N/24 dev rail1; ip link set rail1 up",
     "rail0 rail1", ready_or_begun},
    {"ATap",
     "ip tuntap add tap0 mode tap; ip addr add 10.7.0.$N/24 dev tap0; "
     "ip link set tap0 up; "},
};

/// What each interface had sent at the end, on the host of rank 0.
std::map<std::string, uint64_t> sent_by(const std::string& out) {
  std::map<std::string, uint64_t> sent;
  const std::regex line(R"(sent 0 (\S+) (\d+))");
  for (std::sregex_iterator at(out.begin(), out.end(), line), end; at != end; ++at) {
    sent[(*at)[1]] = std::stoull((*at)[2]);
  }
  return sent;
}

ToolRun run_nics(const NicSituation& situation, const std::string& threads) {
  static int labs = 0;
  const TemporaryFolder folder;
  const bool waits = situation.fault.find("@up") != std::string::npos;
  const std::string job =
      (waits ? tell_of_paths(folder.path()) : "") +
      "N=$((RANK + 1)); M=$((2 - RANK)); LOG=$(mktemp); " + situation.setup + "(" +
      logged(situation.after) + situation.later +
      ") >/dev/null 2>&1 & nccl-ha perf all_reduce -b 256K -e 256K -w 0 -I 20 --timeout 50 --fault "
      "'" +
      with_files_of(folder.path(), situation.fault) +
      "' -v 2>&1 | tee $LOG; status=${PIPESTATUS[0]}; rm $LOG; for i in /sys/class/net/*; do echo "
      "sent $RANK ${i##*/} "
      "$(cat $i/statistics/tx_bytes); done; exit $status";
  return run_program(NHA_TOOL_FILE,
                     {"lab", "run", "pair", "-q", "--timeout", "55", "--name",
                      "nics" + std::to_string(getpid()) + "." + std::to_string(labs++), "--env",
                      "HA_NCCL_FABRIC=datagram", "--env", "HA_NCCL_IFNAME=^mgmt", "--env",
                      "HA_NCCL_USE_PROGRESS_THREAD=" + threads, "--", "bash", "-c", job},
                     {}, std::chrono::seconds(60));
}

class Nics : public testing::TestWithParam<NicSituation> {};

TEST_P(Nics, CarryWhatIsTheirs) {
  const NicSituation& situation = GetParam();
  // Both modes in turn, as what is looked at here is the same in both.
  static bool threads = false;
  threads = !threads;
  const ToolRun run = run_nics(situation, threads ? "1" : "0");
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(count(run.out, "Out of bounds values : 0 OK"), 1U) << run.out;
  EXPECT_NE(run.out.find("using datagrams over UDP on " + situation.devices + ";"),
            std::string::npos)
      << run.out;
  EXPECT_EQ(count(run.out, " moved to the shadow path") != 0, situation.moves) << run.out;
  const std::regex stall(R"(# fault 1: cut rail0[^\n]*: stall ([\d.]+) ms)");
  std::smatch found;
  ASSERT_TRUE(std::regex_search(run.out, found, stall)) << run.out;
  if (situation.moves) {
    EXPECT_LT(std::stod(found[1]), 700) << run.out;
  }
  auto sent = sent_by(run.out);
  for (const auto& [name, bytes] : sent) {
    if (name == situation.carrier) {
      EXPECT_GT(bytes, 1'000'000U) << run.out;
    } else if (name != "rail0" && name != "rail1" && name != "mgmt" && name != "lo") {
      EXPECT_LT(bytes, 100'000U) << name << " carries what is not its: " << run.out;
    }
  }
  EXPECT_GT(sent["rail0"], 1'000'000U) << run.out;
}

INSTANTIATE_TEST_SUITE_P(Situations, Nics, testing::ValuesIn(nic_situations),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace nccl_ha::tests
