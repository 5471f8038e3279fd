#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/engine/engine.h"
#include "runtime/streams/stream.h"
#include "runtime/streams/uv_streams.h"
#include "tests/support/until.h"

namespace nccl_ha {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::until;

/// What tests see of an actor that lives on another thread.
struct Seen {
  std::atomic<uint32_t> started{0};
  std::atomic<uint32_t> stopped{0};
  std::atomic<uint32_t> destroyed{0};
  std::atomic<uint32_t> messages{0};
  std::atomic<uint32_t> timers{0};
  std::atomic<uint32_t> next[4] = {};
  std::atomic<bool> disorder{false};
};

class Probe final : public Actor {
 public:
  explicit Probe(Seen& seen) : seen_(seen) {
    timer_.bind([](void* self) { static_cast<Probe*>(self)->seen_.timers.fetch_add(1); }, this);
  }
  ~Probe() override {
    if (context_ != nullptr) {
      context_->timers().cancel(timer_);
    }
    seen_.destroyed.fetch_add(1);
  }
  const char* name() const override { return "probe"; }
  void start(Context& context) override {
    context.assert_owner();
    context_ = &context;
    seen_.started.fetch_add(1);
  }
  void on(const Message& message) override {
    context_->assert_owner();
    if (message.kind == 1) {
      if (seen_.next[message.arg].load() != message.a) {
        seen_.disorder.store(true);
      }
      seen_.next[message.arg].store(static_cast<uint32_t>(message.a) + 1);
    } else if (message.kind == 2) {
      context_->timers().arm(timer_, context_->now() + Duration(static_cast<int64_t>(message.a)));
    } else if (message.kind == 3) {
      context_->remove_actor(id());
    }
    seen_.messages.fetch_add(1);
  }
  void stop() override { seen_.stopped.fetch_add(1); }

 private:
  Seen& seen_;
  Context* context_ = nullptr;
  Timer timer_;
};

Config config_for(bool threads, int64_t workers = 1) {
  Config config;
  config.use_progress_thread = threads;
  config.progress_threads = workers;
  return config;
}

/// One thread closes a connection while another one finalizes.
TEST(EngineInline, EndsAfterTheTurnInWhichACallerIs) {
  auto started = Engine::start(config_for(false));
  ASSERT_TRUE(started) << started.error().message();
  std::unique_ptr<Engine> engine = std::move(*started);
  Seen seen;
  ASSERT_TRUE(engine->worker(0).adopt(std::make_unique<Probe>(seen)));
  std::atomic<bool> inside{false};
  std::atomic<bool> leaves{false};
  std::atomic<uint32_t> stopped_meanwhile{0};
  std::thread calls([&, raw = engine.get()] {
    Engine::WorkerSlot& slot = *raw->slot_of(raw->worker(0));
    Engine::Caller caller;
    const auto post = [&] {
      inside.store(true);
      static_cast<void>(until([&] { return leaves.load(); }));
      stopped_meanwhile.store(seen.stopped.load());
    };
    while (!raw->turn(slot, caller, post, false)) {
      sched_yield();  // the fallback thread is turning it
    }
  });
  EXPECT_TRUE(until([&] { return inside.load(); }));
  std::thread ends([&] { engine.reset(); });
  EXPECT_FALSE(until([&] { return seen.stopped.load() != 0; }, milliseconds(100)));
  leaves.store(true);
  calls.join();
  ends.join();
  EXPECT_EQ(stopped_meanwhile.load(), 0U);
  EXPECT_EQ(seen.stopped.load(), 1U);
}

/// Echoes on a TCP stream; counts what it hears.
class Echo final : public Actor, private StreamOwner, private AcceptorOwner {
 public:
  struct Log {
    std::atomic<uint64_t> bytes{0};
    std::atomic<uint32_t> accepted{0};
    std::atomic<uint32_t> closed{0};
  };
  Echo(int fd, Log& log) : fd_(fd), log_(log) {}
  const char* name() const override { return "echo"; }
  void start(Context& context) override {
    context_ = &context;
    context.request_stream_turns(1000000);
    auto acceptor = context.streams().adopt_listener(fd_, this);
    ASSERT_TRUE(acceptor);
    acceptor_ = std::move(*acceptor);
  }
  void on(const Message&) override {}
  void stop() override {
    acceptor_.reset();
    streams_.clear();
  }

 private:
  void on_accept(int fd) override {
    auto stream = context_->streams().adopt_fd(fd, this);
    ASSERT_TRUE(stream);
    streams_.push_back(std::move(*stream));
    log_.accepted.fetch_add(1);
  }
  void on_acceptor_error(const Error&) override {}
  void on_stream_open(Stream&) override {}
  void on_stream_data(Stream& stream, std::span<const std::byte> bytes) override {
    log_.bytes.fetch_add(bytes.size());
    EXPECT_TRUE(stream.write(bytes));
  }
  void on_stream_closed(Stream& stream, const Error&) override {
    log_.closed.fetch_add(1);
    std::erase_if(streams_, [&](const auto& other) { return other.get() == &stream; });
  }
  int fd_;
  Log& log_;
  Context* context_ = nullptr;
  std::unique_ptr<Acceptor> acceptor_;
  std::vector<std::unique_ptr<Stream>> streams_;
};

class EngineModes : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    auto engine = Engine::start(config_for(GetParam(), 2));
    ASSERT_TRUE(engine);
    engine_ = std::move(*engine);
  }
  Message to(ActorId id, uint32_t kind, uint32_t arg = 0, uint64_t a = 0) {
    Message message{};
    message.to = id;
    message.kind = kind;
    message.arg = arg;
    message.a = a;
    return message;
  }
  // Before the engine: its actors report to these until they are destroyed.
  Seen seen_;
  Echo::Log echo_;
  std::unique_ptr<Engine> engine_;
};

TEST_P(EngineModes, EachSendersMessagesArriveInOrder) {
  auto id = engine_->worker(0).adopt(std::make_unique<Probe>(seen_));
  ASSERT_TRUE(id && until([&] {
                engine_->assist_all();
                return seen_.started.load() == 1;
              }));
  std::vector<std::thread> senders;
  for (uint32_t s = 0; s < 3; ++s) {
    senders.emplace_back([&, s] {
      auto address = engine_->worker(0).open_address(4);
      ASSERT_TRUE(address);
      for (uint64_t i = 0; i < 20000; ++i) {
        while (!address->try_send(to(*id, 1, s, i))) {
          engine_->assist(engine_->worker(0));
          sched_yield();
        }
      }
    });
  }
  for (std::thread& sender : senders) {
    sender.join();
  }
  EXPECT_TRUE(until([&] {
    engine_->assist(engine_->worker(0));
    return seen_.messages.load() == 60000;
  }));
  EXPECT_FALSE(seen_.disorder.load());
}

TEST_P(EngineModes, MessagesToRemovedActorsAreDroppedAndCounted) {
  auto id = engine_->worker(1).adopt(std::make_unique<Probe>(seen_));
  ASSERT_TRUE(id);
  engine_->worker(1).post(to(*id, 3));
  ASSERT_TRUE(until([&] {
    engine_->assist_all();
    return seen_.destroyed.load() == 1;
  }));
  engine_->worker(1).post(to(*id, 1));
  EXPECT_TRUE(until([&] {
    engine_->assist_all();
    return engine_->worker(1).statistics().dropped_messages.get() == 1;
  }));
  EXPECT_EQ(engine_->worker(1).actor_count(), 0U);
}

TEST_P(EngineModes, TimersFireWhoeverSleeps) {
  auto id = engine_->worker(0).adopt(std::make_unique<Probe>(seen_));
  ASSERT_TRUE(id);
  // Nobody calls assist(): in inline mode the fallback thread has to do it.
  engine_->worker(0).post(to(*id, 2, 0, 30'000'000));
  EXPECT_TRUE(until([&] { return seen_.timers.load() == 1; }));
}

/// Polls what has no memory to say what it waits for, a few times.
class Forgetful final : public Actor {
 public:
  static constexpr uint32_t times = 3;
  explicit Forgetful(std::atomic<uint32_t>& asked) : poller_(asked) {}
  const char* name() const override { return "forgetful"; }
  void start(Context& context) override {
    context_ = &context;
    context.add_poller(&poller_);
  }
  void on(const Message&) override {}
  void stop() override { context_->remove_poller(&poller_); }

 private:
  struct Waiting final : Poller {
    explicit Waiting(std::atomic<uint32_t>& count) : asked(count) {}
    std::string name() const override { return "forgetful"; }
    unsigned poll(Clock&) override { return 0; }
    size_t wait_fds(std::span<int>) const override {
      if (asked.fetch_add(1) < times) {
        throw std::bad_alloc();
      }
      return 0;
    }
    std::atomic<uint32_t>& asked;
  };
  Waiting poller_;
  Context* context_ = nullptr;
};

TEST_P(EngineModes, WithoutMemoryForWhatIsWaitedForItIsAskedAgainSoon) {
  std::atomic<uint32_t> asked{0};
  ASSERT_TRUE(engine_->worker(0).adopt(std::make_unique<Forgetful>(asked)));
  EXPECT_TRUE(until([&] { return asked.load() > Forgetful::times; }));
  const auto id = engine_->worker(0).adopt(std::make_unique<Probe>(seen_));
  ASSERT_TRUE(id);
  EXPECT_TRUE(until([&] { return seen_.started.load() == 1; })) << "somebody still turns it";
  engine_.reset();
}

TEST_P(EngineModes, AdoptFromManyThreads) {
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        auto id = engine_->worker(static_cast<size_t>(t % 2)).adopt(std::make_unique<Probe>(seen_));
        ASSERT_TRUE(id);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_TRUE(until([&] {
    engine_->assist_all();
    return seen_.started.load() == 800;
  }));
  engine_.reset();
  EXPECT_EQ(seen_.stopped.load(), 800U);
  EXPECT_EQ(seen_.destroyed.load(), 800U);
}

TEST_P(EngineModes, StopWithMessagesStillQueued) {
  auto id = engine_->worker(0).adopt(std::make_unique<Probe>(seen_));
  ASSERT_TRUE(id);
  for (uint64_t i = 0; i < 100; ++i) {
    engine_->worker(0).post(to(*id, 1, 0, i));
  }
  auto address = engine_->worker(0).open_address(2);
  ASSERT_TRUE(address);
  engine_.reset();
  EXPECT_EQ(seen_.destroyed.load(), 1U);
  EXPECT_TRUE(address->try_send(to(*id, 1))) << "an orphaned address stays harmless";
}

TEST_P(EngineModes, IdleCostsNothing) {
  auto id = engine_->worker(0).adopt(std::make_unique<Probe>(seen_));
  ASSERT_TRUE(id && until([&] { return seen_.started.load() == 1; }));
  const auto cpu = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
  };
  const auto wait = [](int64_t ms) {
    const timespec time{ms / 1000, ms % 1000 * 1000000};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &time, nullptr);
  };
  wait(100);
  const double before = cpu();
  wait(2000);
  EXPECT_LT(cpu() - before, 0.02);
}

TEST_P(EngineModes, ManyStreamsEchoAndClose) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(listen(listener, 256), 0);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length), 0);
  Echo::Log& log = echo_;
  ASSERT_TRUE(engine_->worker(0).adopt(std::make_unique<Echo>(listener, log)));
  std::vector<int> clients;
  for (int i = 0; i < 200; ++i) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(send(fd, "hello", 5, MSG_NOSIGNAL), 5);
    clients.push_back(fd);
  }
  for (const int fd : clients) {
    char buffer[5];
    ASSERT_TRUE(until([&] {
      engine_->assist_all();
      return recv(fd, buffer, 5, MSG_DONTWAIT) == 5;
    }));
    EXPECT_EQ(std::string(buffer, 5), "hello");
    close(fd);
  }
  EXPECT_TRUE(until([&] {
    engine_->assist_all();
    return log.closed.load() == 200;
  }));
  EXPECT_EQ(log.accepted.load(), 200U);
  EXPECT_EQ(log.bytes.load(), 1000U);
}

INSTANTIATE_TEST_SUITE_P(Modes, EngineModes, ::testing::Bool(), [](const auto& instance) {
  return std::string(instance.param ? "threads" : "inline");
});

TEST(EngineInline, CallersAndStandbyNeverTurnAtOnce) {
  // Owner checks in the probe and TSan watch; the callers come and go so that the fallback thread
  // takes over and gives back many times.
  Seen seen;  // before the engine: its actors report to it until they are destroyed
  auto started = Engine::start(config_for(false));
  ASSERT_TRUE(started);
  auto engine = std::move(*started);
  auto id = engine->worker(0).adopt(std::make_unique<Probe>(seen));
  // Between two senders there is no order: the actor must be there before others write to it.
  ASSERT_TRUE(id && until([&] { return seen.started.load() == 1; }));
  std::vector<std::thread> callers;
  std::atomic<uint32_t> sent{0};
  for (uint32_t t = 0; t < 3; ++t) {
    callers.emplace_back([&, t] {
      auto address = engine->worker(0).open_address(4);
      ASSERT_TRUE(address);
      for (uint64_t round = 0; round < 30; ++round) {
        Message message{};
        message.to = *id;
        message.kind = 1;
        message.arg = t;
        message.a = round;
        while (!address->try_send(message)) {
          sched_yield();
        }
        const uint32_t mine = sent.fetch_add(1) + 1;
        if (round % 2 == 0) {
          for (int i = 0; i < 50; ++i) {
            engine->assist(engine->worker(0));
          }
        } else {  // silent until the fallback thread has done it
          EXPECT_TRUE(until([&] { return seen.messages.load() + 3 >= mine; }));
        }
      }
    });
  }
  for (std::thread& caller : callers) {
    caller.join();
  }
  EXPECT_TRUE(until([&] { return seen.messages.load() == 90; }))
      << "the fallback thread finishes the rest";
  EXPECT_FALSE(seen.disorder.load());
}

TEST(EngineInline, AWorkerLeftAloneIsTurnedWhileCallersTurnAnother) {
  Seen seen;
  auto started = Engine::start(config_for(false, 2));
  ASSERT_TRUE(started);
  auto engine = std::move(*started);
  auto busy = engine->worker(0).adopt(std::make_unique<Probe>(seen));
  auto alone = engine->worker(1).adopt(std::make_unique<Probe>(seen));
  ASSERT_TRUE(busy && alone && until([&] { return seen.started.load() == 2; }));
  const uint64_t before = engine->worker(0).turns();
  for (uint64_t i = 0; i < 20; ++i) {
    Message message{};
    message.to = *alone;
    message.kind = 1;
    message.a = i;
    engine->worker(1).post(message);
    // This caller never turns worker 1, and never stops turning worker 0.
    ASSERT_TRUE(until([&] {
      engine->assist(engine->worker(0));
      return seen.messages.load() == i + 1;
    })) << i;
  }
  EXPECT_GT(engine->worker(0).turns(), before + 20);
}

TEST(EngineInline, TimersAreInTimeHoweverSeldomCallersCall) {
  Seen seen;
  auto started = Engine::start(config_for(false));
  ASSERT_TRUE(started);
  auto engine = std::move(*started);
  auto id = engine->worker(0).adopt(std::make_unique<Probe>(seen));
  ASSERT_TRUE(id && until([&] { return seen.started.load() == 1; }));
  Message message{};
  message.to = *id;
  message.kind = 2;
  message.a = 20'000'000;
  engine->worker(0).post(message);
  for (int i = 0; i < 82; ++i) {  // the callers' next look at the clock is 62 calls away
    engine->assist(engine->worker(0));
  }
  uint32_t calls = 0;
  for (; calls < 200 && seen.timers.load() == 0; ++calls) {
    engine->assist(engine->worker(0));
    static_cast<void>(poll(nullptr, 0, 2));
  }
  EXPECT_EQ(seen.timers.load(), 1U);
  EXPECT_LT(calls, 30U) << "only the callers' own looks at the clock found it";
}

// On virtual time: a caller that is put aside for 10 ms no longer calls all along.
TEST(EngineInline, TheStandbyAsksLessOftenWhoCallsAllAlongAndStillTakesOver) {
  Seen seen;
  ManualClock clock;
  clock.set(Instant(seconds(1)));
  auto engine =
      Engine::start_virtual(config_for(false), clock, 1, [] { return *make_uv_streams(); });
  auto id = engine->worker(0).adopt(std::make_unique<Probe>(seen));
  ASSERT_TRUE(id);
  // Of 10 ms there would be a hundred; of 10, 20, 40, 80 and then 100 there are a dozen.
  unsigned looks = 0;
  Instant due = clock.now();
  for (const Instant end = clock.now() + seconds(1); clock.now() < end;
       clock.advance(std::chrono::microseconds(10))) {
    engine->assist(engine->worker(0));
    if (clock.now() >= due) {
      const Engine::Rest rest = engine->turn_fallback();
      ASSERT_EQ(rest.kind, Engine::Rest::Kind::interval) << "somebody calls";
      due = *rest.until;
      ++looks;
    }
  }
  EXPECT_EQ(seen.started.load(), 1U);
  EXPECT_GT(looks, 5U);
  EXPECT_LT(looks, 40U);
  // Nobody calls any more, which it sees when it has looked twice.
  Message message{};
  message.to = *id;
  message.kind = 1;
  engine->worker(0).post(message);
  for (int look = 0; look < 2; ++look) {
    clock.set(due);
    due = engine->turn_fallback().until.value_or(due);
  }
  EXPECT_EQ(seen.messages.load(), 1U);
}

/// As a signal's handler does that calls exit() in the middle of a turn.
TEST(EngineInline, EndsInATurnOfTheThreadThatEndsIt) {
  class Last final : public Actor {
   public:
    explicit Last(std::unique_ptr<Engine>& engine) : engine_(engine) {}
    const char* name() const override { return "last"; }
    void start(Context&) override {}
    /// Not in a turn of the standby's, which would wait for itself.
    void on(const Message&) override {
      if (std::this_thread::get_id() == maker_) {
        engine_.reset();
        _exit(7);
      }
    }

   private:
    std::unique_ptr<Engine>& engine_;
    const std::thread::id maker_ = std::this_thread::get_id();
  };
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);
    auto engine = std::move(*Engine::start(config_for(false)));
    Message message{};
    message.to = *engine->worker(0).adopt(std::make_unique<Last>(engine));
    for (;;) {
      engine->worker(0).post(message);
      engine->assist(engine->worker(0));
    }
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
}

TEST(EngineInline, WhoOnlyWaitsGetsSeveralTurns) {
  auto started = Engine::start(config_for(false));
  ASSERT_TRUE(started);
  auto engine = std::move(*started);
  Engine::WorkerSlot& slot = *engine->slot_of(engine->worker(0));
  Engine::Caller caller;
  const int one = 1;
  const int other = 2;
  // Turns that were made until `limit` of them were enough.
  const auto turns_for = [&](const int& what, unsigned limit) {
    unsigned turns = 0;
    while (turns == 0) {  // the fallback thread may be at it
      engine->turn_for(
          slot, caller, &what, [&] { return ++turns == 0; }, [&] { return turns >= limit; });
    }
    return turns;
  };
  EXPECT_EQ(turns_for(one, 1000), 1U);
  EXPECT_EQ(turns_for(one, 1000), Engine::wait_poll_limit) << "it has asked before";
  EXPECT_EQ(turns_for(one, 3), 3U) << "what it asked for is there";
  EXPECT_EQ(turns_for(other, 1000), 1U);
  EXPECT_EQ(turns_for(one, 1000), 1U) << "it has something else to serve";
  bool posted = false;
  while (!posted) {
    posted = engine->turn(
        slot, caller, [] {}, false);
  }
  EXPECT_EQ(turns_for(one, 1000), 1U) << "it has done something else";
}

TEST(EngineStart, ABadProcessorListIsAClearError) {
  Config config = config_for(true);
  config.progress_cpus = "0-";
  auto engine = Engine::start(config);
  ASSERT_FALSE(engine);
  EXPECT_NE(engine.error().what.find("HA_NCCL_PROGRESS_CPUS"), std::string::npos);
}

TEST(EngineStart, PlacesByLoad) {
  auto engine = Engine::start(config_for(true, 3));
  ASSERT_TRUE(engine);
  EXPECT_EQ((*engine)->assign_worker(-1, 1.0), 0U);
  EXPECT_EQ((*engine)->assign_worker(-1, 1.0), 1U);
  EXPECT_EQ((*engine)->assign_worker(-1, 1.0), 2U);
  (*engine)->add_load(1, -1.0);
  EXPECT_EQ((*engine)->assign_worker(-1, 1.0), 1U);
}

}  // namespace
}  // namespace nccl_ha
