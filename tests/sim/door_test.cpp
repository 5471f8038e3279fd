// What a worker's door says to those who come to it, and what connectors make of other doors'
// answers: versions, silence, listens that are closed.
#include "actors/door.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/fabric/datagram/udp_factory.h"
#include "tests/rig/runs/pair.h"
#include "tests/rig/runs/plugin.h"
#include "tests/support/sim_pair.h"

namespace nccl_ha::test {
namespace {

using abi::NcclResult;
using rig::SimPair;
using rig::SimPlugin;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// The first that a peer has said, and whether it has ended the stream since.
struct FirstHeard {
  std::optional<ControlType> type;
  std::vector<std::byte> payload;
  std::optional<Instant> end;
};

void note_first(ControlReader& reader, std::span<const std::byte> bytes, FirstHeard& heard) {
  EXPECT_TRUE(reader.feed(bytes));
  while (const auto message = reader.next()) {
    if (!heard.type) {
      heard.type = message->type;
      heard.payload.assign(message->payload.begin(), message->payload.end());
    }
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

/// Answers each hello with the same words.
class OtherDoor final : public Actor, private AcceptorOwner, private StreamOwner {
 public:
  OtherDoor(std::vector<std::byte> answer, uint16_t* port, FirstHeard& heard)
      : answer_(std::move(answer)), port_(port), heard_(heard) {}
  const char* name() const override { return "other-door"; }
  void start(Context& context) override {
    context_ = &context;
    const auto listening = context.streams().open_listener("0");
    ASSERT_TRUE(listening);
    auto acceptor = context.streams().adopt_listener(listening->fd, this);
    ASSERT_TRUE(acceptor);
    acceptor_ = std::move(*acceptor);
    *port_ = listening->port;
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
  }
  void on_acceptor_error(const Error&) override {}
  void on_stream_open(Stream&) override {}
  void on_stream_data(Stream& stream, std::span<const std::byte> bytes) override {
    note_first(reader_, bytes, heard_);
    if (heard_.type) {
      static_cast<void>(stream.write(answer_));
    }
  }
  void on_stream_closed(Stream&, const Error&) override {}

  const std::vector<std::byte> answer_;
  uint16_t* const port_;
  FirstHeard& heard_;
  Context* context_ = nullptr;
  std::unique_ptr<Acceptor> acceptor_;
  std::vector<std::unique_ptr<Stream>> streams_;
  ControlReader reader_;
};

/// Says that much more than its versions need.
std::vector<std::byte> with_more(std::vector<std::byte> frame, uint16_t bytes) {
  uint16_t length = 0;
  std::memcpy(&length, frame.data() + 6, sizeof length);
  length = static_cast<uint16_t>(length + bytes);
  std::memcpy(frame.data() + 6, &length, sizeof length);
  frame.resize(frame.size() + bytes, std::byte{0x5A});
  return frame;
}

/// A visitor's host, and that of the door.
class SimDoor : public testing::Test {
 protected:
  explicit SimDoor(const Config& config = {}) {
    for (uint8_t host = 1; host <= 2; ++host) {
      hosts_.push_back(*world_.add_process(sim::ip(10, 0, 0, host), config));
    }
    plugin_ = &SimPlugin::of(world_, *hosts_[1]);
  }
  ~SimDoor() override {
    for (void* comm : listens_) {
      EXPECT_EQ(plugin_->call(&SimPlugin::Table::close_listen, comm), NcclResult::success);
    }
  }
  plugin::Handle listen() {
    std::array<std::byte, plugin::handle_bytes> handle{};
    void* comm = nullptr;
    EXPECT_EQ(plugin_->call(&SimPlugin::Table::listen, plugin_->context(), 0, handle.data(), &comm),
              NcclResult::success);
    listens_.push_back(comm);
    pass(milliseconds(1));  // its actor begins
    return *plugin::read_handle(handle);
  }
  ListenChannel& channel() const {
    return *static_cast<plugin::ListenComm*>(listens_.back())->channel;
  }
  /// The oldest, say.
  void close_listen(size_t which = 0) {
    const auto one = listens_.begin() + static_cast<ptrdiff_t>(which);
    EXPECT_EQ(plugin_->call(&SimPlugin::Table::close_listen, *one), NcclResult::success);
    listens_.erase(one);
    pass(milliseconds(1));
  }
  const Door& door() const { return *static_cast<plugin::ListenComm*>(listens_.back())->door; }
  static Hello hello_for(const plugin::Handle& handle, const VersionRange& versions) {
    Hello hello;
    hello.versions = versions;
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

/// Versions 18 and 19, say, of which this process speaks the first.
TEST_F(SimDoor, ANewerPeerIsAnsweredInTheVersionThatBothSpeak) {
  const auto handle = listen();
  const VersionRange newer{control_version, control_version + 1};
  visit(handle, with_more(encode(hello_for(handle, newer)), 37));
  ASSERT_TRUE(hears(ControlType::welcome));
  const auto welcome = decode_welcome(heard_.payload);
  ASSERT_TRUE(welcome);
  EXPECT_EQ(welcome->version, control_version);
  EXPECT_EQ(welcome->paths.size(), 1U);
  EXPECT_FALSE(channel().failed()) << channel().failure().message();
}

TEST_F(SimDoor, APeerOfTheVersionBeforeIsAnsweredInThat) {
  const auto handle = listen();
  visit(handle, encode(hello_for(handle, {17, 17})));
  ASSERT_TRUE(hears(ControlType::welcome));
  const auto welcome = decode_welcome(heard_.payload);
  ASSERT_TRUE(welcome);
  EXPECT_EQ(welcome->version, 17);
  EXPECT_FALSE(channel().failed()) << channel().failure().message();
}

TEST_F(SimDoor, APeerWithoutACommonVersionIsToldWhatEachSpeaks) {
  const struct {
    VersionRange versions;
    const char* said;
  } cases[] = {{{15, 16}, "16 to 16 there"},  // which names the newer one only
               {{control_version + 1, control_version + 2}, "19 to 20 there"}};
  static_assert(control_version == 18 && own_versions.oldest == 17, "they are named below");
  for (const auto& one : cases) {
    heard_ = {};
    const auto handle = listen();
    visit(handle, encode(hello_for(handle, one.versions)));
    ASSERT_TRUE(hears(ControlType::reject)) << one.said;
    const auto refusal = decode_refusal(heard_.payload);
    ASSERT_TRUE(refusal);
    for (const char* part : {"17 to 18 here", one.said, "install the same nccl-ha"}) {
      EXPECT_NE(refusal->text.find(part), std::string::npos) << refusal->text;
    }
    ASSERT_TRUE(channel().failed()) << "accept() has nothing to tell";
    EXPECT_EQ(channel().failure().what, refusal->text);
  }
}

/// The same from the other side: a connector, and doors that speak what it does not.
TEST(SimOtherDoor, AWelcomeInAVersionThatThisOneDoesNotSpeakEndsTheConnect) {
  for (const uint16_t version : {uint16_t{16}, uint16_t{19}}) {
    ASSERT_FALSE(own_versions.has(version));
    FirstHeard heard;
    SimPair pair(61, {});
    Welcome welcome;
    welcome.version = version;
    welcome.paths.emplace_back();
    uint16_t port = 0;
    ASSERT_TRUE(pair.receiver().engine->worker(0).adopt(
        std::make_unique<OtherDoor>(encode(welcome), &port, heard)));
    ASSERT_TRUE(pair.world().run_until([&] { return port != 0; }, seconds(1)));
    pair.dial(pair.receiver().address, port);
    ASSERT_TRUE(pair.world().run_until([&] { return pair.send_channel().phase() == Phase::failed; },
                                       seconds(2)));
    ASSERT_EQ(heard.type, ControlType::hello);
    const auto hello = decode_hello(heard.payload);
    ASSERT_TRUE(hello);
    EXPECT_EQ(hello->versions.oldest, own_versions.oldest);
    EXPECT_EQ(hello->versions.newest, own_versions.newest);
    const std::string range = std::to_string(version) + " to " + std::to_string(version) + " there";
    EXPECT_NE(pair.error().find("17 to 18 here"), std::string::npos) << pair.error();
    EXPECT_NE(pair.error().find(range), std::string::npos) << pair.error();
  }
}

TEST_F(SimDoor, WhoAsksForNothingThatIsThereIsToldSo) {
  auto handle = listen();
  handle.nonce ^= 1;
  visit(handle, encode(hello_for(handle, own_versions)));
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
  visit(handle, encode(hello_for(handle, own_versions)), seconds(3));
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
  close_listen();
  visit(second, encode(hello_for(second, own_versions)));
  EXPECT_TRUE(hears(ControlType::welcome)) << "the second is still there";
  close_listen();
  // The connection that is being made may be asked for until it has ended.
  ASSERT_TRUE(world_.run_until([&] { return actors(*hosts_[1]) == 0; }, seconds(60)));
  pass(milliseconds(10));  // the first visitor hears of that
  heard_ = {};
  visit(second, encode(hello_for(second, own_versions)));
  ASSERT_TRUE(world_.run_until([&] { return heard_.end.has_value(); }, seconds(1)));
  EXPECT_FALSE(heard_.type) << "somebody still answers there";
  EXPECT_NE(listen().port, second.port);
}

/// As each is waited for by a listen, and its NIC may take long for what its hello says.
TEST_F(SimDoor, SoManyWaitAsThereAreListensBesideThoseThatNobodyKnows) {
  constexpr size_t peers = 300;
  std::vector<plugin::Handle> handles;
  for (size_t i = 0; i < peers; ++i) {
    handles.push_back(listen());
  }
  for (const plugin::Handle& handle : handles) {
    visit(handle, encode(hello_for(handle, own_versions)), milliseconds(500));
  }
  pass(milliseconds(100));
  EXPECT_EQ(door().waiting(), peers);
}

Config two_workers() {
  Config config;
  config.progress_threads = 2;
  return config;
}

class SimTwoDoors : public SimDoor {
 protected:
  SimTwoDoors() : SimDoor(two_workers()) {}
  /// That of the newest listen.
  uint32_t worker() const {
    return static_cast<plugin::ListenComm*>(listens_.back())->worker->context().worker_index();
  }
  size_t actors_of(size_t worker) const { return hosts_[1]->engine->worker(worker).actor_count(); }
};

/// A listen counts as the connection that it is for.
TEST_F(SimTwoDoors, ListensAreSpreadOverThemAndTheirConnectionsLiveThere) {
  const auto first = listen();
  EXPECT_EQ(worker(), 0U);
  const auto second = listen();
  EXPECT_EQ(worker(), 1U);
  EXPECT_NE(first.port, second.port);
  EXPECT_EQ(listen().port, first.port);
  EXPECT_EQ(worker(), 0U);
  close_listen(2);
  close_listen(0);
  listen();
  EXPECT_EQ(worker(), 0U) << "what was closed still counts";
  const std::array before{actors_of(0), actors_of(1)};
  visit(second, encode(hello_for(second, own_versions)));
  ASSERT_TRUE(hears(ControlType::welcome));
  EXPECT_EQ(actors_of(0), before[0]);
  EXPECT_GT(actors_of(1), before[1]);
}

}  // namespace
}  // namespace nccl_ha::test
