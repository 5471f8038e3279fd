// Threads and callers that drive a worker in turn (runtime/engine/engine.h).
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "runtime/engine/engine.h"
#include "runtime/streams/uv_streams.h"
#include "tests/support/until.h"

namespace nccl_ha {
namespace {

/// What senders' messages, which are numbered, came to.
struct Heard {
  std::atomic<uint64_t> messages{0};
  std::atomic<bool> disorder{false};
  std::array<std::atomic<uint64_t>, 4> next{};
};

class Hearer final : public Actor {
 public:
  explicit Hearer(Heard& heard) : heard_(heard) {}
  const char* name() const override { return "hearer"; }
  void start(Context& context) override { context_ = &context; }
  void on(const Message& message) override {
    context_->assert_owner();
    if (heard_.next[message.arg].load() != message.a) {
      heard_.disorder.store(true);
    }
    heard_.next[message.arg].store(message.a + 1);
    heard_.messages.fetch_add(1);
  }
  void stop() override {}

 private:
  Heard& heard_;
  Context* context_ = nullptr;
};

/// Threads with callers, in which the test is the thread.
class Helped : public ::testing::Test {
 protected:
  Helped() {
    config_.use_progress_thread = true;
    clock_.set(Instant{std::chrono::seconds(1)});
    engine_ = Engine::start_virtual(
        config_, clock_, 1, [] { return *make_uv_streams(); }, true);
    slot_ = engine_->slot_of(engine_->worker(0));
  }
  uint64_t turns() { return engine_->worker(0).turns(); }

  ManualClock clock_;
  Config config_;
  std::unique_ptr<Engine> engine_;
  Engine::WorkerSlot* slot_ = nullptr;
  Engine::Caller caller_;
};

TEST_F(Helped, ACallerLeavesTheWorkerToAThreadThatRuns) {
  EXPECT_EQ(engine_->mode(), Engine::Mode::threads);
  ASSERT_NE(slot_, nullptr);
  for (int i = 0; i < 5; ++i) {
    EXPECT_FALSE(engine_->turn_thread(0).stands_by_until);
    const uint64_t before = turns();
    EXPECT_FALSE(engine_->turn(*slot_, caller_));
    clock_.advance(Engine::help_after);
    EXPECT_EQ(turns(), before);
  }
  EXPECT_EQ(engine_->worker(0).statistics().taken_over, 0U);
}

TEST_F(Helped, ACallerTurnsTheWorkerOfAThreadThatDoesNotRunAndGoesOn) {
  static_cast<void>(engine_->turn_thread(0));
  EXPECT_FALSE(engine_->turn(*slot_, caller_));
  clock_.advance(std::chrono::milliseconds(1));  // longer than help_after in any unit
  const uint64_t before = turns();
  EXPECT_TRUE(engine_->turn(*slot_, caller_));
  EXPECT_TRUE(engine_->turn(*slot_, caller_));
  Engine::Caller other;
  EXPECT_TRUE(engine_->turn(*slot_, other)) << "others need not wait";
  EXPECT_EQ(turns(), before + 3);
  EXPECT_EQ(engine_->worker(0).statistics().taken_over, 1U);
  EXPECT_TRUE(engine_->worker(0).context().callers_drive());
}

TEST_F(Helped, TheThreadStandsByWhileCallersCallAndComesBackAfterItsPause) {
  static_cast<void>(engine_->turn_thread(0));
  engine_->give_to_callers(0);
  const auto call = [&] {
    for (unsigned i = 0; i < 2 * Worker::turns_to_see_time; ++i) {
      EXPECT_TRUE(engine_->turn(*slot_, caller_));
    }
  };
  call();
  const Instant begun = clock_.now();
  Engine::ThreadTurn turn = engine_->turn_thread(0);
  while (turn.stands_by_until) {
    ASSERT_LT(clock_.now(), begun + DrivePolicy::longest_pause);
    clock_.set(*turn.stands_by_until);
    call();
    turn = engine_->turn_thread(0);
  }
  EXPECT_GE(clock_.now(), begun + DrivePolicy::first_pause);
  EXPECT_FALSE(engine_->turn(*slot_, caller_)) << "the thread drives again";
  EXPECT_FALSE(engine_->worker(0).context().callers_drive());
}

TEST_F(Helped, TheThreadDrivesWhenNobodyCallsUntilSomebodyDoes) {
  static_cast<void>(engine_->turn_thread(0));
  for (int i = 0; i < 4; ++i) {  // its pause is longer than callers may be away
    slot_->policy.stand_by(clock_.now());
  }
  engine_->give_to_callers(0);
  Engine::ThreadTurn turn = engine_->turn_thread(0);
  ASSERT_TRUE(turn.stands_by_until);
  EXPECT_LE(*turn.stands_by_until - clock_.now(), engine_->worker(0).max_poll_gap());
  clock_.set(*turn.stands_by_until);
  const uint64_t before = turns();
  EXPECT_FALSE(engine_->turn_thread(0).stands_by_until);
  EXPECT_EQ(turns(), before + 1);
  EXPECT_FALSE(engine_->turn(*slot_, caller_)) << "it runs";
  EXPECT_FALSE(engine_->turn_thread(0).stands_by_until);
  EXPECT_TRUE(engine_->turn(*slot_, caller_)) << "and gave the worker back";
}

TEST_F(Helped, AThreadThatComesBackIsNotTakenForOneThatDoesNotRun) {
  static_cast<void>(engine_->turn_thread(0));
  EXPECT_FALSE(engine_->turn(*slot_, caller_));
  clock_.advance(std::chrono::milliseconds(1));
  EXPECT_TRUE(engine_->turn(*slot_, caller_)) << "it did not run";
  while (engine_->turn_thread(0).stands_by_until) {
    clock_.advance(DrivePolicy::first_pause);
  }
  EXPECT_FALSE(engine_->turn(*slot_, caller_)) << "its turns are news, however long that took";
  EXPECT_EQ(engine_->worker(0).statistics().taken_over, 1U);
}

/// With a processor that the thread has for itself; on a busy machine it may be taken over again.
TEST(EngineThreads, AThreadComesBackToWorkBesideACallerThatPolls) {
  auto started = Engine::start(Config{});
  ASSERT_TRUE(started);
  auto engine = std::move(*started);
  Engine::WorkerSlot& slot = *engine->slot_of(engine->worker(0));
  Engine::Caller caller;
  engine->give_to_callers(0);
  const uint64_t before = slot.thread_turns.load();
  // Its first turn shows more than that it looked.
  EXPECT_TRUE(test::until([&] {
    static_cast<void>(engine->turn(slot, caller));
    return slot.thread_turns.load() > before + 10;
  })) << "taken over again before each first turn";
}

TEST(EngineThreads, CallersAndThreadChangeHandsAtAnyPointAndNothingIsLost) {
  auto started = Engine::start(Config{});
  ASSERT_TRUE(started);
  auto engine = std::move(*started);
  Heard heard;
  auto id = engine->worker(0).adopt(std::make_unique<Hearer>(heard));
  ASSERT_TRUE(id);
  // Each sender is a caller as well, and one of them takes the worker over all the time.
  constexpr uint32_t callers = 3;
  constexpr uint64_t messages = 20000;
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < callers; ++t) {
    threads.emplace_back([&, t] {
      auto address = engine->worker(0).open_address(8);
      ASSERT_TRUE(address);
      Engine::WorkerSlot& slot = *engine->slot_of(engine->worker(0));
      Engine::Caller caller;
      for (uint64_t i = 0; i < messages; ++i) {
        Message message{};
        message.to = *id;
        message.kind = 1;
        message.arg = t;
        message.a = i;
        while (!address->try_send(message)) {
          static_cast<void>(engine->turn(slot, caller));
        }
        if (t == 0 && i % 16 == 0) {
          engine->give_to_callers(0);
        }
        static_cast<void>(engine->turn(slot, caller));
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_TRUE(test::until([&] { return heard.messages.load() == callers * messages; }))
      << "nobody calls any more";
  EXPECT_FALSE(heard.disorder.load());
  for (uint32_t t = 0; t < callers; ++t) {
    EXPECT_EQ(heard.next[t].load(), messages);
  }
}

}  // namespace
}  // namespace nccl_ha
