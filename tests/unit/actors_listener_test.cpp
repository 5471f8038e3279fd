#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

#include "actors/endpoint.h"
#include "actors/listener.h"
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

ListenChannel::Guest guest(uint32_t index) { return {index, {index, 1}}; }

uint64_t enter(ListenChannel& channel) {
  uint64_t place = 0;
  EXPECT_FALSE(channel.enter({}, &place));
  return place;
}

TEST(ListenChannel, OfTwoAttemptsAtAConnectionTheEarlierOneIsInVain) {
  ListenChannel channel(1);
  const uint64_t first = enter(channel);
  EXPECT_FALSE(channel.begin(first, hello_of(7, 11, 1), guest(1)));
  EXPECT_EQ(channel.waiting(), 0U);
  EXPECT_FALSE(channel.begin(enter(channel), hello_of(7, 12, 2), guest(2))) << "another process";
  EXPECT_FALSE(channel.begin(enter(channel), hello_of(0, 11, 2), guest(3)));
  EXPECT_FALSE(channel.begin(enter(channel), hello_of(0, 11, 3), guest(4)))
      << "who has no token has no name";
  EXPECT_EQ(channel.begin(enter(channel), hello_of(7, 11, 3), guest(5)), guest(1));
  channel.leave(first);
  EXPECT_EQ(channel.begin(enter(channel), hello_of(7, 11, 2), guest(6)), guest(6))
      << "it was said before, and comes late";
  EXPECT_EQ(channel.begin(enter(channel), hello_of(7, 11, 4), guest(7)), guest(5));
}

TEST(ListenChannel, AConnectionThatIsUsableGivesWayToNobody) {
  ListenChannel channel(1);
  const uint64_t place = enter(channel);
  EXPECT_FALSE(channel.begin(place, hello_of(7, 11, 2), guest(1)));
  channel.settle(place);
  EXPECT_EQ(channel.begin(enter(channel), hello_of(7, 11, 1), guest(2)), guest(2));
  EXPECT_EQ(channel.begin(enter(channel), hello_of(7, 11, 9), guest(3)), guest(3));
  channel.leave(place);
  EXPECT_FALSE(channel.begin(enter(channel), hello_of(7, 11, 1), guest(4)));
}

}  // namespace
}  // namespace nccl_ha
