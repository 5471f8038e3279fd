#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "actors/endpoint.h"
#include "actors/listen_channel.h"
#include "runtime/engine/engine.h"
#include "runtime/streams/uv_streams.h"

namespace nccl_ha {
namespace {

/// Whatever is ready when a listen is closed is either refused, of which its peer hears, or taken
/// by who closes: nothing is left in between.
TEST(ListenChannel, WhatIsOfferedWhileItClosesIsRefusedOrTaken) {
  SteadyClock clock;
  const auto engine = Engine::start_virtual(Config{}, clock, 1, [] { return *make_uv_streams(); });
  const auto endpoint =
      std::make_shared<ReceiveEndpoint>(1, fabric::Attachment{}, engine->worker(0), *engine);
  constexpr size_t rounds = 20000;
  std::atomic<ListenChannel*> open{nullptr};
  std::atomic<int> answer{-1};
  std::atomic<bool> over{false};
  // Both look for a while before they let others run, and meet more often so.
  const auto wait_until = [](auto&& done) {
    for (size_t looks = 1; !done(); ++looks) {
      if (looks % 4096 == 0) {
        std::this_thread::yield();
      }
    }
  };
  std::thread worker([&] {
    for (ListenChannel* channel = nullptr;;) {
      wait_until([&] { return (channel = open.load()) != nullptr || over.load(); });
      if (channel == nullptr) {
        return;
      }
      open.store(nullptr);
      answer.store(channel->offer(endpoint) ? 1 : 0);
    }
  });
  size_t taken = 0;
  size_t i = 0;
  // On a busy machine the two may seldom meet.
  const auto both_seen = [&] { return taken > 0 && taken < i; };
  for (; (i < rounds || !both_seen()) && i < 50 * rounds && !HasFailure(); ++i) {
    ListenChannel channel(i);
    answer.store(-1);
    open.store(&channel);
    wait_until([&] { return open.load() == nullptr; });
    channel.close();
    const bool has = channel.take() != nullptr;
    int offered = -1;
    wait_until([&] { return (offered = answer.load()) >= 0; });
    EXPECT_EQ(offered == 1, has) << "round " << i;
    taken += has ? 1 : 0;
  }
  over.store(true);
  worker.join();
  EXPECT_TRUE(both_seen()) << "taken " << taken << " times of " << i;
}

Hello hello_of(uint64_t token, uint32_t process, uint32_t attempt) {
  Hello hello;
  hello.rejoin.token = Secret::heard(token);
  hello.rejoin.process = {process, 1};
  hello.attempt = attempt;
  return hello;
}

ActorId actor(uint32_t index) { return {index, 1}; }

TEST(ListenChannel, OfTwoAttemptsAtAConnectionTheEarlierOneIsInVain) {
  ListenChannel channel(1);
  EXPECT_FALSE(channel.begin(hello_of(7, 11, 1), actor(1)));
  EXPECT_FALSE(channel.begin(hello_of(7, 12, 2), actor(2))) << "another process";
  EXPECT_FALSE(channel.begin(hello_of(0, 11, 2), actor(3)));
  EXPECT_FALSE(channel.begin(hello_of(0, 11, 3), actor(4))) << "who has no token has no name";
  EXPECT_EQ(channel.begin(hello_of(7, 11, 3), actor(5)), actor(1));
  channel.leave(actor(1));
  EXPECT_EQ(channel.begin(hello_of(7, 11, 2), actor(6)), actor(6))
      << "it was said before, and comes late";
  EXPECT_EQ(channel.begin(hello_of(7, 11, 4), actor(7)), actor(5));
}

TEST(ListenChannel, AConnectionThatIsUsableGivesWayToNobody) {
  ListenChannel channel(1);
  EXPECT_FALSE(channel.begin(hello_of(7, 11, 2), actor(1)));
  channel.settle(actor(1));
  EXPECT_EQ(channel.begin(hello_of(7, 11, 1), actor(2)), actor(2));
  EXPECT_EQ(channel.begin(hello_of(7, 11, 9), actor(3)), actor(3));
  channel.leave(actor(1));
  EXPECT_FALSE(channel.begin(hello_of(7, 11, 1), actor(4)));
}

/// The oldest first, also where some had been looked at before it was closed.
TEST(ListenChannel, WhatWasReadyWhenItClosedIsTakenInOrder) {
  SteadyClock clock;
  const auto engine = Engine::start_virtual(Config{}, clock, 1, [] { return *make_uv_streams(); });
  ListenChannel channel(1);
  std::vector<std::shared_ptr<ReceiveEndpoint>> ready;
  for (uint64_t i = 0; i < 5; ++i) {
    ready.push_back(
        std::make_shared<ReceiveEndpoint>(i, fabric::Attachment{}, engine->worker(0), *engine));
  }
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(channel.offer(ready[i]));
  }
  EXPECT_EQ(channel.take(), ready[0]);
  EXPECT_TRUE(channel.offer(ready[3]));
  channel.close();
  EXPECT_FALSE(channel.offer(ready[4]));
  channel.close();
  EXPECT_FALSE(channel.offer(ready[4])) << "closed once more";
  for (size_t i = 1; i < 4; ++i) {
    EXPECT_EQ(channel.take(), ready[i]) << i;
  }
  EXPECT_EQ(channel.take(), nullptr);
}

}  // namespace
}  // namespace nccl_ha
