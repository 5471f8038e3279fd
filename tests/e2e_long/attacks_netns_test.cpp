// Attacks from the network on jobs of real processes: a host of its own that attacks, and what the
// victims count of it; and the job is right in every byte.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/mesh_lab.h"

namespace nccl_ha::tests {
namespace {

using nlohmann::json;

constexpr const char* attacker =
    "/usr/bin/python3 -IS " NHA_SOURCE_DIR "/tests/support/attacker.py ";

/// What the attacker says it has done, NAME=NUMBER; -1: it has not said that.
int64_t done(const ToolRun& run, const std::string& name) {
  const size_t line = run.out.find("attacker: ");
  const size_t at = line == std::string::npos ? line : run.out.find(" " + name + "=", line);
  return at == std::string::npos ? -1 : std::stoll(run.out.substr(at + name.size() + 2));
}

/// Hosts h1 and h2 of a switch run a job, and h3 attacks.
class AttackedJob : public ::testing::Test {
 protected:
  void TearDown() override {
    unsetenv("HA_NCCL_KEY_FILE");
    unsetenv("HA_NCCL_LISTEN_PORTS");
  }
  /// On both hosts of the job: `before`, then its rank as soon as there is a file `ready`, and
  /// `during` beside that, `$perf`.
  ToolRun run(const std::string& attack, const std::string& before, const std::string& perf,
              const std::string& during) {
    return lab_.run("flat-3x1", "off",
                    "export WORLD_SIZE=2 HA_NCCL_IFNAME=rail0 HA_NCCL_DGRAM_GSO=0; "
                    "if [ $RANK = 2 ]; then " +
                        attack + "; status=$?; touch attacked; exit $status; fi; " + before + " " +
                        wait_for("-e ready") + "nccl-ha perf " + perf +
                        " -w 0 --timeout 80 & perf=$!; " + during +
                        "; wait $perf; status=$?; touch $RANK.done; exit $status");
  }
  static std::string wait_for(const std::string& file) {
    return "until [ " + file + " ]; do sleep 0.02; done; ";
  }
  /// h3 sends what it likes in any host's name, and h1's cable is tapped for it.  Each rank leaves
  /// what its process has counted when the attack is over.
  ToolRun forge(const std::string& how, const std::string& perf) {
    return run(
        attacker + how,
        "[ $RANK = 1 ] || (" + wait_for("-S seen") + "exec " + attacker + "tap rail0 seen ready) &",
        perf, wait_for("-e attacked") + "nccl-ha info --pid $(pgrep -P $perf) --json > $RANK.json");
  }
  /// The sum over the datagram ports, or paths, of both processes.
  uint64_t counted(const std::string& name) const {
    uint64_t sum = 0;
    for (const char* file : {"/0.json", "/1.json"}) {
      const json said = json::parse(content_of(lab_.folder() + file), nullptr, false);
      EXPECT_TRUE(said.is_object() && said.contains("files")) << "the job ended before the attack";
      for (const json& one :
           said.is_object() ? said.value("files", json::array()) : json::array()) {
        for (const json& block : one["blocks"]) {
          sum += block["counters"].value(name, uint64_t{0});
        }
      }
    }
    return sum;
  }
  void use_key() {
    const std::string file = keys_.path() + "/keys";
    ASSERT_EQ(run_program(NHA_TOOL_FILE, {"relay", "make-key", file}).status, 0);
    setenv("HA_NCCL_KEY_FILE", file.c_str(), 1);
  }
  TemporaryFolder keys_;
  MeshLab lab_{NHA_TOOL_FILE};
};

/// So long that the attack is over before.
constexpr const char* busy_job = "sendrecv -b 256K -e 256K --seconds 6";

class CrowdedJob : public AttackedJob, public ::testing::WithParamInterface<bool> {};

TEST_P(CrowdedJob, IdleConnectionsAtEveryPortKeepNobodyOut) {
  if (GetParam()) {
    use_key();
  }
  setenv("HA_NCCL_LISTEN_PORTS", "47000-47007", 1);
  // Until the doors are full the two do not reach each other.
  const std::string keep_apart =
      "nft 'table ip apart { chain in { type filter hook input priority 0; ip saddr { 198.18.0.1, "
      "198.18.0.2 } tcp dport 47000-47007 drop; }; }' || exit 9; [ $RANK = 1 ] || touch ready; ";
  const ToolRun run = this->run(
      attacker + std::string("crowd 198.18.0.1,198.18.0.2 47000-47007 300 full 0.done,1.done"),
      keep_apart, "sendrecv -b 64K -e 64K --seconds 2",
      wait_for("-e full") + "nft delete table ip apart || exit 9");
  expect_right(run);
  EXPECT_EQ(done(run, "held"), 300) << run.out;
  EXPECT_EQ(done(run, "doors"), 2) << "each has one: " << run.out;
  EXPECT_GT(done(run, "turned_out"), 0) << "the doors were not full: " << run.out;
}

INSTANTIATE_TEST_SUITE_P(Keys, CrowdedJob, ::testing::Bool(), [](const auto& instance) {
  return std::string(instance.param ? "key" : "no_key");
});

TEST_F(AttackedJob, WhatIsGuessedOrSentOnceMoreIsCountedOnly) {
  const ToolRun run = forge("off_path seen 300", busy_job);
  expect_right(run);
  EXPECT_EQ(done(run, "guessed"), 900) << run.out;
  EXPECT_EQ(done(run, "replayed"), 1200) << run.out;
  EXPECT_GE(counted("bad_token"), 300U);
  EXPECT_GE(counted("unknown_path"), 150U);
  EXPECT_GE(counted("duplicates"), 100U);
}

TEST_F(AttackedJob, WithoutAKeyWhoSeesPacketsCanEndAJob) {
  const ToolRun run = forge("on_path seen 20 refuse", busy_job);
  EXPECT_GE(done(run, "refuse"), 1) << run.out;
  EXPECT_EQ(count(run.out, all_bytes_right), 0U) << "docs/security.md says that it can";
  EXPECT_GE(count(run.out, "the peer refused a write"), 1U) << run.out;
}

TEST_F(AttackedJob, WithAKeyWhoSeesPacketsChangesNothing) {
  use_key();
  const ToolRun run = forge("on_path seen 400 put,ack,refuse,again", busy_job);
  expect_right(run);
  EXPECT_GE(done(run, "put"), 400) << run.out;
  EXPECT_GE(done(run, "ack"), 400) << run.out;
  EXPECT_GE(done(run, "refuse"), 400) << run.out;
  EXPECT_GE(done(run, "again"), 400) << run.out;
  EXPECT_GE(counted("forged"), 200U);
}

/// Hosts h1, h2 and h3 run a job on a mesh, where h2 and h3 reach each other over h1's relay.
constexpr const char* relay_runs =
    "begin() { nccl-ha relay >> $RANK.log & pid=$!; }; known() { until nccl-ha info --routes "
    "2>/dev/null | grep -q 'line: 3'; do kill -0 $pid || exit 9; sleep 0.05; done; }; "
    "all() { until [ $(ls | grep -c $1) = 3 ]; do sleep 0.05; done; }; ";
constexpr const char* job_and_counts =
    "nccl-ha perf alltoall -w 0 --timeout 60 -b 1M -e 1M -I 4 -v; status=$?; "
    "nccl-ha relay status --json > $RANK.json; touch $RANK.done; all done; kill $pid; wait $pid; "
    "(exit $status)";
constexpr const char* job_ends = "0.done,1.done,2.done";

void expect_relayed(const ToolRun& run) {
  expect_right(run);
  EXPECT_GE(count(run.out, "over relayed over "), 2U) << run.out;
}

TEST(AttackedMesh, WithoutAKeyANeighbourTakesItsShareAndNoMore) {
  MeshLab lab(NHA_TOOL_FILE);
  // h4 has a cable to h1 too.
  const ToolRun run = lab.run(
      "star-3", "auto",
      "export WORLD_SIZE=3 NCCL_MESH_POOL_BYTES=33554432; " + std::string(relay_runs) +
          "if [ $RANK = 3 ]; then all ready; exec " + attacker + "mesh 140 attacked " + job_ends +
          "; fi; begin; known; touch $RANK.ready; until [ -e attacked ]; do sleep 0.05; done; " +
          job_and_counts);
  expect_relayed(run);
  EXPECT_GT(done(run, "outsider_asked"), 200'000) << run.out;
  EXPECT_LT(done(run, "outsider_answered"), 10'000) << "it is greeted: " << run.out;
  EXPECT_GT(done(run, "asked"), 1'000'000) << run.out;
  EXPECT_GT(done(run, "answered"), 100'000) << run.out;
  EXPECT_LT(done(run, "answered"), 4'500'000 + 1'100 * done(run, "took_ms")) << run.out;
  EXPECT_GE(done(run, "lies"), 6) << run.out;
  EXPECT_EQ(done(run, "unknown_names"), 1) << run.out;
  EXPECT_EQ(done(run, "no_cables"), 1) << run.out;
  EXPECT_GE(done(run, "held"), 4) << run.out;
  EXPECT_EQ(done(run, "held") + done(run, "refused"), 140) << run.out;
  const json relay = json::parse(content_of(lab.folder() + "/0.json"), nullptr, false);
  ASSERT_TRUE(relay.is_object());
  EXPECT_GE(relay["counters"]["refused"].get<int64_t>(), done(run, "refused"));
  EXPECT_LE(relay["counters"]["pool_bytes_most"].get<int64_t>(), 33'554'432);
}

TEST(AttackedMesh, WithAKeyWhatWasRecordedBeforeARestartChangesNothing) {
  const TemporaryFolder keys;
  const std::string file = keys.path() + "/keys";
  ASSERT_EQ(run_program(NHA_TOOL_FILE, {"relay", "make-key", file}).status, 0);
  setenv("NCCL_MESH_KEY_FILE", file.c_str(), 1);  // labs inherit it
  MeshLab lab(NHA_TOOL_FILE);
  // h2's relay ends and begins again, then h1's, which has heard nothing of it yet.
  const ToolRun run =
      lab.run("star-2", "auto",
              relay_runs +
                  std::string("end() { kill $pid; wait $pid; }; begin; "
                              "[ $RANK != 1 ] || ") +
                  attacker + "again enough recorded 2.ready " + job_ends +
                  " & known; touch $RANK.met; all met; "
                  "[ $RANK != 1 ] || { until [ -e enough ]; do sleep 0.05; done; end; begin; "
                  "known; touch recorded; }; "
                  "until [ -e recorded ]; do sleep 0.05; done; [ $RANK != 0 ] || { end; begin; }; "
                  "known; touch $RANK.ready; all ready; " +
                  job_and_counts);
  unsetenv("NCCL_MESH_KEY_FILE");
  expect_relayed(run);
  EXPECT_GE(done(run, "recorded"), 4) << run.out;
  EXPECT_GE(done(run, "repeated"), 100) << run.out;
  const json relay = json::parse(content_of(lab.folder() + "/0.json"), nullptr, false);
  ASSERT_TRUE(relay.is_object());
  EXPECT_GE(relay["discovery"]["repeated"].get<int64_t>(), 50) << relay["discovery"];
}

}  // namespace
}  // namespace nccl_ha::tests
