// How a caller's submissions and words reach a connection's actor, whoever turns the worker.
#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <memory>

#include "actors/endpoint.h"
#include "runtime/streams/uv_streams.h"
#include "tests/support/until.h"

namespace nccl_ha {
namespace {

using test::until;

/// Counts the requests that a connection's actor would be told of, and what else it hears.
class Taker final : public Actor {
 public:
  struct Counts {
    std::atomic<size_t> taken{0};
    std::atomic<size_t> others{0};
  };
  Taker(ReceiveEndpoint& endpoint, Counts& counts) : endpoint_(endpoint), counts_(counts) {}
  const char* name() const override { return "taker"; }
  void start(Context&) override {}
  void on(const Message& message) override {
    if (message.kind != static_cast<uint32_t>(ConnectionMessage::doorbell)) {
      counts_.others.fetch_add(1);
    }
    uint16_t index = 0;
    while (endpoint_.driver.take_news() != 0) {
      while (endpoint_.channel.next_submitted(&index)) {
        counts_.taken.fetch_add(1);
      }
    }
  }

 private:
  ReceiveEndpoint& endpoint_;
  Counts& counts_;
};

/// Keeps its worker in a turn for as long as a test wants.
class Holder final : public Actor {
 public:
  struct Switch {
    std::atomic<bool> held{false};
    std::atomic<bool> release{false};
  };
  explicit Holder(Switch& hold) : hold_(hold) {}
  const char* name() const override { return "holder"; }
  void start(Context&) override {}
  void on(const Message&) override {
    hold_.held.store(true);
    while (!hold_.release.load()) {
      sched_yield();
    }
  }

 private:
  Switch& hold_;
};

/// A driver of a worker that is kept in a turn from the beginning.
class HeldWorkerTest : public testing::Test {
 protected:
  void SetUp() override {
    Config config;
    config.use_progress_thread = false;
    auto started = Engine::start(config);
    ASSERT_TRUE(started);
    engine_ = std::move(*started);
    Worker& worker = engine_->worker(0);
    receiver_ = std::make_unique<ReceiveEndpoint>(1, fabric::Attachment{}, worker, *engine_);
    const auto taker = worker.adopt(std::make_unique<Taker>(*receiver_, counts_));
    const auto holder = worker.adopt(std::make_unique<Holder>(hold_));
    ASSERT_TRUE(taker && holder);
    Message message{};
    message.to = *holder;
    worker.post(message);
    ASSERT_TRUE(until([&] { return hold_.held.load(); })) << "no fallback thread turned the worker";
    auto address = worker.open_address(2);
    ASSERT_TRUE(address);
    receiver_->driver.attach(*taker, std::move(*address));
  }
  void TearDown() override {
    hold_.release.store(true);
    engine_.reset();  // its actors look at the rest
  }
  void submit() {
    ReceiveRequest* request = receiver_->channel.acquire();
    ASSERT_NE(request, nullptr);
    receiver_->channel.submit(*request);
    receiver_->driver.submit();
  }

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<ReceiveEndpoint> receiver_;
  Taker::Counts counts_;
  Holder::Switch hold_;
};

TEST_F(HeldWorkerTest, RequestsThatFindTheWorkerHeldAreTakenHoweverManyTheyAre) {
  for (size_t i = 0; i < receives_max; ++i) {
    submit();  // and never again: nobody may have to ask twice
  }
  EXPECT_EQ(counts_.taken.load(), 0U) << "the worker was not held";
  hold_.release.store(true);
  EXPECT_TRUE(until([&] { return counts_.taken.load() == receives_max; })) << counts_.taken.load();
}

TEST_F(HeldWorkerTest, WhatFindsTheMailboxFullIsTakenWithTheMessagesThatFillIt) {
  size_t others = 0;
  while (receiver_->driver.suspect(0)) {
    ++others;
  }
  ASSERT_GT(others, 0U);
  submit();
  EXPECT_EQ(counts_.taken.load(), 0U) << "the worker was not held";
  hold_.release.store(true);
  EXPECT_TRUE(until([&] { return counts_.others.load() == others; }));
  EXPECT_TRUE(until([&] { return counts_.taken.load() == 1; }));
}

/// What a caller asks of the connection in its own turn.
class CountingServer final : public Server {
 public:
  void on_submitted() override { ++submitted; }
  bool poll_cts() override {
    ++asked;
    return has_place;
  }
  void on_completion(const fabric::Completion&) override {}
  void on_path_state(fabric::Path&, fabric::PathState, const Error&) override {}
  void on_fence_stuck(fabric::Path&, const Error&) override {}

  unsigned submitted = 0;
  unsigned asked = 0;
  bool has_place = false;
};

TEST(Driver, ServesASubmissionInTheCallersOwnTurnOrLeavesADoorbell) {
  ManualClock clock;
  Config config;
  config.use_progress_thread = false;
  const auto engine = Engine::start_virtual(config, clock, 1, [] { return *make_uv_streams(); });
  Worker& worker = engine->worker(0);
  Driver driver(worker, *engine, false);
  auto address = worker.open_address(2);
  ASSERT_TRUE(address);
  driver.attach(ActorId{0, 1}, std::move(*address));
  EXPECT_TRUE(driver.callers_turn());

  driver.submit();  // nobody serves yet
  EXPECT_EQ(driver.take_news(), static_cast<uint32_t>(CallerNews::submitted));
  EXPECT_EQ(driver.take_news(), 0U);

  CountingServer server;
  driver.serve_by(&server);
  const uint64_t turns = worker.turns();
  driver.submit();
  EXPECT_EQ(server.submitted, 1U);
  EXPECT_EQ(worker.turns(), turns + 1) << "submitting is one turn";
  EXPECT_EQ(driver.take_news(), 0U) << "nothing was left in the mailbox";

  // A place that is found in memory ends the turn; else the caller asks again, and waits.
  server.has_place = true;
  driver.wait_for_cts([] { return true; });
  EXPECT_EQ(server.asked, 1U);
  server.has_place = false;
  driver.wait_for_cts([] { return false; });
  EXPECT_GT(server.asked, 1U);

  driver.report_oversize();
  driver.close();
  EXPECT_EQ(driver.take_news(),
            static_cast<uint32_t>(CallerNews::oversize) | static_cast<uint32_t>(CallerNews::close));
}

}  // namespace
}  // namespace nccl_ha
