// A door between the thread of its worker and those that listen at it.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>

#include "actors/door.h"
#include "runtime/engine/engine.h"
#include "tests/rig/sim/world.h"
#include "tests/support/until.h"

namespace nccl_ha {
namespace {

bool opens_at(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool open = connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0;
  close(fd);
  return open;
}

/// With threads of their own, or turned by who calls.
class DoorModes : public testing::TestWithParam<bool> {};

/// The worker closes a door when the last has left; who comes at that moment finds it open, or gets
/// another one.
TEST_P(DoorModes, WhoListensFindsItOpenWhileTheLastLeaves) {
  sim::World world{1};
  const auto process = world.add_process(sim::ip(10, 0, 0, 1), Config{});
  ASSERT_TRUE(process);
  Config config;
  config.use_progress_thread = GetParam();
  auto engine = Engine::start(config);
  ASSERT_TRUE(engine) << engine.error().message();
  Worker& worker = (*engine)->worker(0);
  const auto door = Door::of(worker.context());
  EXPECT_EQ(Door::of(worker.context()), door);
  size_t closed = 0;
  for (uint64_t round = 1; round <= 300 && !HasFailure(); ++round) {
    const auto port = door->add(
        {*(*process)->provider, **engine, {}, {}, std::make_shared<ListenChannel>(round)});
    ASSERT_TRUE(port) << port.error().message();
    EXPECT_TRUE(opens_at(*port)) << "round " << round;
    door->remove(round);
    (*engine)->assist(worker);
    // Every other time the next one comes at once.
    if (round % 2 == 0) {
      closed += test::until([&] {
        (*engine)->assist(worker);
        return !opens_at(*port);
      });
    }
  }
  EXPECT_EQ(closed, 150U) << "it stayed open though nobody listened";
}

INSTANTIATE_TEST_SUITE_P(Drivers, DoorModes, testing::Bool(), [](const auto& instance) {
  return instance.param ? "threads" : "inline_turns";
});

}  // namespace
}  // namespace nccl_ha
