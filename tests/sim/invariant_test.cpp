// What happens when something that the program keeps true is not: one connection ends.
#include <gtest/gtest.h>

#include "tests/support/log_lines.h"
#include "tests/support/sim_pair.h"

namespace nccl_ha {
namespace {

using rig::SimLink;
using rig::SimPair;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr const char* chunk_text = "a chunk is acknowledged once, by the lane that holds it";

TEST(SimInvariant, ABrokenOneEndsItsConnectionAndNoOther) {
  SimPair pair(1, {}, {}, {.rails = 2});
  ASSERT_TRUE(pair.connect()) << pair.error();
  SimLink other(pair.world(), pair.sender(), pair.receiver());
  ASSERT_TRUE(other.wait_ready()) << other.error();

  const test::LogLines log;
  pair.post_receives(1);
  ASSERT_TRUE(pair.post_send(1 << 16));
  // Something writes over the request's state before the acknowledgement comes.
  SendRequest* request = nullptr;
  for (uint16_t i = 0; i < sends_max; ++i) {
    SendRequest& slot = pair.send_channel().slot(i);
    request = slot.state.load() == RequestState::pending ? &slot : request;
  }
  ASSERT_NE(request, nullptr);
  ASSERT_TRUE(pair.world().run_until(
      [&] {
        return request->ledger.open() != 0 && request->ledger.holder(0) != ha::ChunkLedger::nobody;
      },
      milliseconds(1)));
  request->ledger.take_back(0);

  ASSERT_TRUE(pair.world().run_until([&] { return pair.send_channel().phase() == Phase::failed; },
                                     milliseconds(100)));
  EXPECT_EQ(pair.send_channel().failure().code, Errc::internal);
  EXPECT_NE(pair.send_channel().failure().what.find(chunk_text), std::string::npos)
      << pair.send_channel().failure().what;
  EXPECT_EQ(request->state.load(), RequestState::pending) << "it counts as done";
  // The peer hears why.
  ASSERT_TRUE(pair.world().run_until(
      [&] { return pair.receive_channel().phase() == Phase::failed; }, milliseconds(100)));
  EXPECT_EQ(pair.receive_channel().failure().code, Errc::remote);
  EXPECT_NE(pair.receive_channel().failure().what.find(chunk_text), std::string::npos)
      << pair.receive_channel().failure().what;
  // What led to it is in the log, once.
  EXPECT_EQ(log.count("please report it with what follows"), 1U) << log.text();
  EXPECT_EQ(log.count("events of worker"), 1U) << log.text();
  EXPECT_GE(log.count("chunk_posted group="), 1U) << log.text();

  // Others go on.
  rig::TransferPlan plan;
  plan.groups = 50;
  rig::Traffic traffic(other, plan);
  EXPECT_TRUE(pair.world().run_until([&] { return traffic.step(); }, seconds(10)));
  EXPECT_EQ(traffic.outcome(), "");
  EXPECT_FALSE(other.failed()) << other.error();
}

}  // namespace
}  // namespace nccl_ha
