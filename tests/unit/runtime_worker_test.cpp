#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "actors/nic_monitor.h"
#include "runtime/engine/worker.h"
#include "runtime/streams/uv_streams.h"
#include "tests/support/log_lines.h"

namespace nccl_ha {
namespace {

using std::chrono::milliseconds;

/// Moves by a nanosecond with every look, and counts the looks.
class CountingClock final : public Clock {
 public:
  Instant now() override {
    ++looks;
    return base + Duration(static_cast<int64_t>(looks));
  }
  Instant base{milliseconds(1)};
  uint64_t looks = 0;
};

/// Works as often as it is told to.
class Chore final : public Poller {
 public:
  std::string name() const override { return "chore"; }
  unsigned poll(Clock& time) override {
    ++polls;
    if (std::exchange(out_of_memory, false)) {
      throw std::bad_alloc();
    }
    if (asks) {
      static_cast<void>(time.now());
    }
    return work;
  }
  unsigned push(Clock& time) override {
    static_cast<void>(time);
    return ++pushes;
  }
  bool prepare_sleep() override {
    if (std::exchange(no_memory_to_sleep, false)) {
      throw std::bad_alloc();
    }
    return true;
  }
  Duration max_poll_gap() const override { return wanted_gap; }

  unsigned polls = 0;
  unsigned pushes = 0;
  unsigned work = 0;
  bool asks = false;
  bool out_of_memory = false;
  bool no_memory_to_sleep = false;
  Duration wanted_gap = milliseconds(50);

  void set_backed_off(bool on) { back_off(on); }
  void have_chores(bool any) { pending_work_ = any; }
};

class Listening final : public Actor {
 public:
  const char* name() const override { return "listening"; }
  void start(Context& context) override { context_ = &context; }
  void on(const Message& message) override {
    if (out_of_memory) {
      throw std::bad_alloc();
    }
    heard = message.a;
    context_->recorder().note(TraceEvent::cts_sent, id().index, message.a, 0);
  }
  void stop() override {
    if (out_of_memory) {
      throw std::bad_alloc();
    }
  }
  void on_no_memory() override {
    ++told;
    if (out_of_memory) {
      throw std::bad_alloc();
    }
  }
  uint64_t heard = 0;
  bool out_of_memory = false;
  unsigned told = 0;  ///< that memory ran out

 private:
  Context* context_ = nullptr;
};

/// Has something to deliver when it is stopped, which takes its time.
class Owing final : public Actor {
 public:
  Owing(bool owes, bool& delivered) : owes_(owes), delivered_(delivered) {
    timer_.bind([](void* self) { static_cast<Owing*>(self)->deliver(); }, this);
  }
  ~Owing() override { context_->timers().cancel(timer_); }
  const char* name() const override { return "owing"; }
  void start(Context& context) override { context_ = &context; }
  void on(const Message& message) override { (void)message; }
  void stop() override { context_->timers().arm(timer_, context_->now() + milliseconds(20)); }
  bool lingers() const override { return true; }
  bool owes() const override { return owes_ && !delivered_; }

 private:
  void deliver() {
    delivered_ = true;
    context_->remove_actor(id());
  }
  const bool owes_;
  bool& delivered_;
  Context* context_ = nullptr;
  Timer timer_;
};

class WorkerTest : public testing::Test {
 protected:
  WorkerTest() : worker_({}, config_, clock_, *make_uv_streams()) {
    worker_.context().add_poller(&chore_);
    static_cast<void>(worker_.quick_turn());
  }
  ~WorkerTest() override { worker_.context().remove_poller(&chore_); }

  Config config_;
  CountingClock clock_;
  Chore chore_;
  Worker worker_;
};

TEST(WorkerStop, GoesOnWhileSomethingIsOwedForALimitedTime) {
  for (const auto& [owes, limit, delivers] : {std::tuple{true, milliseconds(10000), true},
                                              {true, milliseconds(5), false},
                                              {false, milliseconds(10000), false}}) {
    const Config config;
    SteadyClock clock;
    Worker worker({}, config, clock, *make_uv_streams());
    bool delivered = false;
    ASSERT_TRUE(worker.context().add_actor(std::make_unique<Owing>(owes, delivered)));
    worker.stop(Duration(0), limit);
    EXPECT_EQ(delivered, delivers) << "owes " << owes << ", for " << limit.count() << " ms";
  }
}

TEST_F(WorkerTest, MemoryThatRunsOutIsToldToAllActorsAndTheWorkerGoesOn) {
  auto owned = std::make_unique<Listening>();
  Listening& first = *owned;
  const ActorId to_first = *worker_.context().add_actor(std::move(owned));
  owned = std::make_unique<Listening>();
  Listening& second = *owned;
  const ActorId to_second = *worker_.context().add_actor(std::move(owned));
  const auto tell = [&](const ActorId& to, uint64_t what) {
    Message message;
    message.to = to;
    message.a = what;
    worker_.context().send_self(message);
  };
  first.out_of_memory = true;
  tell(to_first, 1);
  tell(to_second, 2);
  static_cast<void>(worker_.turn());
  EXPECT_EQ(first.told, 1U);
  EXPECT_EQ(second.told, 1U);
  EXPECT_EQ(second.heard, 2U);
  EXPECT_EQ(worker_.context().counters()->out_of_memory.get(), 1U);
  // Of a timer and of a poller, too.
  first.out_of_memory = false;
  int fired = 0;
  Timer thrower;
  thrower.bind([](void*) { throw std::bad_alloc(); }, nullptr);
  Timer counting;
  counting.bind([](void* count) { ++*static_cast<int*>(count); }, &fired);
  const Instant due = clock_.base + milliseconds(5);
  worker_.context().timers().arm(thrower, due);
  worker_.context().timers().arm(counting, due);
  clock_.base += milliseconds(6);
  static_cast<void>(worker_.turn());
  static_cast<void>(worker_.turn());
  EXPECT_EQ(fired, 1);
  EXPECT_EQ(second.told, 2U);
  chore_.out_of_memory = true;
  static_cast<void>(worker_.turn());
  EXPECT_EQ(second.told, 3U);
}

TEST_F(WorkerTest, NoExceptionThatMemoryIsOutLeavesTheWorker) {
  auto owned = std::make_unique<Listening>();
  Listening& actor = *owned;
  ASSERT_TRUE(worker_.context().add_actor(std::move(owned)));
  static_cast<void>(worker_.turn());
  chore_.no_memory_to_sleep = true;
  EXPECT_FALSE(worker_.may_sleep());
  EXPECT_EQ(actor.told, 1U);
  EXPECT_TRUE(worker_.may_sleep());
  // What callers come for.
  worker_.push([] { throw std::bad_alloc(); });
  EXPECT_EQ(actor.told, 2U);
  EXPECT_FALSE(worker_.turn_unless([]() -> bool { throw std::bad_alloc(); }));
  EXPECT_EQ(actor.told, 3U);
  actor.out_of_memory = true;
  worker_.ask_to_stop();  // which ends the actor
  EXPECT_EQ(worker_.context().counters()->out_of_memory.get(), 4U);
  EXPECT_EQ(worker_.actor_count(), 0U);
}

/// Waits for what it is told to.
class FdWaiter final : public Poller {
 public:
  std::string name() const override { return "waiting"; }
  unsigned poll(Clock&) override { return 0; }
  size_t wait_fds(std::span<int> out) const override {
    out[0] = fd;
    return 1;
  }
  void wait_for(int other) {
    fd = other;
    waits_changed_ = true;
  }
  int fd = 100;
};

TEST_F(WorkerTest, WhatAPollerWaitsForMayChange) {
  FdWaiter waiting;
  worker_.context().add_poller(&waiting);
  static_cast<void>(worker_.turn());
  ASSERT_TRUE(worker_.may_sleep());
  const uint64_t version = worker_.wait_version();
  EXPECT_TRUE(worker_.may_sleep());
  EXPECT_EQ(worker_.wait_version(), version);
  waiting.wait_for(101);
  EXPECT_TRUE(worker_.may_sleep());
  EXPECT_EQ(worker_.wait_version(), version + 1) << "nobody would ask anew";
  EXPECT_EQ(std::ranges::count(worker_.wait_fds(), 101), 1);
  EXPECT_TRUE(worker_.may_sleep());
  EXPECT_EQ(worker_.wait_version(), version + 1);
  worker_.context().remove_poller(&waiting);
}

TEST_F(WorkerTest, AFullTurnReadsTheClockOnce) {
  chore_.asks = true;
  const uint64_t before = clock_.looks;
  static_cast<void>(worker_.turn());
  EXPECT_EQ(clock_.looks, before + 1);
}

TEST_F(WorkerTest, QuickTurnsReadItNowAndThenUnlessSomebodyAsks) {
  const auto looks_of = [&](unsigned turns) {
    const uint64_t before = clock_.looks;
    const unsigned polls = chore_.polls;
    for (unsigned i = 0; i < turns; ++i) {
      static_cast<void>(worker_.quick_turn());
    }
    EXPECT_EQ(chore_.polls, polls + turns);
    return clock_.looks - before;
  };
  looks_of(Worker::turns_to_see_time);
  EXPECT_EQ(looks_of(10 * Worker::turns_to_see_time), 10U);
  chore_.asks = true;
  EXPECT_EQ(looks_of(160), 160U);
  chore_.asks = false;
  // Where somebody waits for software it is looked at more often.
  Chore pressing;
  pressing.wanted_gap = milliseconds(2);
  worker_.context().add_poller(&pressing);
  looks_of(Worker::turns_to_see_time);
  EXPECT_EQ(looks_of(640), 40U);
  worker_.context().remove_poller(&pressing);
}

TEST_F(WorkerTest, QuickTurnsFireTimersAFewTurnsLateAtMost) {
  int fired = 0;
  Timer timer;
  timer.bind([](void* count) { ++*static_cast<int*>(count); }, &fired);
  worker_.context().timers().arm(timer, clock_.base + milliseconds(5));
  for (unsigned i = 0; i < Worker::turns_to_see_time; ++i) {
    static_cast<void>(worker_.quick_turn());
  }
  EXPECT_EQ(fired, 0);
  clock_.base += milliseconds(6);
  for (unsigned i = 0; i < Worker::turns_to_see_time; ++i) {
    static_cast<void>(worker_.quick_turn());
  }
  EXPECT_EQ(fired, 1);
  // Turns that know the time anyway are not late at all.
  worker_.context().timers().arm(timer, clock_.base + milliseconds(5));
  clock_.base += milliseconds(6);
  chore_.asks = true;
  static_cast<void>(worker_.quick_turn());
  EXPECT_EQ(fired, 2);
}

/// Says when it is destroyed, which it is without having been started.
class Unstarted final : public Actor {
 public:
  explicit Unstarted(unsigned& destroyed) : destroyed_(destroyed) {}
  ~Unstarted() override { ++destroyed_; }
  const char* name() const override { return "unstarted"; }
  void start(Context&) override { ADD_FAILURE() << "started by a worker that has stopped"; }
  void on(const Message&) override {}
  void stop() override {}

 private:
  unsigned& destroyed_;
};

TEST_F(WorkerTest, WhatComesAfterItStoppedIsDropped) {
  worker_.stop(milliseconds(0));
  unsigned destroyed = 0;
  ASSERT_TRUE(worker_.adopt(std::make_unique<Unstarted>(destroyed)));
  EXPECT_EQ(destroyed, 1U);
  worker_.post({});
  EXPECT_EQ(worker_.turn(), 0U);
  EXPECT_EQ(worker_.actor_count(), 0U);
}

TEST(WorkerTicks, TellSeldomCallersWhenToLookAtTheClock) {
  ASSERT_NE(cpu_ticks(), 0U) << "turns are counted on this processor";
  const Config config;
  SteadyClock clock;
  Worker::Options options;
  options.ticks = true;
  Worker worker(options, config, clock, *make_uv_streams());
  Chore chore;
  worker.context().add_poller(&chore);
  for (unsigned i = 0; i < 3 * Worker::turns_to_see_time; ++i) {
    static_cast<void>(worker.quick_turn());  // their rate is measured, between two looks
    static_cast<void>(poll(nullptr, 0, (i + 1) % Worker::turns_to_see_time == 0 ? 11 : 0));
  }
  int fired = 0;
  Timer timer;
  timer.bind([](void* count) { ++*static_cast<int*>(count); }, &fired);
  for (int i = 1; i <= 20; ++i) {
    worker.context().timers().arm(timer, clock.now() + milliseconds(1));
    static_cast<void>(poll(nullptr, 0, 4));
    static_cast<void>(worker.quick_turn());
    static_cast<void>(worker.quick_turn());
    EXPECT_EQ(fired, i) << "only turns were counted";
  }
  worker.context().remove_poller(&chore);
}

class CountedSteadyClock final : public Clock {
 public:
  Instant now() override {
    ++looks;
    return steady_.now();
  }
  unsigned looks = 0;

 private:
  SteadyClock steady_;
};

TEST(WorkerTicks, SayAboutWhenItIsWithoutALookAtTheClock) {
  ASSERT_NE(cpu_ticks(), 0U) << "turns are counted on this processor";
  const Config config;
  CountedSteadyClock clock;
  Worker::Options options;
  options.ticks = true;
  Worker worker(options, config, clock, *make_uv_streams());
  for (int i = 0; i < 4; ++i) {
    static_cast<void>(worker.context().about_now());  // their rate is measured
    static_cast<void>(poll(nullptr, 0, 11));
  }
  constexpr unsigned asked = 1000;
  const unsigned looks = clock.looks;
  for (unsigned i = 0; i < asked; ++i) {
    static_cast<void>(worker.context().about_now());
  }
  EXPECT_LT(clock.looks - looks, asked / 10) << "once in some milliseconds";
  const Instant before = clock.now();
  const Instant about = worker.context().about_now();
  const Instant after = clock.now();
  EXPECT_GE(about, before - TickClock::error_max);
  EXPECT_LE(about, after + TickClock::error_max);
  // Who knows the time says that.
  const Instant now = worker.context().now();
  EXPECT_EQ(worker.context().about_now(), now);
}

TEST_F(WorkerTest, TimersFireInTimeWhileStreamsAreInAHurry) {
  int fired = 0;
  Timer timer;
  timer.bind([](void* count) { ++*static_cast<int*>(count); }, &fired);
  worker_.context().timers().arm(timer, clock_.base + milliseconds(5));
  clock_.base += milliseconds(6);
  worker_.context().request_stream_turns(1000);
  for (unsigned i = 0; i < Worker::turns_to_see_time; ++i) {
    static_cast<void>(worker_.quick_turn());
  }
  EXPECT_EQ(fired, 1);
}

TEST_F(WorkerTest, APushSendsWhatIsPostedInItAndDoesNothingElse) {
  unsigned posts = 0;
  const unsigned polls = chore_.polls;
  const uint64_t looks = clock_.looks;
  worker_.push([&] { posts += chore_.pushes + 1; });
  EXPECT_EQ(posts, 1U) << "before it was sent";
  EXPECT_EQ(chore_.pushes, 1U);
  EXPECT_EQ(chore_.polls, polls);
  EXPECT_EQ(clock_.looks, looks);
}

TEST_F(WorkerTest, WhatIsNotedGetsItsTimeWhenTheClockIsLookedAtForAnotherReason) {
  Recorder& recorder = worker_.context().recorder();
  const uint64_t before = recorder.written();
  chore_.work = 1;
  recorder.note(TraceEvent::cts_sent, 1, 2, 3);
  static_cast<void>(worker_.quick_turn());
  chore_.work = 0;
  static_cast<void>(worker_.quick_turn());
  EXPECT_EQ(recorder.written(), before) << "nobody has asked for the time";
  chore_.asks = true;
  static_cast<void>(worker_.quick_turn());
  chore_.asks = false;
  ASSERT_EQ(recorder.written(), before + 1);
  EXPECT_EQ(
      recorder.snapshot().back().time_ns,
      (clock_.base + Duration(static_cast<int64_t>(clock_.looks))).time_since_epoch().count());
  chore_.work = 1;
  recorder.note(TraceEvent::cts_sent, 1, 2, 3);
  for (unsigned i = 0; i < Worker::turns_to_see_time; ++i) {
    static_cast<void>(worker_.quick_turn());
  }
  EXPECT_EQ(recorder.written(), before + 2) << "but it is not put off for ever";
}

TEST_F(WorkerTest, APollerThatDozesIsPolledWhenTheTimeIsKnown) {
  chore_.set_backed_off(true);
  const unsigned polls = chore_.polls;
  for (unsigned i = 0; i < 2 * Worker::turns_to_see_time; ++i) {
    static_cast<void>(worker_.quick_turn());
  }
  EXPECT_EQ(chore_.polls, polls + 2);
  static_cast<void>(worker_.turn());
  EXPECT_EQ(chore_.polls, polls + 3);
  worker_.push([] {});
  EXPECT_EQ(chore_.pushes, 0U);
  chore_.set_backed_off(false);
  static_cast<void>(worker_.quick_turn());
  EXPECT_EQ(chore_.polls, polls + 4);
  worker_.push([] {});
  EXPECT_EQ(chore_.pushes, 1U);
  chore_.have_chores(false);
  worker_.push([] {});
  EXPECT_EQ(chore_.pushes, 1U);
}

TEST_F(WorkerTest, WhoHasToWaitAnywayLooksAtTheTimeForThoseWhoDoNot) {
  for (unsigned i = 0; i < Worker::turns_to_see_time; ++i) {
    static_cast<void>(
        worker_.quick_turn());  // the first look finds out how patient the pollers are
  }
  worker_.push([] {}, true);
  const uint64_t looks = clock_.looks;
  worker_.push([] {}, true);
  EXPECT_EQ(clock_.looks, looks) << "it was looked at just now";
  for (unsigned i = 0; i < Worker::turns_to_see_time / 2; ++i) {
    static_cast<void>(worker_.quick_turn());
  }
  EXPECT_EQ(clock_.looks, looks);
  worker_.push([] {}, true);
  EXPECT_EQ(clock_.looks, looks + 1);
  for (unsigned i = 1; i < Worker::turns_to_see_time; ++i) {
    static_cast<void>(worker_.quick_turn());
  }
  EXPECT_EQ(clock_.looks, looks + 1) << "a look of its own too soon after the other";
  static_cast<void>(worker_.quick_turn());
  EXPECT_EQ(clock_.looks, looks + 2);
}

TEST_F(WorkerTest, ATurnIsOverWhenWhatIsLookedForIsThere) {
  const unsigned polls = chore_.polls;
  const uint64_t turns = worker_.turns();
  EXPECT_TRUE(worker_.turn_unless([] { return true; }));
  EXPECT_EQ(chore_.polls, polls);
  EXPECT_EQ(worker_.turns(), turns + 1) << "the fallback thread would think that nobody calls";
  EXPECT_FALSE(worker_.turn_unless([] { return false; }));
  EXPECT_EQ(chore_.polls, polls + 1);
  EXPECT_EQ(worker_.turns(), turns + 2);
}

TEST_F(WorkerTest, PatienceIsThatOfTheMostPressing) {
  EXPECT_EQ(worker_.max_poll_gap(), milliseconds(10));
  Chore pressing;
  pressing.wanted_gap = milliseconds(2);
  worker_.context().add_poller(&pressing);
  EXPECT_EQ(worker_.max_poll_gap(), milliseconds(2));
  worker_.context().remove_poller(&pressing);
  EXPECT_EQ(worker_.max_poll_gap(), milliseconds(10));
}

/// Writes down what it hears.
class Hearing final : public Actor {
 public:
  explicit Hearing(std::vector<uint64_t>& heard) : heard_(heard) {}
  const char* name() const override { return "hearing"; }
  void start(Context&) override {}
  void on(const Message& message) override { heard_.push_back(message.a); }

 private:
  std::vector<uint64_t>& heard_;
};

TEST_F(WorkerTest, WhatIsPostedWaitsForNobodyAndComesInOrderHoweverMuchItIs) {
  for (const bool quick : {true, false}) {
    std::vector<uint64_t> heard;
    const auto id = worker_.adopt(std::make_unique<Hearing>(heard));
    ASSERT_TRUE(id);
    Message message{};
    message.to = *id;
    for (message.a = 0; message.a < 2000; ++message.a) {
      worker_.post(message);  // with nobody who takes any
    }
    EXPECT_FALSE(worker_.may_sleep());
    for (unsigned turns = 0; heard.size() < 1000 && turns < 1000; ++turns) {
      static_cast<void>(quick ? worker_.quick_turn() : worker_.turn());
    }
    worker_.post(message);  // behind those that wait
    for (unsigned turns = 0; heard.size() < 2001 && turns < 1000; ++turns) {
      static_cast<void>(quick ? worker_.quick_turn() : worker_.turn());
    }
    ASSERT_EQ(heard.size(), 2001U);
    for (uint64_t i = 0; i < heard.size(); ++i) {
      ASSERT_EQ(heard[i], i);
    }
    EXPECT_TRUE(worker_.may_sleep());
    worker_.context().remove_actor(*id);
    static_cast<void>(worker_.turn());
  }
}

TEST(WorkerRoom, OneActorTooManyIsAnErrorAndWhatNeedsOneGoesOnWithout) {
  const Config config;
  CountingClock clock;
  Worker::Options options;
  options.actors_max = 1;
  Worker worker(options, config, clock, *make_uv_streams());
  fabric::NicBoard board;
  ASSERT_TRUE(worker.context().add_actor(std::make_unique<Listening>()));
  const auto none = worker.context().add_actor(std::make_unique<Listening>());
  ASSERT_FALSE(none);
  EXPECT_EQ(none.code(), Errc::no_memory);
  EXPECT_NE(none.error().what.find("HA_NCCL_PROGRESS_THREADS"), std::string::npos);
  EXPECT_FALSE(worker.adopt(std::make_unique<Listening>()));
  const test::LogLines log;
  const auto monitor = NicMonitor::of(worker.context(), board);
  ASSERT_NE(monitor, nullptr);
  EXPECT_EQ(log.count("what other threads learn of NICs is not heard"), 1U);
  board.post({fabric::NicNotice::Kind::down, {}, ""});
  static_cast<void>(worker.turn());
}

}  // namespace
}  // namespace nccl_ha
