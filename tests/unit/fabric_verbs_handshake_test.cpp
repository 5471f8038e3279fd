#include <gtest/gtest.h>

#include <cerrno>

#include "runtime/fabric/verbs/handshake.h"

namespace nccl_ha::fabric::verbs {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class Handshakes : public testing::Test {
 protected:
  Handshakes() {
    clock_.set(Instant(seconds(1)));
    services_.clock = &clock_;
    services_.timers = &timers_;
    handshake_.bind([](void* self) { ++static_cast<Handshakes*>(self)->timeouts_; }, this);
    handshake_.begin(seconds(2));
  }

  ManualClock clock_;
  TimerWheel timers_{Instant(seconds(1))};
  PortServices services_;
  int timeouts_ = 0;
  Handshake handshake_{services_};
};

TEST_F(Handshakes, AsksForTheAddressUntilItIsThere) {
  const auto resolution = std::make_shared<Resolution>();
  handshake_.resolve(resolution);
  EXPECT_EQ(handshake_.check_resolution(), Resolution::open);
  clock_.advance(milliseconds(2));
  EXPECT_EQ(timers_.expire(clock_.now()), 1U);
  EXPECT_TRUE(handshake_.resolving());
  resolution->result = 0;
  EXPECT_EQ(handshake_.check_resolution(), 0);
  EXPECT_FALSE(handshake_.resolving());
  EXPECT_EQ(timers_.size(), 0U);
}

TEST_F(Handshakes, AnAddressThatIsNotFoundInTimeIsNone) {
  handshake_.resolve(std::make_shared<Resolution>());
  clock_.advance(seconds(2));
  EXPECT_EQ(handshake_.check_resolution(), ETIMEDOUT);
  const auto refused = std::make_shared<Resolution>();
  refused->result = EHOSTUNREACH;
  handshake_.resolve(refused);
  EXPECT_EQ(handshake_.check_resolution(), EHOSTUNREACH);
}

TEST_F(Handshakes, IsCompleteWithBothProbesEachWay) {
  handshake_.on_probe_received();
  handshake_.on_probe_acknowledged();
  handshake_.on_probe_received();
  EXPECT_TRUE(handshake_.peer_has_probed());
  EXPECT_FALSE(handshake_.complete());
  handshake_.on_probe_acknowledged();
  EXPECT_TRUE(handshake_.complete());
}

TEST_F(Handshakes, DataOfThePeersAnswersForOwnProbes) {
  handshake_.on_probe_received();
  handshake_.on_probe_received();
  handshake_.on_data_received();
  EXPECT_TRUE(handshake_.complete());
  handshake_.on_probe_acknowledged();
  EXPECT_TRUE(handshake_.complete());
}

TEST_F(Handshakes, OwnProbesArePostedOnce) {
  EXPECT_TRUE(handshake_.begin_probes());
  EXPECT_FALSE(handshake_.begin_probes());
}

TEST_F(Handshakes, HasADeadlineUntilItEnds) {
  handshake_.await();
  clock_.advance(seconds(1));
  timers_.expire(clock_.now());
  EXPECT_EQ(timeouts_, 0);
  clock_.advance(seconds(2));
  timers_.expire(clock_.now());
  EXPECT_EQ(timeouts_, 1);
  handshake_.await();
  handshake_.end();
  timers_.expire(clock_.now());
  EXPECT_EQ(timeouts_, 1);
}

}  // namespace
}  // namespace nccl_ha::fabric::verbs
