// What is not finished does not count as finished when the connection ends.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/support/sim_pair.h"

namespace nccl_ha::test {
namespace {

using rig::SimPair;
using std::chrono::milliseconds;
using std::chrono::seconds;

class Unfinished : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Fabrics, Unfinished, testing::Bool(), [](const auto& instance) {
  return std::string(instance.param ? "rdma" : "datagrams");
});

SendRequest* pending_send(SimPair& pair) {
  for (uint16_t i = 0; i < sends_max; ++i) {
    SendRequest& slot = pair.send_channel().slot(i);
    if (slot.state.load() == RequestState::pending) {
      return &slot;
    }
  }
  return nullptr;
}

TEST_P(Unfinished, ASendThatTheReceiverDidNotGetIsNotDoneWhenItCloses) {
  SimPair pair(31, {}, {}, {.rails = 2, .rdma = GetParam()});
  ASSERT_TRUE(pair.connect()) << pair.error();
  pair.post_receives(3);
  ASSERT_TRUE(pair.world().run_until([&] { return pair.send_channel().published_groups() == 3; },
                                     seconds(1)));
  pass(pair, milliseconds(100));
  sim::Link dark;
  dark.cut = true;
  for (size_t rail = 0; rail < 2; ++rail) {
    pair.set_links(dark, {}, rail);  // what the receiver says arrives
  }
  ASSERT_TRUE(pair.post_send(1 << 16)) << pair.error();
  SendRequest* send = pending_send(pair);
  ASSERT_NE(send, nullptr);
  pair.receive_driver().close();
  ASSERT_TRUE(pair.world().run_until([&] { return pair.send_channel().phase() == Phase::failed; },
                                     seconds(1)));
  EXPECT_NE(pair.error().find("the peer closed the connection"), std::string::npos) << pair.error();
  EXPECT_NE(send->state.load(), RequestState::done);
  EXPECT_GT(pair.world().network().counts().cut, 0U) << "the fault did not happen";
}

/// closeSend with a send open, where only the path itself can tell the peer of it.
TEST_P(Unfinished, NothingIsSentFromMemoryThatTheCallerHasBack) {
  SimPair pair(32, {}, {}, {.rails = 2, .rdma = GetParam()});
  ASSERT_TRUE(pair.connect()) << pair.error();
  pass(pair, seconds(1));  // the shadow stands by
  sim::Link dark;
  dark.cut = true;
  pair.set_links(dark, dark, 0);
  ASSERT_TRUE(pair.world().run_until(
      [&] { return pair.send_channel().counters().traffic_moves.get() == 1; }, seconds(5)));
  std::vector<std::byte> target(1 << 20, std::byte{0xA5});
  const auto own = pair.link().register_receive(target.data(), target.size());
  ReceiveRequest* receive = pair.receive_channel().acquire();
  receive->count = 1;
  receive->buffers[0] = {target.data(), static_cast<uint32_t>(target.size()), own->remote_key, 0};
  pair.receive_channel().submit(*receive);
  pair.receive_driver().submit();
  ASSERT_TRUE(pair.world().run_until([&] { return pair.send_channel().published_groups() == 1; },
                                     seconds(1)));
  ASSERT_TRUE(pair.post_send(target.size())) << pair.error();
  SendRequest* send = pending_send(pair);
  ASSERT_NE(send, nullptr);
  ASSERT_TRUE(pair.world().run_until([&] { return target[0] != std::byte{0xA5}; }, seconds(1)));
  pair.send_driver().close();
  pass(pair, std::chrono::microseconds(1));  // its worker has taken it
  ASSERT_NE(receive->state.load(), RequestState::done) << "too late";
  std::memset(const_cast<std::byte*>(send->data), 0x5A, target.size());
  pass(pair, seconds(2));
  EXPECT_EQ(std::count(target.end() - 4096, target.end(), std::byte{0x5A}), 0);
  EXPECT_NE(receive->state.load(), RequestState::done);
}

}  // namespace
}  // namespace nccl_ha::test
