// When a relay node ends, and when it begins anew.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <optional>

#include "relay/relay_node.h"
#include "runtime/engine/worker.h"
#include "runtime/streams/uv_streams.h"
#include "tools/relay/relay_keeper.h"

namespace nccl_ha::tools {
namespace {

/// In the place of the node.
class DrainedNode final : public Actor {
 public:
  explicit DrainedNode(std::optional<uint32_t>& limit_ms) : limit_ms_(limit_ms) {}
  const char* name() const override { return "drained"; }
  void start(Context&) override {}
  void on(const Message& message) override {
    if (message.kind == relay::RelayNode::drain) {
      limit_ms_ = message.arg;
    }
  }
  void stop() override {}

 private:
  std::optional<uint32_t>& limit_ms_;
};

TEST(RelayKeeping, ASignalDrainsTheNodeForAsLongAsIsSetAndTheNextOneEndsIt) {
  Config config;
  config.mesh_drain_ms = 2500;
  ManualClock clock;
  clock.set(Instant(std::chrono::seconds(1)));
  Worker worker({}, config, clock, *make_uv_streams());
  std::optional<uint32_t> limit_ms;
  unsigned finished = 0;
  std::array<int, 2> pipe{};
  ASSERT_EQ(pipe2(pipe.data(), O_CLOEXEC | O_NONBLOCK), 0);
  const auto node = worker.context().add_actor(std::make_unique<DrainedNode>(limit_ms));
  ASSERT_TRUE(node);
  RelayKeeper::Options options;
  options.signals = pipe[0];
  options.node = *node;
  options.finish = [&] { ++finished; };
  ASSERT_TRUE(worker.context().add_actor(std::make_unique<RelayKeeper>(std::move(options))));
  const auto signal = [&](const auto& done) {
    const signalfd_siginfo info{};
    EXPECT_EQ(write(pipe[1], &info, sizeof info), static_cast<ssize_t>(sizeof info));
    for (int i = 0; i < 1000 && !done(); ++i) {
      clock.advance(std::chrono::milliseconds(1));
      static_cast<void>(worker.turn());
    }
  };
  signal([&] { return limit_ms.has_value(); });
  EXPECT_EQ(limit_ms, 2500U);
  EXPECT_EQ(finished, 0U);
  signal([&] { return finished != 0; });
  EXPECT_EQ(finished, 1U);
  close(pipe[1]);
}

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
