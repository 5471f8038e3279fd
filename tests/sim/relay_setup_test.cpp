// Relayed paths whose way is lost while they come about.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/relay_line.h"
#include "tests/support/relayed_pair.h"
#include "tests/support/sim_pair.h"

namespace nccl_ha::test {
namespace {

using std::chrono::microseconds;
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

}  // namespace
}  // namespace nccl_ha::test
