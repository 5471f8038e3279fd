// The parts of one connection on virtual time, over paths and streams that write down what they are
// given; what they say is written down as well.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/connection/control_link.h"
#include "actors/connection/failover.h"
#include "actors/connection/liveness.h"
#include "actors/connection/path_set.h"
#include "actors/connection/side.h"
#include "actors/connection/state.h"
#include "tests/rig/sim/world.h"
#include "tests/support/silent_path.h"

namespace nccl_ha {

/// An actor that owns parts and leads them nowhere.
class BenchActor final : public Actor,
                         private ConnectionOwner,
                         private ControlLink::Owner,
                         private Liveness::Owner {
 public:
  BenchActor(fabric::Provider& provider, Engine& engine, size_t lanes)
      : state(*this, provider, engine), lanes_(lanes) {}
  ~BenchActor() override {
    liveness.stop();
    failover.stop();
    paths.clear();
  }

  const char* name() const override { return "bench"; }
  void start(Context& context) override {
    state.context = &context;
    state.id = id();
    state.backup = true;
    state.attachment.kind = state.provider.devices().front().kind;
    state.enter(ConnectionPhase::usable);
    failover.begin(context.config());
    paths.add_shadows(lanes_);
    for (Lane& lane : paths.lanes()) {
      lane.control.box = std::make_shared<ControlBox>();
      lane.control.peer_box = 0x10000;
      renew_path(lane);
      control.boxes().begin(lane);
      lane.usable = true;
    }
  }
  void on(const Message& message) override {
    if (message.kind == act_kind) {
      std::exchange(action, {})();
    } else if (message.kind == static_cast<uint32_t>(ConnectionMessage::inbox)) {
      control.read_inbox();
    }
  }

  SilentPath& path(size_t lane = 0) { return static_cast<SilentPath&>(paths.lane(lane).path()); }
  /// As a path that was made anew.
  static void renew_path(Lane& lane) {
    lane.owned.path = std::make_unique<SilentPath>();
    lane.writes_open = 0;
    lane.control.heartbeats_open = 0;
  }
  ConnectionParts parts() { return {state, paths, control, liveness, failover}; }

  ConnectionState state;
  PathSet paths{state};
  ControlLink control{*this, state, paths};
  Liveness liveness{*this, state, paths, control};
  Failover failover{state, paths, control, liveness};

  static constexpr uint32_t act_kind = 1000;
  std::function<void()> action;  ///< of the next message of that kind
  std::vector<uint32_t> heard;   ///< numbers of messages
  std::vector<size_t> lanes_failed;
  std::vector<size_t> work_back;
  std::vector<std::string> failures;

 private:
  // ConnectionOwner
  void fail(const Error& error, bool tell_peer) override {
    (void)tell_peer;
    failures.push_back(error.message());
  }
  std::string peer_text() const override { return "a peer"; }
  void on_path_state(fabric::Path&, fabric::PathState, const Error&) override {}
  void on_path_link_down(fabric::Path& path, const Error& why) override {
    (void)path;
    (void)why;
  }
  void on_path_address(fabric::Path&) override {}
  void on_fence_stuck(const Error& error) override { fail(error, true); }
  void on_late_completion(const fabric::Completion&) override {}
  void on_work_back(size_t lane) override { work_back.push_back(lane); }
  void on_lane_decided() override {}
  // ControlLink::Owner
  void on_stream_open(Stream&) override {}
  void on_control(const ControlReader::Message& message) override {
    heard.push_back(message.number);
  }
  void on_confirm() override {}
  void on_last_words() override {}
  void on_peer_left() override {}
  void on_heard() override {}
  void on_unconfirmed() override {}
  void on_stream_lost(const Error&) override {}
  void on_stream_back() override {}
  bool takes_streams() const override { return false; }
  bool peer_may_leave() const override { return false; }
  const Error& failure() const override { return failure_; }
  void on_refused(const Refusal&) override {}
  void on_peer_gone(const Error& why) override { fail(why, true); }
  void on_attempt() override {}
  void on_inbox() override {
    Message wake{};
    wake.to = id();
    wake.kind = static_cast<uint32_t>(ConnectionMessage::inbox);
    state.context->send_self(wake);
  }
  // Liveness::Owner
  void on_lane_failed(size_t lane, const Error&) override {
    lanes_failed.push_back(lane);
    paths.lane(lane).usable = false;
  }
  void on_domain_up(const fabric::FailureDomain&) override {}
  void on_looked() override {}

  size_t lanes_;
  Error failure_{};
};

/// Usable, with some lanes.
class ConnectionBench : public testing::Test {
 protected:
  explicit ConnectionBench(size_t lanes = 1,
                           std::vector<sim::Ip> addresses = {sim::ip(10, 0, 0, 1)})
      : lanes_(lanes), addresses_(std::move(addresses)) {}
  void SetUp() override {
    auto process = world_.add_process(addresses_, Config{});
    ASSERT_TRUE(process);
    engine_ = (*process)->engine;
    auto made = std::make_unique<BenchActor>(*(*process)->provider, *engine_, lanes_);
    bench_ = made.get();
    ASSERT_TRUE(engine_->worker(0).adopt(std::move(made)));
    pass(std::chrono::microseconds(10));
  }
  void pass(Duration time) {
    static_cast<void>(world_.run_until([] { return false; }, time));
  }

  /// Does it in a turn of the worker, which is when time is read.
  void act(std::function<void()> action) {
    bench_->action = std::move(action);
    Message message{};
    message.to = bench_->id();
    message.kind = BenchActor::act_kind;
    bench_->state.context->send_self(message);
    ASSERT_TRUE(world_.run_until([&] { return !bench_->action; }, std::chrono::milliseconds(1)));
  }
  /// That post is acknowledged.
  fabric::Completion completion_of(size_t lane, const fabric::WritePost& post) {
    fabric::Completion completion;
    completion.path = &bench_->path(lane);
    completion.id = post.id;
    for (uint32_t i = 0; i < post.gather_count; ++i) {
      completion.bytes += post.gathers[i].length;
    }
    return completion;
  }
  /// A write of the peer with that immediate, for which it had a credit.
  fabric::Completion arrival(size_t lane, uint32_t immediate, size_t bytes) {
    ++bench_->paths.lane(lane).credits_open;
    fabric::Completion completion;
    completion.path = &bench_->path(lane);
    completion.kind = fabric::CompletionKind::receive_immediate;
    completion.has_immediate = true;
    completion.immediate = immediate;
    completion.bytes = static_cast<uint32_t>(bytes);
    return completion;
  }

  sim::World world_{1};
  Engine* engine_ = nullptr;
  BenchActor* bench_ = nullptr;  // its worker's

 private:
  size_t lanes_;
  std::vector<sim::Ip> addresses_;  ///< an interface each
};

}  // namespace nccl_ha
