// Relayed paths whose way is lost while they come about.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/relay_line.h"
#include "tests/support/relayed_pair.h"
#include "tests/support/sim_pair.h"

namespace nccl_ha::test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// Between the host that begins and the one where it ends.
constexpr size_t setup_relays = 3;

/// Something happens to the way so long after connect().
class RelaySetup : public testing::TestWithParam<const char*> {
 protected:
  bool kills() const { return std::string_view(GetParam()) == "killed"; }
  void lose(RelayLine& line) const {
    if (kills()) {
      line.kill(2);
    } else {
      line.cut(2);
    }
  }
  static size_t sessions(RelayLine& line, bool without_the_killed) {
    size_t sum = 0;
    for (size_t host = 1; host <= setup_relays; ++host) {
      sum += without_the_killed && host == 2 ? 0 : line.node(host).sessions().size();
    }
    return sum;
  }
  static size_t pool(RelayLine& line, bool without_the_killed) {
    size_t sum = 0;
    for (size_t host = 1; host <= setup_relays; ++host) {
      sum += without_the_killed && host == 2 ? 0 : line.node(host).pool().used();
    }
    return sum;
  }
};

TEST_P(RelaySetup, AWayThatIsLostAtAnyMomentLeavesNothing) {
  const ErrorsOnly quiet;
  size_t in_the_midst = 0;
  bool done = false;
  for (int step = 0; !done; ++step) {
    ASSERT_LT(step, 500) << "the path does not come about";
    RelayLine::Options options;
    options.relays = setup_relays;
    RelayLine line(options);
    RelayedPair pair(line, 4096, 1);
    ASSERT_TRUE(pair.ends[0].path->connect(pair.ends[1].path->local_address()));
    ASSERT_TRUE(pair.ends[1].path->connect(pair.ends[0].path->local_address()));
    done = line.world().run_until([&] { return pair.ready(); }, step * microseconds(20));
    in_the_midst += !done && sessions(line, false) > 0 ? 1 : 0;
    lose(line);
    // The silence of neighbours, and the time for what has not come about.
    ASSERT_TRUE(line.world().run_until(
        [&] { return pair.failed(0) && pair.failed(1) && sessions(line, kills()) == 0; },
        seconds(15)))
        << "step " << step << ": " << pair.failed(0) << pair.failed(1) << ", "
        << sessions(line, kills()) << " sessions are left";
    EXPECT_EQ(pool(line, kills()), 0U) << step;
    EXPECT_FALSE(pair.ends[0].owner.last_error.what.empty());
    if (!kills()) {
      line.cut(2, false);
      RelayedPair later(line, 4096, 2);
      EXPECT_TRUE(later.connect(line)) << step;
    }
  }
  EXPECT_GT(in_the_midst, 5U) << "nothing was cut while it came about";
}

INSTANTIATE_TEST_SUITE_P(How, RelaySetup, testing::Values("killed", "cut"),
                         [](const auto& instance) { return std::string(instance.param); });

/// A path that finds its way by itself, over the first relay.
class RelayFirstHop : public testing::Test {
 protected:
  explicit RelayFirstHop(const RelayLine::Options& options = {}) : line_(options) {}
  struct Path {
    RecordingOwner owner;
    std::unique_ptr<fabric::Path> path;
  };
  std::unique_ptr<Path> make(size_t host, const std::optional<SharedKey>& shared = {}) {
    auto made = std::make_unique<Path>();
    fabric::PathOptions options;
    options.domain = 1;
    options.writes_max = 16;
    options.receives_max = 16;
    options.active = host == 0;
    options.shared = shared;
    made->path = line_.make_path_over(host, options, &made->owner).value();
    return made;
  }
  bool run(Path& one, Duration limit) {
    return line_.world().run_until(
        [&] { return one.path->state() != fabric::PathState::connecting; }, limit);
  }
  /// Both have been told of each other, and host 0 of its way.
  void connect(Path& from, Path& to) {
    line_.tell_way(0, {RelayLine::id(1)});
    ASSERT_TRUE(from.path->connect(to.path->local_address()));
    ASSERT_TRUE(to.path->connect(from.path->local_address()));
  }
  RelayLine line_;
};

/// The same over queue pairs.
class RelayFirstDevice : public RelayFirstHop {
 protected:
  RelayFirstDevice() : RelayFirstHop(with_devices()) {}

 private:
  static RelayLine::Options with_devices() {
    RelayLine::Options options;
    options.rdma = [](size_t) { return 2; };
    return options;
  }
};

TEST_F(RelayFirstHop, OneThatIsSilentIsDialledAgain) {
  line_.tell_way(0, {RelayLine::id(1)});
  line_.cut(0);
  auto from = make(0);
  auto to = make(2);
  ASSERT_TRUE(from->path->connect(to->path->local_address()));
  ASSERT_TRUE(to->path->connect(from->path->local_address()));
  // Retries of the first SYN are lost too; the next one would come after the path's time is up.
  EXPECT_FALSE(run(*from, milliseconds(3500)));
  line_.cut(0, false);
  ASSERT_TRUE(run(*from, milliseconds(1400)));
  EXPECT_EQ(from->path->state(), fabric::PathState::ready) << from->owner.last_error.what;
}

/// The connection's ends have a key, and the hosts between have none.
TEST_F(RelayFirstHop, NothingGoesInClearWhereEncryptionWasAgreedOn) {
  line_.tell_way(0, {RelayLine::id(1)});
  const SharedKey shared{{std::byte{1}}, true};
  auto from = make(0, shared);
  auto to = make(2, shared);
  ASSERT_TRUE(from->path->connect(to->path->local_address()));
  ASSERT_TRUE(to->path->connect(from->path->local_address()));
  ASSERT_TRUE(run(*from, seconds(10)));
  ASSERT_TRUE(line_.world().run_until([&] { return from->owner.states.size() != 0; }, seconds(1)));
  EXPECT_EQ(from->path->state(), fabric::PathState::error);
  EXPECT_NE(from->owner.last_error.what.find("HA_NCCL_ENCRYPT=1"), std::string::npos)
      << from->owner.last_error.what;
  EXPECT_EQ(line_.refused(0), 1U) << "another host may have a key";
}

TEST_F(RelayFirstHop, OneThatRefusesIsNotTheEndEither) {
  line_.tell_way(0, {RelayLine::id(1)});
  auto to = make(2);
  line_.kill(1);
  auto from = make(0);
  ASSERT_TRUE(from->path->connect(to->path->local_address()));
  EXPECT_FALSE(run(*from, seconds(4))) << from->owner.last_error.what;
  ASSERT_TRUE(run(*from, seconds(2)));
  EXPECT_EQ(from->path->state(), fabric::PathState::error);
  ASSERT_TRUE(line_.world().run_until([&] { return from->owner.states.size() != 0; }, seconds(1)));
  EXPECT_NE(from->owner.last_error.what.find("no path came about in time"), std::string::npos)
      << from->owner.last_error.what;
}

TEST_F(RelayFirstHop, EachDialThatIsLostRefusesTheWayOnce) {
  line_.tell_way(0, {RelayLine::id(1)});
  auto to = make(2);
  line_.kill(1);
  auto from = make(0);
  ASSERT_TRUE(from->path->connect(to->path->local_address()));
  EXPECT_FALSE(run(*from, milliseconds(50)));
  EXPECT_EQ(line_.refused(0), 1U);
  EXPECT_FALSE(run(*from, milliseconds(100)));
  EXPECT_EQ(line_.refused(0), 2U) << "it was told the same way again";
}

TEST_F(RelayFirstHop, AWayOverWhichNothingComesAboutInTimeIsRefusedOnce) {
  line_.tell_way(0, {RelayLine::id(1)});
  auto from = make(0);
  auto to = make(2);  // which never takes the path
  ASSERT_TRUE(from->path->connect(to->path->local_address()));
  EXPECT_FALSE(run(*from, milliseconds(4900)));
  EXPECT_EQ(line_.refused(0), 0U);
  ASSERT_TRUE(run(*from, milliseconds(200)));
  ASSERT_TRUE(line_.world().run_until([&] { return !from->owner.states.empty(); }, seconds(1)));
  EXPECT_NE(from->owner.last_error.what.find("no path came about in time"), std::string::npos)
      << from->owner.last_error.what;
  EXPECT_EQ(line_.refused(0), 1U);
}

TEST_F(RelayFirstHop, AWayWhoseHostIsGoneInTheMidstIsRefusedOnce) {
  line_.tell_way(0, {RelayLine::id(1)});
  auto from = make(0);
  auto to = make(2);  // which never takes the path
  ASSERT_TRUE(from->path->connect(to->path->local_address()));
  EXPECT_FALSE(run(*from, milliseconds(100)));
  ASSERT_EQ(line_.node(1).sessions().size(), 1U);
  line_.kill(1);
  ASSERT_TRUE(run(*from, milliseconds(100)));
  EXPECT_EQ(from->path->state(), fabric::PathState::error);
  EXPECT_EQ(line_.refused(0), 1U);
}

TEST_F(RelayFirstDevice, AWayWhoseFirstHopFailsIsRefusedOnce) {
  sim::VerbFaults& verbs = line_.process(0).nics.front()->verbs();
  verbs.faults[sim::Verb::to_ready_to_receive] = 1;
  auto from = make(0);
  auto to = make(2);
  connect(*from, *to);
  ASSERT_TRUE(run(*from, seconds(1)));
  EXPECT_EQ(from->path->state(), fabric::PathState::error);
  EXPECT_GT(verbs.failures(sim::Verb::to_ready_to_receive), 0U) << "the fault did not happen";
  EXPECT_EQ(line_.refused(0), 1U);
}

/// It may know the hosts between, and has chosen none of them.
TEST_F(RelayFirstHop, WhoWasAskedRefusesNoWay) {
  line_.drop(1, 1);
  auto from = make(0);
  auto to = make(2);
  connect(*from, *to);
  ASSERT_TRUE(run(*from, seconds(6)));
  ASSERT_TRUE(run(*to, seconds(6)));
  EXPECT_EQ(to->path->state(), fabric::PathState::error);
  EXPECT_GT(line_.world().network().counts().dropped, 0U) << "the fault did not happen";
  EXPECT_EQ(line_.refused(0), 1U);
  EXPECT_EQ(line_.refused(2), 0U);
}

TEST_F(RelayFirstHop, AWayThatIsNamedIsNotRefused) {
  RelayedPair pair(line_, 4096, 1);
  ASSERT_TRUE(pair.ends[0].path->connect(pair.ends[1].path->local_address()));
  ASSERT_TRUE(line_.world().run_until([&] { return pair.failed(0); }, seconds(6)));
  EXPECT_EQ(line_.refused(0), 0U);
}

/// All hosts stand still together, as those of one machine do.
class RelayStandstill : public RelayFirstHop {
 protected:
  RelayStandstill() : RelayFirstHop(with_short_setup()) {}
  void stand_still(Duration time) {
    static_cast<void>(line_.world().run_until([] { return false; }, microseconds(30)));
    for (size_t host = 0; host < line_.hosts(); ++host) {
      line_.world().pause(line_.process(host), line_.world().now() + time);
    }
    static_cast<void>(line_.world().run_until([] { return false; }, time));
  }
  static constexpr Duration setup_limit = seconds(1);

 private:
  static RelayLine::Options with_short_setup() {
    RelayLine::Options options;
    options.relay.setup_limit = setup_limit;
    return options;
  }
};

TEST_F(RelayStandstill, IsNoTimeThatAPathHasToComeAbout) {
  auto from = make(0);
  auto to = make(2);
  connect(*from, *to);
  stand_still(seconds(6));  // the path has five
  ASSERT_TRUE(run(*from, seconds(1)));
  EXPECT_EQ(from->path->state(), fabric::PathState::ready) << from->owner.last_error.what;
  EXPECT_EQ(line_.refused(0), 0U);
}

TEST_F(RelayStandstill, IsNoTimeThatARelayGivesARoute) {
  line_.tell_way(0, {RelayLine::id(1)});
  auto from = make(0);
  auto to = make(2);
  ASSERT_TRUE(from->path->connect(to->path->local_address()));
  ASSERT_FALSE(run(*from, milliseconds(5)));
  ASSERT_EQ(line_.node(1).sessions().size(), 1U);
  stand_still(setup_limit * 9 / 5);  // nobody is silent for that long
  ASSERT_EQ(line_.node(1).sessions().size(), 1U);
  ASSERT_TRUE(to->path->connect(from->path->local_address()));
  ASSERT_TRUE(run(*from, milliseconds(200)));
  EXPECT_EQ(from->path->state(), fabric::PathState::ready) << from->owner.last_error.what;
}

TEST_F(RelayStandstill, IsNoSilenceOfNeighbours) {
  auto from = make(0);
  auto to = make(2);
  connect(*from, *to);
  ASSERT_TRUE(run(*from, seconds(1)));
  ASSERT_EQ(from->path->state(), fabric::PathState::ready) << from->owner.last_error.what;
  const uint64_t session = line_.node(1).sessions()[0]->number();
  stand_still(seconds(5));
  static_cast<void>(line_.world().run_until([] { return false; }, seconds(3)));
  EXPECT_EQ(from->path->state(), fabric::PathState::ready) << from->owner.last_error.what;
  EXPECT_EQ(to->path->state(), fabric::PathState::ready) << to->owner.last_error.what;
  ASSERT_EQ(line_.node(1).sessions().size(), 1U);
  EXPECT_EQ(line_.node(1).sessions()[0]->number(), session);
}

std::shared_ptr<relay::JobKeys> job(uint64_t comm_id, bool open) {
  auto made = std::make_shared<relay::JobKeys>();
  made->add(comm_id);
  made->set_open(open);
  return made;
}

TEST(RelayJobs, AJobThatARelayDoesNotKnowIsServedAsOneWithoutAKey) {
  for (const bool ends_open : {true, false}) {
    for (const bool relays_open : {true, false}) {
      RelayLine::Options options;
      options.relays = 2;
      options.jobs[0] = job(1, ends_open);
      options.jobs[1] = job(2, relays_open);
      RelayLine line(options);
      RelayedPair pair(line, 4096, 1);
      EXPECT_EQ(pair.connect(line), ends_open && relays_open)
          << pair.ends[0].owner.last_error.message();
    }
  }
}

}  // namespace
}  // namespace nccl_ha::test
