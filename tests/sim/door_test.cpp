// What a worker's door says to those who come to it.
#include "actors/door.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "runtime/fabric/datagram/udp_factory.h"
#include "tests/rig/runs/plugin.h"
#include "tests/support/sim_pair.h"

namespace nccl_ha::test {
namespace {

using abi::NcclResult;
using rig::SimPlugin;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Table = SimPlugin::Table;

/// The first that a peer has said, and whether it has ended the stream since.
struct FirstHeard {
  std::optional<ControlType> type;
  std::vector<std::byte> payload;
  std::optional<Instant> end;
};

void note_first(ControlReader& reader, std::span<const std::byte> bytes, FirstHeard& heard) {
  EXPECT_TRUE(reader.feed(bytes));
  const auto message = reader.next();
  if (message && !heard.type) {
    heard.type = message->type;
    heard.payload.assign(message->payload.begin(), message->payload.end());
  }
}

/// Dials, and says that after a while; nothing: says nothing.
class DoorVisitor final : public Actor, private StreamOwner {
 public:
  DoorVisitor(const sockaddr_storage& to, std::vector<std::byte> words, Duration after,
              FirstHeard& heard)
      : to_(to), words_(std::move(words)), after_(after), heard_(heard) {
    timer_.bind([](void* self) { static_cast<DoorVisitor*>(self)->speak(); }, this);
  }
  ~DoorVisitor() override { stop(); }
  const char* name() const override { return "visitor"; }
  void start(Context& context) override {
    context_ = &context;
    auto dialled =
        context.streams().connect_tcp(reinterpret_cast<const sockaddr*>(&to_), nullptr, this);
    ASSERT_TRUE(dialled) << dialled.error().message();
    stream_ = std::move(*dialled);
  }
  void on(const Message&) override {}
  void stop() override {
    if (context_ != nullptr) {
      context_->timers().cancel(timer_);
    }
    stream_.reset();
  }

 private:
  void speak() { static_cast<void>(stream_->write(words_)); }
  void on_stream_open(Stream&) override {
    if (!words_.empty()) {
      context_->timers().arm(timer_, context_->now() + after_);
    }
  }
  void on_stream_data(Stream&, std::span<const std::byte> bytes) override {
    note_first(reader_, bytes, heard_);
  }
  void on_stream_closed(Stream&, const Error&) override { heard_.end = context_->now(); }

  const sockaddr_storage to_;
  const std::vector<std::byte> words_;
  const Duration after_;
  FirstHeard& heard_;
  Context* context_ = nullptr;
  std::unique_ptr<Stream> stream_;
  ControlReader reader_;
  Timer timer_;
};

/// A visitor's host, and that of the door.
class SimDoor : public testing::Test {
 protected:
  SimDoor() {
    for (uint8_t host = 1; host <= 2; ++host) {
      hosts_.push_back(*world_.add_process(sim::ip(10, 0, 0, host), Config{}));
    }
    plugin_ = &SimPlugin::of(world_, *hosts_[1]);
  }
  ~SimDoor() override {
    for (void* comm : listens_) {
      EXPECT_EQ(plugin_->call(&Table::close_listen, comm), NcclResult::success);
    }
  }
  plugin::Handle listen() {
    std::array<std::byte, plugin::handle_bytes> handle{};
    void* comm = nullptr;
    EXPECT_EQ(plugin_->call(&Table::listen, plugin_->context(), 0, handle.data(), &comm),
              NcclResult::success);
    listens_.push_back(comm);
    pass(milliseconds(1));  // its actor begins
    return *plugin::read_handle(handle);
  }
  ListenChannel& channel() const {
    return *static_cast<plugin::ListenComm*>(listens_.back())->channel;
  }
  const Door& door() const { return *static_cast<plugin::ListenComm*>(listens_.back())->door; }
  static Hello hello_for(const plugin::Handle& handle) {
    Hello hello;
    hello.nonce = handle.nonce;
    hello.kind = fabric::datagram_kind;
    hello.backup = true;
    hello.host = "visitor";
    hello.paths = {{{}, "it is none", 0, 0, {}}};
    return hello;
  }
  void visit(const plugin::Handle& handle, std::vector<std::byte> words, Duration after = {}) {
    const auto to = sim::Endpoint{hosts_[1]->address, handle.port}.to_sockaddr();
    ASSERT_TRUE(hosts_[0]->engine->worker(0).adopt(
        std::make_unique<DoorVisitor>(to, std::move(words), after, heard_)));
  }
  bool hears(ControlType type, Duration within = seconds(1)) {
    return world_.run_until([&] { return heard_.type.has_value(); }, within) &&
           *heard_.type == type;
  }
  void pass(Duration time) {
    static_cast<void>(world_.run_until([] { return false; }, time));
  }

  FirstHeard heard_;  // its visitors end first
  sim::World world_{23};
  std::vector<sim::Process*> hosts_;
  SimPlugin* plugin_ = nullptr;
  std::vector<void*> listens_;
};

TEST_F(SimDoor, WhoAsksForNothingThatIsThereIsToldSo) {
  auto handle = listen();
  handle.nonce ^= 1;
  visit(handle, encode(hello_for(handle)));
  ASSERT_TRUE(hears(ControlType::absent));
  heard_ = {};
  visit(handle, encode(ControlType::rejoin, RejoinCall{Secret::heard(1), own_process()}));
  ASSERT_TRUE(hears(ControlType::absent));
  EXPECT_FALSE(channel().failed()) << channel().failure().message();
  EXPECT_EQ(door().waiting(), 0U);
}

TEST_F(SimDoor, WhoSaysNothingLeavesItsPlaceInTime) {
  const auto handle = listen();
  visit(handle, {});
  const Instant begin = world_.now();
  ASSERT_TRUE(world_.run_until([&] { return door().waiting() == 1; }, seconds(1)));
  ASSERT_TRUE(world_.run_until([&] { return heard_.end.has_value(); }, seconds(10)));
  EXPECT_GE(*heard_.end - begin, seconds(5)) << "HA_NCCL_HANDSHAKE_TIMEOUT_MS is 5000";
  EXPECT_LE(*heard_.end - begin, milliseconds(5200));
  EXPECT_EQ(door().waiting(), 0U);
}

/// It is there, and only was not read yet.
TEST_F(SimDoor, AHelloThatCameWhileTheProcessStoodStillCounts) {
  const auto handle = listen();
  visit(handle, encode(hello_for(handle)), seconds(3));
  ASSERT_TRUE(world_.run_until([&] { return door().waiting() == 1; }, seconds(1)));
  world_.pause(*hosts_[1], world_.now() + seconds(8));
  pass(seconds(7));
  ASSERT_FALSE(heard_.type) << "it did not stand still";
  EXPECT_TRUE(hears(ControlType::welcome, seconds(3)));
}

/// All of a worker's, and as long as there is anything to come for.
TEST_F(SimDoor, ListensShareADoorWhichClosesWithTheLast) {
  const auto first = listen();
  const auto second = listen();
  EXPECT_EQ(first.port, second.port);
  EXPECT_NE(first.nonce, second.nonce);
  const auto close_first = [&] {
    EXPECT_EQ(plugin_->call(&Table::close_listen, listens_.front()), NcclResult::success);
    listens_.erase(listens_.begin());
    pass(milliseconds(1));
  };
  close_first();
  visit(second, encode(hello_for(second)));
  EXPECT_TRUE(hears(ControlType::welcome)) << "the second is still there";
  close_first();
  // The connection that is being made may be asked for until it has ended.
  ASSERT_TRUE(world_.run_until([&] { return actors(*hosts_[1]) == 0; }, seconds(60)));
  pass(milliseconds(10));  // the first visitor hears of that
  heard_ = {};
  visit(second, encode(hello_for(second)));
  ASSERT_TRUE(world_.run_until([&] { return heard_.end.has_value(); }, seconds(1)));
  EXPECT_FALSE(heard_.type) << "somebody still answers there";
  EXPECT_NE(listen().port, second.port);
}

}  // namespace
}  // namespace nccl_ha::test
