// Connections whose hosts have a key (HA_NCCL_KEY_FILE) on virtual time: what fails meanwhile costs
// them no more than others, and who has another key gets none.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "runtime/fabric/datagram/udp_factory.h"
#include "tests/rig/runs/pair.h"
#include "tests/support/log_lines.h"
#include "tests/support/sim_pair.h"
#include "tests/support/sim_seeds.h"
#include "tests/support/temporary_folder.h"

namespace nccl_ha::test {
namespace {

using rig::SimCables;
using rig::SimPair;
using rig::TransferPlan;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// As by a middlebox, which both ends hear of.
void end_streams(SimPair& pair) {
  for (size_t rail = 0; rail < pair.sender().addresses.size(); ++rail) {
    pair.world().network().tcp().end_flows(pair.sender().addresses[rail],
                                           pair.receiver().addresses[rail], true);
  }
}

class SimSealed : public testing::Test {
 protected:
  /// A file with a key of each of these digits, numbered from 1 on.
  std::string key_file(const std::string& name, const std::string& digits) {
    const std::string path = folder_.path() + "/" + name;
    std::ofstream out(path);
    for (size_t i = 0; i < digits.size(); ++i) {
      out << i + 1 << " " << std::string(64, digits[i]) << "\n";
    }
    out.close();
    EXPECT_EQ(chmod(path.c_str(), 0600), 0);
    return path;
  }
  Config keyed(const std::string& file, bool encrypts = false) {
    Config config;
    config.key_file = file;
    config.encrypt = encrypts;
    return config;
  }

  tests::TemporaryFolder folder_;
};

TEST_F(SimSealed, CutsLossesAndLostStreamsCostTimeOnly) {
  const std::string file = key_file("keys", "a");
  uint64_t lost = 0;
  uint64_t failovers = 0;
  for (uint64_t seed = 1; seed <= sim_alike(40); ++seed) {
    const SimCables cables{.rails = 2, .rdma = seed % 4 == 0};
    SCOPED_TRACE(fmt::format("seed {}", seed));
    sim::Link link;
    link.drop = seed % 3 == 0 ? 0.02 : 0;
    link.duplicate = link.drop;
    link.reorder = link.drop;
    SimPair pair(seed, link, keyed(file, seed % 2 == 0), cables);
    ASSERT_TRUE(pair.connect()) << pair.error();
    const Instant begin = pair.world().now();
    bool cut = false;
    bool forgot = false;
    TransferPlan plan;
    plan.groups = 60;
    plan.bytes_max = 100'000;
    plan.released = [&] {
      return static_cast<uint64_t>((pair.world().now() - begin) / milliseconds(20)) + 1;
    };
    plan.each_round = [&] {
      const Duration since = pair.world().now() - begin;
      if (!std::exchange(cut, cut || since > milliseconds(200)) && cut) {
        sim::Link none;
        none.cut = true;
        pair.set_links(none, none, 0);
      }
      if (!std::exchange(forgot, forgot || since > milliseconds(500)) && forgot) {
        end_streams(pair);
      }
    };
    EXPECT_EQ(pair.transfer(plan, seconds(60)), "");
    EXPECT_EQ(pair.send_channel().phase(), Phase::ready) << pair.error();
    lost += pair.send_channel().counters().streams_anew.get();
    failovers += pair.send_channel().counters().paths_down.get();
  }
  EXPECT_GT(lost, 0U);
  EXPECT_GT(failovers, 0U);
}

/// As where a crowd at the door turns the peer's streams out before it has read a greeting.
TEST_F(SimSealed, StreamsThatEndBeforeTheyAreOpenAreDialledAgain) {
  const std::string file = key_file("keys", "a");
  for (uint64_t seed = 1; seed <= sim_alike(60); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    SimPair pair(300 + seed, {}, keyed(file), {.rails = 1 + seed % 3});
    Random random(seed);
    const Instant begin = pair.world().now();
    const Duration stands = milliseconds(6000 + random.below(3000));
    Instant next = begin + milliseconds(random.below(2000));
    bool paused = false;
    ASSERT_TRUE(pair.connect([&] {
      if (!paused && pair.world().now() > begin) {  // from when it listens
        paused = true;
        pair.world().pause(pair.receiver(), begin + stands);
      }
      if (pair.world().now() >= next && pair.world().now() < begin + stands) {
        next = pair.world().now() + milliseconds(50 + random.below(700));
        end_streams(pair);
      }
    })) << pair.error();
    EXPECT_GE(pair.world().now(), begin + stands) << "nobody stood still";
    TransferPlan plan;
    plan.groups = 10;
    EXPECT_EQ(pair.transfer(plan, seconds(30)), "");
  }
}

TEST_F(SimSealed, WhoHasAnotherKeyOrNoneConnectsToNobodyAndIsToldWhy) {
  Config mine = keyed(key_file("mine", "a"));
  mine.connect_timeout_ms = 3000;
  SimPair other(1, {}, mine, {}, keyed(key_file("other", "b")));
  EXPECT_FALSE(other.connect());
  EXPECT_NE(other.error().find("HA_NCCL_KEY_FILE"), std::string::npos) << other.error();
  Config none;
  none.connect_timeout_ms = 3000;
  for (const bool at_sender : {true, false}) {
    LogLines log;
    SimPair pair(1, {}, at_sender ? mine : none, {}, at_sender ? none : mine);
    EXPECT_FALSE(pair.connect());
    EXPECT_NE(log.line("connect: HA_NCCL_KEY_FILE is set"), "") << "the handle tells";
    // One that does not.
    rig::SimLink::Dialling how{fabric::datagram_kind, {}, {{}}};
    how.routes[0].to = sim::Endpoint{pair.receiver().address, 0}.to_sockaddr();
    how.routes[0].from = sim::Endpoint{pair.sender().address, 0}.to_sockaddr();
    rig::SimLink link(pair.world(), pair.sender(), pair.receiver(), how);
    EXPECT_FALSE(link.wait_ready());
    EXPECT_EQ(link.error().find("HA_NCCL_KEY_FILE") != std::string::npos, at_sender)
        << link.error();
  }
}

TEST_F(SimSealed, EitherSideMayAskForEncryption) {
  const std::string file = key_file("keys", "a");
  for (const auto& [sender, receiver] : {std::pair(true, false), std::pair(false, true)}) {
    SimPair pair(7, {}, keyed(file, sender), {}, keyed(file, receiver));
    ASSERT_TRUE(pair.connect()) << pair.error();
    TransferPlan plan;
    plan.groups = 20;
    EXPECT_EQ(pair.transfer(plan, seconds(30)), "");
  }
}

/// A connection keeps the key that it began with; its streams that are made anew have the file's.
TEST_F(SimSealed, KeysChangeUnderARunningConnection) {
  const std::string sender = key_file("sender", "a");
  const std::string receiver = key_file("receiver", "a");
  SimPair pair(9, {}, keyed(sender), {.rails = 2}, keyed(receiver));
  ASSERT_TRUE(pair.connect()) << pair.error();
  const auto write = [&](const std::string& path, const std::string& text) {
    std::ofstream(path + ".new") << text;
    ASSERT_EQ(chmod((path + ".new").c_str(), 0600), 0);
    std::filesystem::rename(path + ".new", path);
  };
  const std::string old_key = "1 " + std::string(64, 'a') + "\n";
  const std::string new_key = "2 " + std::string(64, 'b') + "\n";
  const std::string steps[][2] = {
      {old_key + new_key, old_key},           {old_key + new_key, old_key + new_key},
      {new_key + old_key, old_key + new_key}, {new_key + old_key, new_key + old_key},
      {new_key, new_key + old_key},           {new_key, new_key}};
  for (const auto& step : steps) {
    write(sender, step[0]);
    write(receiver, step[1]);
    const uint64_t before = pair.send_channel().counters().streams_anew.get();
    end_streams(pair);
    TransferPlan plan;
    plan.groups = 5;
    EXPECT_EQ(pair.transfer(plan, seconds(30)), "");
    pass(pair, seconds(2));
    EXPECT_GT(pair.send_channel().counters().streams_anew.get(), before);
    EXPECT_EQ(pair.send_channel().phase(), Phase::ready) << pair.error();
  }
}

}  // namespace
}  // namespace nccl_ha::test
