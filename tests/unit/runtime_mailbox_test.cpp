#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "runtime/base/slot_table.h"
#include "runtime/engine/idle.h"
#include "runtime/engine/mailbox.h"
#include "runtime/engine/parker.h"

namespace nccl_ha {
namespace {

struct Parcel {
  uint32_t sender;
  uint32_t number;
};

TEST(Mailbox, AGreedySenderCannotStarveAnother) {
  // Without credits the queue's blocks would stay with whoever took them first, for ever.
  Mailbox<Parcel> mailbox(64, 2);
  auto first = mailbox.open(32);
  auto second = mailbox.open(32);
  ASSERT_TRUE(first && second);
  for (int round = 0; round < 20000; ++round) {
    size_t from_first = 0;
    size_t from_second = 0;
    while (first->try_send({1, 0})) {
      ++from_first;
    }
    while (second->try_send({2, 0})) {
      ++from_second;
    }
    ASSERT_EQ(from_first, 32U);
    ASSERT_EQ(from_second, 32U);
    ASSERT_EQ(mailbox.drain(1000, [](const Parcel&) {}), 64U);
  }
  EXPECT_EQ(first->rejected(), 20000U);
}

TEST(Mailbox, CreditsAndSendersAreBounded) {
  Mailbox<Parcel> mailbox(10, 2);
  auto first = mailbox.open(8);
  ASSERT_TRUE(first);
  EXPECT_FALSE(mailbox.open(3)) << "only two credits are left";
  EXPECT_FALSE(mailbox.open(0));
  auto second = mailbox.open(2);
  ASSERT_TRUE(second);
  auto third = mailbox.open(1);
  EXPECT_EQ(third.code(), Errc::no_memory);
}

TEST(Mailbox, AClosedSendersMessagesStillArriveAndItsPlaceIsReused) {
  Mailbox<Parcel> mailbox(4, 1);
  for (uint32_t round = 0; round < 100; ++round) {
    auto address = mailbox.open(4);
    ASSERT_TRUE(address) << round;
    ASSERT_TRUE(address->try_send({0, round}));
    *address = Address<Parcel>();  // closed with a message queued
    EXPECT_FALSE(mailbox.open(4)) << "its message has not been taken out";
    uint32_t got = UINT32_MAX;
    EXPECT_EQ(mailbox.drain(10, [&](const Parcel& note) { got = note.number; }), 1U);
    EXPECT_EQ(got, round);
  }
}

TEST(Mailbox, AddressesOutliveASharedMailbox) {
  auto mailbox = std::make_shared<Mailbox<Parcel>>(4, 1);
  auto address = mailbox->open(4);
  ASSERT_TRUE(address);
  mailbox->detach_waker();
  mailbox.reset();
  EXPECT_TRUE(address->try_send({1, 2}));
}

TEST(Mailbox, TheSlotIsNoWayPastTheQueue) {
  Mailbox<Parcel> mailbox(4, 1);
  auto address = mailbox.open(4);
  ASSERT_TRUE(address);
  std::vector<uint32_t> got;
  const auto take = [&](const Parcel& parcel) { got.push_back(parcel.number); };
  ASSERT_TRUE(address->try_send({0, 1}));
  ASSERT_TRUE(address->try_send({0, 2}));  // finds the slot in use
  EXPECT_EQ(mailbox.drain(1, take), 1U);
  ASSERT_TRUE(address->try_send({0, 3}));  // finds it empty
  EXPECT_EQ(mailbox.drain(4, take), 2U);
  EXPECT_EQ(got, (std::vector<uint32_t>{1, 2, 3}));
}

TEST(Mailbox, EachSendersMessagesArriveInOrder) {
  constexpr uint32_t senders = 3;
  constexpr uint32_t messages = 60000;
  Mailbox<Parcel> mailbox(senders * 64, senders);
  std::vector<std::thread> threads;
  for (uint32_t s = 0; s < senders; ++s) {
    auto address = mailbox.open(64);
    ASSERT_TRUE(address);
    threads.emplace_back([s, to = std::move(*address)]() mutable {
      for (uint32_t i = 0; i < messages; ++i) {
        while (!to.try_send({s, i})) {
          std::this_thread::yield();
        }
      }
    });
  }
  std::vector<uint32_t> next(senders, 0);
  size_t received = 0;
  while (received < size_t{senders} * messages) {
    const size_t got = mailbox.drain(64, [&](const Parcel& note) {
      ASSERT_EQ(note.number, next[note.sender]);
      ++next[note.sender];
    });
    received += got;
    if (got == 0) {
      std::this_thread::yield();
    }
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_TRUE(mailbox.looks_empty());
}

TEST(Parker, ANapEndsWithAWakeAndNotWithADescriptor) {
  using std::chrono::milliseconds;
  auto parker = Parker::make();
  ASSERT_TRUE(parker);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(write(ends[1], "x", 1), 1);
  (*parker)->watch({ends[0]});
  SteadyClock clock;
  const Instant started = clock.now();
  (*parker)->wait_until(started + milliseconds(30), started);
  EXPECT_GE(clock.now() - started, milliseconds(30));
  (*parker)->wake();
  (*parker)->wait_until(started + std::chrono::seconds(60), started);  // at once
  // It took the wake with it, and what is watched is still watched.
  (*parker)->wait_until(clock.now() + milliseconds(30), clock.now());
  (*parker)->sleep(started + std::chrono::seconds(60), started);
  EXPECT_LT(clock.now() - started, std::chrono::seconds(30));
  close(ends[0]);
  close(ends[1]);
}

TEST(Mailbox, NoWakeUpIsLost) {
  // A receiver that sleeps whenever it sees nothing; a sender that mostly sends one at a time, so
  // that nearly every message meets a receiver about to fall asleep.
  constexpr uint32_t messages = 1'000'000;
  auto parker = Parker::make();
  ASSERT_TRUE(parker);
  Mailbox<Parcel> mailbox(4, 1, parker->get());
  auto address = mailbox.open(4);
  ASSERT_TRUE(address);
  std::atomic<uint32_t> taken{0};
  std::thread sender([&, to = std::move(*address)]() mutable {
    for (uint32_t i = 0; i < messages; ++i) {
      while (!to.try_send({0, i})) {
        std::this_thread::yield();
      }
      if (i % 7 == 0) {
        while (taken.load(std::memory_order_acquire) <= i) {
          std::this_thread::yield();
        }
      }
    }
  });
  uint32_t received = 0;
  uint64_t sleeps = 0;
  SteadyClock clock;
  while (received < messages) {
    received += static_cast<uint32_t>(mailbox.drain(8, [](const Parcel&) {}));
    taken.store(received, std::memory_order_release);
    if (received == messages) {
      break;
    }
    (*parker)->sleeping.exchange(1, std::memory_order_seq_cst);
    if (mailbox.looks_empty()) {
      ++sleeps;
      const Instant before = clock.now();
      (*parker)->sleep(before + std::chrono::seconds(20), before);
      ASSERT_LT(clock.now() - before, std::chrono::seconds(15)) << "a wake-up was lost";
    }
    (*parker)->sleeping.store(0, std::memory_order_seq_cst);
  }
  sender.join();
  EXPECT_GT(sleeps, 0U) << "the test never slept and proves nothing";
}

TEST(MailboxDeathTest, GoingBeforeItsAddressesIsABug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        auto mailbox = std::make_unique<Mailbox<Parcel>>(4, 1);
        auto address = mailbox->open(4);
        mailbox.reset();
      },
      "a mailbox was destroyed before its addresses");
}

TEST(IdlePolicy, SpinsYieldsSleepsForAsLongAsIsSet) {
  using std::chrono::microseconds;
  Config config;
  config.idle_spin_us = 10;
  config.idle_yield_us = 100;
  IdlePolicy idle(config);
  const Instant t0(std::chrono::seconds(5));
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(idle.next(true, t0), IdlePolicy::Step::spin);
  }
  EXPECT_EQ(idle.next(false, t0), IdlePolicy::Step::spin);
  EXPECT_EQ(idle.next(false, t0 + microseconds(9)), IdlePolicy::Step::spin);
  EXPECT_EQ(idle.next(false, t0 + microseconds(11)), IdlePolicy::Step::yield);
  EXPECT_EQ(idle.next(false, t0 + microseconds(109)), IdlePolicy::Step::yield);
  EXPECT_EQ(idle.next(false, t0 + microseconds(111)), IdlePolicy::Step::sleep);
  EXPECT_EQ(idle.next(false, t0 + microseconds(150)), IdlePolicy::Step::sleep)
      << "woken for nothing";
  EXPECT_EQ(idle.next(true, t0 + microseconds(200)), IdlePolicy::Step::spin);
  EXPECT_EQ(idle.next(false, t0 + microseconds(201)), IdlePolicy::Step::spin);
}

TEST(IdlePolicy, YieldsForAsLongAsTheTurnsSinceItSleptAllow) {
  using std::chrono::microseconds;
  const microseconds yield(2000);
  IdlePolicy idle(microseconds(0), yield);
  Instant t(std::chrono::seconds(5));
  // How long it yields after so many turns with work, each of which comes `apart` after the other.
  const auto yields = [&](int turns, microseconds apart) {
    t += std::chrono::seconds(1);
    for (int i = 0; i < turns; ++i, t += apart) {
      EXPECT_EQ(idle.next(true, t), IdlePolicy::Step::spin);
      EXPECT_EQ(idle.next(false, t), IdlePolicy::Step::spin);
    }
    EXPECT_EQ(idle.next(true, t), IdlePolicy::Step::spin);
    EXPECT_EQ(idle.next(false, t), IdlePolicy::Step::spin);
    const Instant since = t;
    while (idle.next(false, t) == IdlePolicy::Step::yield) {
      t += microseconds(1);
    }
    return t - since;
  };
  EXPECT_EQ(yields(0, microseconds(0)), IdlePolicy::yield_per_turn);
  EXPECT_EQ(yields(5, microseconds(5000)), 6 * IdlePolicy::yield_per_turn) << "it did not run";
  EXPECT_EQ(yields(200, microseconds(10)), yield);
  EXPECT_EQ(yields(1, microseconds(10)), 2 * IdlePolicy::yield_per_turn) << "it slept in between";
}

TEST(SlotTable, StaleHandlesFindNothing) {
  SlotTable<int> table(2);
  int a = 1;
  int b = 2;
  const auto first = table.insert(&a);
  ASSERT_TRUE(first);
  EXPECT_EQ(table.find(*first), &a);
  EXPECT_EQ(Handle::unpack(first->pack()), *first);
  EXPECT_TRUE(table.erase(*first));
  EXPECT_FALSE(table.erase(*first));
  const auto second = table.insert(&b);
  EXPECT_EQ(second->index, first->index);
  EXPECT_EQ(table.find(*first), nullptr);
  EXPECT_EQ(table.find(*second), &b);
  EXPECT_TRUE(table.insert(&a));
  EXPECT_FALSE(table.insert(&a)) << "full";
}

}  // namespace
}  // namespace nccl_ha
