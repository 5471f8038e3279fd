// A relay node begins anew where its host has other devices.
#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <memory>

#include "runtime/engine/worker.h"
#include "runtime/streams/uv_streams.h"
#include "tools/relay/relay_keeper.h"

namespace nccl_ha::tools {
namespace {

TEST(RelayKeeping, ANodeThatIsOutdatedBeginsAnewOnce) {
  const Config config;
  ManualClock clock;
  clock.set(Instant(std::chrono::seconds(1)));
  Worker worker({}, config, clock, *make_uv_streams());
  bool outdated = false;
  unsigned asked = 0;
  unsigned begun = 0;
  RelayKeeper::Options options;
  options.signals = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  options.outdated = [&] {
    ++asked;
    return outdated;
  };
  options.begin_anew = [&] { ++begun; };
  ASSERT_TRUE(worker.context().add_actor(std::make_unique<RelayKeeper>(std::move(options))));
  const auto look = [&] {
    clock.advance(RelayKeeper::look_apart + std::chrono::milliseconds(1));
    static_cast<void>(worker.turn());
  };
  look();
  EXPECT_EQ(asked, 1U);
  EXPECT_EQ(begun, 0U);
  outdated = true;
  look();
  EXPECT_EQ(begun, 1U);
  look();
  EXPECT_EQ(asked, 2U);
  EXPECT_EQ(begun, 1U);
}

}  // namespace
}  // namespace nccl_ha::tools
