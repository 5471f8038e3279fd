// The data path allocates nothing.  Sanitizers bring their own malloc (and ThreadSanitizer swaps
// the mailbox's queue), so this is for the other builds.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/engine/mailbox.h"
#include "runtime/engine/timer_wheel.h"

// glibc's own allocator behind the name that this file takes over.
extern "C" void* __libc_malloc(size_t bytes);

namespace {
thread_local uint64_t allocations = 0;
}  // namespace

// Takes malloc's place in this test program; operator new comes here as well.
extern "C" void* malloc(size_t bytes) {
  ++allocations;
  return __libc_malloc(bytes);
}

namespace nccl_ha {
namespace {

struct Note {
  uint32_t sender;
  uint32_t number;
};

TEST(MailboxMemory, TheCountSeesAllocations) {
  const uint64_t before = allocations;
  // Called through a volatile pointer: the compiler may leave out an allocation nobody looks at.
  void* (*volatile allocate)(size_t) = &malloc;
  free(allocate(100));
  EXPECT_EQ(allocations, before + 1);
  std::vector<int>* (*volatile make)() = [] { return new std::vector<int>(10); };
  delete make();
  EXPECT_EQ(allocations, before + 3);
}

TEST(MailboxMemory, SendingAndDrainingAllocateNothing) {
  // As many senders as a busy process has, with credits of all sizes.
  constexpr uint32_t senders = 500;
  std::vector<size_t> credits(senders, 4);
  credits[0] = 256;
  credits[1] = 33;
  credits[2] = 1;
  size_t total = 0;
  for (const size_t count : credits) {
    total += count;
  }
  Mailbox<Note> mailbox(total, senders);
  std::vector<Address<Note>> addresses;
  for (const size_t count : credits) {
    auto address = mailbox.open(count);
    ASSERT_TRUE(address);
    addresses.push_back(std::move(*address));
  }
  // No warm-up: the room was made when the addresses were opened.
  const uint64_t before = allocations;
  size_t sent = 0;
  size_t received = 0;
  for (uint32_t round = 0; round < 200; ++round) {
    for (uint32_t s = 0; s < senders; ++s) {
      const size_t had = addresses[s].credits_left();
      size_t taken = 0;
      while (addresses[s].try_send({s, round})) {
        ++taken;
      }
      ASSERT_EQ(taken, had) << "a credit is a promise: sender " << s << ", round " << round;
      sent += taken;
    }
    // Some rounds leave messages behind, so that blocks change hands partly filled.
    const size_t limit = round % 3 == 0 ? total / 2 : SIZE_MAX;
    received += mailbox.drain(limit, [](const Note&) {});
  }
  received += mailbox.drain(SIZE_MAX, [](const Note&) {});
  EXPECT_EQ(allocations, before);
  EXPECT_EQ(received, sent);
}

TEST(MailboxMemory, TimersAllocateNothing) {
  TimerWheel wheel(Instant{});
  Timer timer;
  timer.bind([](void*) {}, nullptr);
  const uint64_t before = allocations;
  for (int64_t us = 0; us < 100000; us += 7) {
    wheel.arm(timer, Instant(std::chrono::microseconds(us + us % 5000)));
    wheel.expire(Instant(std::chrono::microseconds(us)));
  }
  wheel.cancel(timer);
  EXPECT_EQ(allocations, before);
}

}  // namespace
}  // namespace nccl_ha
#endif
