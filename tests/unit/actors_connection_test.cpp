// What both sides of a connection do alike, over a path and streams that only write down what they
// are given: control messages and their boxes, streams that take each other's place, new paths.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "actors/connection.h"
#include "runtime/sim/world.h"

namespace nccl_ha {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// Takes everything and completes nothing.
class SilentPath final : public fabric::Path {
 public:
  std::span<const std::byte> local_address() const override { return {}; }
  Result<void> connect(std::span<const std::byte>) override { return {}; }
  fabric::PathState state() const override { return fabric::PathState::ready; }
  fabric::CompletionStatus cause() const override { return fabric::CompletionStatus::ok; }
  Errc post_write(const fabric::WritePost& post) override {
    posts.push_back(post);
    return Errc::ok;
  }
  Errc post_send(const fabric::SendPost&) override { return Errc::invalid_usage; }
  Errc post_receive(const fabric::ReceivePost&) override { return Errc::ok; }
  void fail(const Error&) override {}
  std::string describe() const override { return "silent"; }

  std::vector<fabric::WritePost> posts;
};

class SilentStream final : public Stream {
 public:
  void set_owner(StreamOwner*) override {}
  Result<void> write(std::span<const std::byte>) override { return {}; }
  void shutdown_then_close() override {}
  Result<sockaddr_storage> local_address() override { return sockaddr_storage{}; }
  Result<sockaddr_storage> peer_address() override { return sockaddr_storage{}; }
};

/// Ready, with one path.
class BareConnection final : public Connection {
 public:
  using Connection::Connection;
  using Connection::on_stream_data;
  using Connection::read_stream;
  using Connection::send_control;
  using Connection::start_heartbeats;
  using Connection::take_into_use;
  using Connection::take_stream;

  const char* name() const override { return "bare-connection"; }
  void on_submitted() override {}
  void on_completion(const fabric::Completion& completion) override {
    EXPECT_TRUE(on_control_completion(completion, lane()));
  }
  Lane& lane() { return lanes_.front(); }
  SilentPath& path() { return static_cast<SilentPath&>(lane().path()); }
  /// As a path that was made anew.
  void renew_path() {
    lane().owned.path = std::make_unique<SilentPath>();
    lane().writes_open = 0;
    lane().heartbeats_open = 0;
  }
  bool failed() const { return failed_; }

  std::vector<uint32_t> heard;  ///< numbers of messages
  unsigned paths_failed = 0;

 private:
  Channel* channel() override { return nullptr; }
  void begin() override {
    backup_ = ready_ = told_ = true;
    lanes_.resize(1);
    lane().box = std::make_unique<ControlBox>();
    lane().peer_box = 0x10000;
    renew_path();
    take_into_use(0);
  }
  void on_doorbell() override {}
  void on_control(const ControlReader::Message& message) override {
    heard.push_back(message.number);
  }
  void on_paths_ready() override {}
  void on_usable() override {}
  void on_lane_ready(size_t) override {}
  void on_lane_failed(size_t, const Error&) override {
    ++paths_failed;
    lane().usable = false;
  }
  void on_lane_drained(size_t) override {}
  Tables tables() override { return {}; }
  bool exposed(const Lane&) const override { return false; }
  void on_stream_lost(const Error&) override {}
  bool takes_streams() const override { return false; }
};

class ConnectionTest : public testing::Test {
 protected:
  void SetUp() override {
    auto process = world_.add_process(sim::ip(10, 0, 0, 1), Config{});
    ASSERT_TRUE(process);
    Engine& engine = *(*process)->engine;
    auto made = std::make_unique<BareConnection>(*(*process)->provider, engine,
                                                 engine.assign_worker(-1, 1.0));
    connection_ = made.get();
    ASSERT_TRUE(engine.worker(0).adopt(std::move(made)));
    pass(microseconds(10));
  }
  void pass(Duration time) {
    static_cast<void>(world_.run_until([] { return false; }, time));
  }
  static std::vector<std::byte> notice() {
    return encode(ControlType::down, PathNotice{0, 1, false, "why"});
  }
  /// The peer's message of that number.
  static std::vector<std::byte> message(uint32_t number) {
    std::vector<std::byte> frame = notice();
    set_numbers(frame, number, 1);
    return frame;
  }
  void arrive(const ControlMark& mark, size_t bytes) {
    fabric::Completion completion;
    completion.path = &connection_->path();
    completion.kind = fabric::CompletionKind::receive_immediate;
    completion.has_immediate = true;
    completion.immediate = mark.pack();
    completion.bytes = static_cast<uint32_t>(bytes);
    connection_->on_completion(completion);
  }
  /// The peer's write of a message is told of when `frame` is in its place.
  void arrive(uint8_t number, const std::vector<std::byte>& frame) {
    auto& place = connection_->lane().box->incoming[number % ControlBox::slots];
    std::memcpy(place.data(), frame.data(), frame.size());
    arrive(ControlMark{number, 1, 0}, frame.size());
  }
  /// What was written so far is acknowledged, or so many more of it.
  void complete_writes(size_t count = SIZE_MAX) {
    for (; count != 0 && completed_ < connection_->path().posts.size(); ++completed_, --count) {
      fabric::Completion completion;
      completion.path = &connection_->path();
      completion.id = connection_->path().posts[completed_].id;
      connection_->on_completion(completion);
    }
  }
  /// The numbers of all messages that were written.
  std::vector<unsigned> written() const {
    std::vector<unsigned> numbers;
    for (const fabric::WritePost& post : connection_->path().posts) {
      if (post.gather_count != 0) {
        numbers.push_back(ControlMark::unpack(post.immediate).number);
      }
    }
    return numbers;
  }

  sim::World world_{1};
  BareConnection* connection_ = nullptr;  // its worker's
  size_t completed_ = 0;
};

/// That a write is acknowledged says nothing of who reads what it wrote.
TEST_F(ConnectionTest, AMessageIsWrittenOverOneThatThePeerHasTaken) {
  for (unsigned i = 0; i < ControlBox::slots + 2; ++i) {
    connection_->send_control(notice());
  }
  complete_writes();
  EXPECT_EQ(written(), (std::vector<unsigned>{1, 2, 3, 4}));
  arrive(ControlMark{0, 2, 0}, 0);
  EXPECT_EQ(written(), (std::vector<unsigned>{1, 2, 3, 4, 5}));
  const auto& posts = connection_->path().posts;
  EXPECT_EQ(posts.back().remote_address, posts.front().remote_address);
  arrive(ControlMark{0, 3, 0}, 0);
  EXPECT_EQ(written(), (std::vector<unsigned>{1, 2, 3, 4, 5, 6}));
  EXPECT_FALSE(connection_->failed());
}

/// A lane that was slow leaves out what was confirmed meanwhile.  The write before in the same
/// place may still be repeated, over what would be written there now.
TEST_F(ConnectionTest, APlaceIsNotWrittenWhileAnOlderWriteToItIsUnderWay) {
  for (unsigned i = 0; i < 2 * ControlBox::slots - 1; ++i) {
    connection_->send_control(notice());
  }
  complete_writes(ControlBox::slots - 1);
  EXPECT_EQ(written(), (std::vector<unsigned>{1, 2, 3, 4})) << "the peer has confirmed nothing";
  arrive(ControlMark{0, 8, 0}, 0);  // the stream brought all of them
  connection_->send_control(notice());
  EXPECT_EQ(written(), (std::vector<unsigned>{1, 2, 3, 4})) << "4 is under way";
  complete_writes();
  EXPECT_EQ(written(), (std::vector<unsigned>{1, 2, 3, 4, 8}));
  EXPECT_FALSE(connection_->failed());
}

/// The stream brought the first one, which was confirmed; who reads completions comes late.
TEST_F(ConnectionTest, APlaceThatWasWrittenAnewMeanwhileIsNotTheOlderMessage) {
  SilentStream stream;
  connection_->on_stream_data(stream, message(1));
  arrive(1, message(5));
  for (uint8_t number = 2; number <= 5; ++number) {
    arrive(number, message(number));
  }
  pass(microseconds(10));
  EXPECT_EQ(connection_->heard, (std::vector<uint32_t>{1, 2, 3, 4, 5}));
  EXPECT_FALSE(connection_->failed());
}

TEST_F(ConnectionTest, WhatWasTakenIsConfirmedOverThePathsToo) {
  arrive(1, message(1));
  pass(microseconds(10));
  ASSERT_EQ(connection_->heard, (std::vector<uint32_t>{1}));
  ASSERT_EQ(connection_->path().posts.size(), 1U);
  const fabric::WritePost& mark = connection_->path().posts.front();
  EXPECT_EQ(mark.gather_count, 0U);
  ASSERT_TRUE(ControlMark::marks(mark.immediate));
  EXPECT_EQ(ControlMark::unpack(mark.immediate).confirmed, 2U);
}

/// The old one ends within a message, and of the new one more was read than made it the new one.
TEST_F(ConnectionTest, AStreamThatTakesTheOldOnesPlaceIsReadFromItsBeginning) {
  const std::vector<std::byte> first = message(1);
  SilentStream old;
  connection_->on_stream_data(old, std::span(first).first(first.size() - 3));
  auto stream = std::make_unique<SilentStream>();
  Stream& taken = *stream;
  ControlReader reader;
  ASSERT_TRUE(reader.feed(first));
  connection_->take_stream(std::move(stream), std::move(reader));
  connection_->read_stream();
  connection_->on_stream_data(taken, message(2));
  EXPECT_EQ(connection_->heard, (std::vector<uint32_t>{1, 2}));
  EXPECT_FALSE(connection_->failed());
}

TEST_F(ConnectionTest, ANewPathIsNotJudgedByTheSilenceOfTheOldOne) {
  connection_->start_heartbeats();
  connection_->send_control(notice());
  ASSERT_TRUE(world_.run_until([&] { return connection_->paths_failed == 1; }, seconds(60)));
  connection_->renew_path();
  connection_->take_into_use(0);
  ASSERT_EQ(connection_->path().posts.size(), 1U) << "nothing waits to be answered";
  const Instant begin = world_.now();
  ASSERT_TRUE(world_.run_until([&] { return connection_->paths_failed == 2; }, seconds(60)));
  EXPECT_GE(world_.now() - begin, milliseconds(Config{}.rto_ms));
}

}  // namespace
}  // namespace nccl_ha
