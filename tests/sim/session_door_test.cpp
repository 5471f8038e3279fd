// What goes over a control stream that connections share (docs/sessions.md): whose turn it is, and
// what a door says to a peer that speaks to it by hand.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/door.h"
#include "actors/peer_session.h"
#include "runtime/fabric/datagram/udp_factory.h"
#include "tests/support/sim_sessions.h"

namespace nccl_ha::test {
namespace {

using rig::SimLink;
using std::chrono::milliseconds;
using std::chrono::seconds;

// --- turns

/// What was written, and a backlog as a test has it.
class BackloggedStream final : public Stream {
 public:
  BackloggedStream(std::vector<std::vector<std::byte>>& written, size_t& backlog)
      : written_(written), backlog_(backlog) {}
  void set_owner(StreamOwner*) override {}
  Result<void> write(std::span<const std::byte> bytes) override {
    written_.emplace_back(bytes.begin(), bytes.end());
    return {};
  }
  bool all_arrived() const override { return true; }
  size_t backlog() const override { return backlog_; }
  void shutdown_then_close() override {}
  Result<sockaddr_storage> local_address() override { return sockaddr_storage{}; }
  Result<sockaddr_storage> peer_address() override { return sockaddr_storage{}; }

 private:
  std::vector<std::vector<std::byte>>& written_;
  size_t& backlog_;
};

class SimSessionTurns : public SimSession, private PeerSession::Host {
 protected:
  SimSessionTurns() {
    make_hosts(sharing(), sharing());
    std::vector<std::byte> read;
    for (uint32_t number = 1; number <= 2; ++number) {
      for (const auto& frame :
           {encode_of(number),
            encode(ControlType::rejoin, RejoinCall{Secret::heard(number), own_process()})}) {
        read.insert(read.end(), frame.begin(), frame.end());
      }
    }
    ControlReader reader;
    EXPECT_TRUE(reader.feed(read));
    session_ =
        std::make_shared<PeerSession>(hosts_[0]->engine->worker(0).context(),
                                      std::make_unique<BackloggedStream>(written_, backlog_),
                                      std::move(reader), static_cast<PeerSession::Host&>(*this));
    parts_.push_back(session_->begin());
    session_->read_on();
  }
  ~SimSessionTurns() override { session_->leave_host(); }
  void on_connection(std::unique_ptr<Stream> stream, const ControlReader::Message&) override {
    parts_.push_back(std::move(stream));
  }
  /// The connection of each message that was written since.
  std::string turns() {
    std::string text;
    for (const auto& frame : std::exchange(written_, {})) {
      SessionReader reader;
      EXPECT_TRUE(reader.feed(frame));
      const auto part = reader.next();
      text += part ? std::to_string(part->connection) : "?";
    }
    return text;
  }

  std::vector<std::vector<std::byte>> written_;
  size_t backlog_ = 0;
  std::shared_ptr<PeerSession> session_;
  std::vector<std::unique_ptr<Stream>> parts_;
};

TEST_F(SimSessionTurns, OneThatSaysMuchDelaysTheOthersByAMessageEach) {
  ASSERT_EQ(parts_.size(), 3U);
  EXPECT_EQ(turns(), "0") << "share";
  backlog_ = 1 << 20;
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(parts_[0]->write(encode_confirm()));
  }
  ASSERT_TRUE(parts_[1]->write(encode_ask()));
  ASSERT_TRUE(parts_[2]->write(encode_ask()));
  pass(milliseconds(5));
  EXPECT_EQ(turns(), "") << "the kernel takes no more";
  backlog_ = 0;
  pass(milliseconds(5));
  EXPECT_EQ(turns(), "120000");
  ASSERT_TRUE(parts_[1]->write(encode_ask()));
  EXPECT_EQ(turns(), "1") << "at once";
}

TEST_F(SimSessionTurns, WhatWaitsForOneConnectionIsLimited) {
  backlog_ = 1 << 20;
  const std::vector<std::byte> large = encode(ControlType::failure, Refusal{Errc::remote, "why"});
  size_t taken = 0;
  while (taken < (2U << 20) && parts_[1]->write(large)) {
    taken += large.size();
  }
  EXPECT_GE(taken, 1U << 20);
  EXPECT_LT(taken, (1U << 20) + 2 * large.size());
  EXPECT_TRUE(parts_[2]->write(large)) << "others have their own";
  backlog_ = 0;
  parts_.clear();
  EXPECT_FALSE(session_->state().is_over()) << "another connection may come";
}

// --- a door, and a peer that speaks to it by hand

/// What it was told of who is there: "connection:type" of each such message, and the end of the
/// stream.
struct SessionHeard {
  std::string text;
  bool ended = false;
};

class SessionVisitor final : public Actor, private StreamOwner {
 public:
  SessionVisitor(const sockaddr_storage& to, SessionHeard& heard) : to_(to), heard_(heard) {}
  const char* name() const override { return "session-visitor"; }
  void start(Context& context) override {
    auto dialled =
        context.streams().connect_tcp(reinterpret_cast<const sockaddr*>(&to_), nullptr, this);
    ASSERT_TRUE(dialled) << dialled.error().message();
    stream_ = std::move(*dialled);
  }
  void on(const Message&) override {}
  void stop() override { stream_.reset(); }
  void say(const std::vector<std::byte>& words) {
    ASSERT_TRUE(stream_->write(words)) << "the stream has ended";
  }
  bool open = false;

 private:
  void on_stream_open(Stream&) override { open = true; }
  void on_stream_data(Stream&, std::span<const std::byte> bytes) override {
    EXPECT_TRUE(reader_.feed(bytes));
    while (const auto part = reader_.next()) {
      const ControlType type = part->message.type;
      if (type == ControlType::welcome || type == ControlType::absent ||
          type == ControlType::share || type == ControlType::over) {
        heard_.text += fmt::format("{}:{} ", part->connection, static_cast<unsigned>(type));
      }
    }
  }
  void on_stream_closed(Stream&, const Error&) override { heard_.ended = true; }

  const sockaddr_storage to_;
  SessionHeard& heard_;
  std::unique_ptr<Stream> stream_;
  SessionReader reader_;
};

class SimSessionDoor : public testing::Test {
 protected:
  SimSessionDoor() {
    for (uint8_t host = 1; host <= 2; ++host) {
      hosts_.push_back(*world_.add_process(sim::ip(10, 0, 0, host), sharing()));
    }
    link_ = std::make_unique<SimLink>(world_, *hosts_[0], *hosts_[1]);
    link_->leave_unaccepted();
    pass(milliseconds(10));
  }
  Hello hello(bool shares, uint64_t nonce_bits = 0) const {
    Hello hello;
    hello.nonce = link_->handle().nonce ^ nonce_bits;
    hello.kind = fabric::datagram_kind;
    hello.backup = true;
    hello.host = "visitor";
    hello.paths = {{{}, "it is none", 0, 0, {}}};
    hello.shares = shares;
    return hello;
  }
  void visit() {
    const auto to = sim::Endpoint{hosts_[1]->address, link_->handle().port}.to_sockaddr();
    auto visitor = std::make_unique<SessionVisitor>(to, heard_);
    visitor_ = visitor.get();
    ASSERT_TRUE(hosts_[0]->engine->worker(0).adopt(std::move(visitor)));
    ASSERT_TRUE(world_.run_until([&] { return visitor_->open; }, seconds(1)));
  }
  void say(std::initializer_list<std::vector<std::byte>> messages) {
    std::vector<std::byte> words;
    for (const auto& one : messages) {
      words.insert(words.end(), one.begin(), one.end());
    }
    visitor_->say(words);
    pass(milliseconds(5));
  }
  void pass(Duration time) {
    static_cast<void>(world_.run_until([] { return false; }, time));
  }

  SessionHeard heard_;  // its visitor ends first
  sim::World world_{72};
  std::vector<sim::Process*> hosts_;
  std::unique_ptr<SimLink> link_;
  SessionVisitor* visitor_ = nullptr;
};

TEST_F(SimSessionDoor, WhoAsksIsToldThatOthersMayFollowBeforeItIsAnswered) {
  visit();
  say({encode(hello(true))});
  EXPECT_EQ(heard_.text, "0:20 0:2 ") << "share, then the welcome";
}

TEST_F(SimSessionDoor, WhoDoesNotAskIsNot) {
  visit();
  say({encode(hello(false))});
  EXPECT_EQ(heard_.text, "0:2 ");
}

TEST_F(SimSessionDoor, AConnectionInsideIsAnsweredByItsNumber) {
  visit();
  say({encode(hello(true)), encode_of(3), encode(hello(false))});
  EXPECT_EQ(heard_.text, "0:20 0:2 3:2 ");
}

TEST_F(SimSessionDoor, WhoAsksInsideForWhatIsNotThereIsToldSoAndTheStreamStays) {
  visit();
  say({encode(hello(true))});
  heard_.text.clear();
  say({encode_of(1), encode(hello(true, 1)), encode_of(2),
       encode(ControlType::rejoin, RejoinCall{Secret::heard(1), own_process()})});
  EXPECT_EQ(heard_.text, "1:16 1:22 2:16 2:22 ") << "absent, and that part of the stream is over";
  EXPECT_FALSE(heard_.ended);
}

TEST_F(SimSessionDoor, WhoKnowsNothingGetsNone) {
  visit();
  say({encode(hello(true, 1))});
  EXPECT_EQ(heard_.text, "0:16 ");
  EXPECT_TRUE(heard_.ended);
}

TEST_F(SimSessionDoor, WhoNamesAnotherProcessGetsNone) {
  visit();
  ProcessId other = own_process();
  ++other.started;
  say({encode(ControlType::rejoin, RejoinCall{Secret::heard(1), other, true})});
  EXPECT_EQ(heard_.text, "0:16 ");
  EXPECT_TRUE(heard_.ended);
}

/// It names the process: its first connection is gone, others may not be.
TEST_F(SimSessionDoor, WhoRejoinsWhatIsGoneMayGoOnWithTheOthers) {
  visit();
  say({encode(ControlType::rejoin, RejoinCall{Secret::heard(1), own_process(), true})});
  EXPECT_EQ(heard_.text, "0:20 0:16 0:22 ");
  EXPECT_FALSE(heard_.ended);
  say({encode_of(1), encode(hello(false))});
  EXPECT_EQ(heard_.text, "0:20 0:16 0:22 1:2 ");
}

TEST_F(SimSessionDoor, ASessionThatNobodyUsesEnds) {
  visit();
  say({encode(ControlType::rejoin, RejoinCall{Secret::heard(1), own_process(), true})});
  pass(seconds(4));
  EXPECT_FALSE(heard_.ended);
  say({encode_of(1), encode(hello(true, 1))});  // which is not there either
  pass(seconds(2));
  EXPECT_TRUE(heard_.ended);
}

TEST_F(SimSessionDoor, WhatIsNoMessageOfASessionEndsTheStream) {
  const struct {
    const char* what;
    std::vector<std::vector<std::byte>> words;
  } cases[] = {
      {"two names", {encode_of(1), encode_of(2)}},
      {"an answer to a question that was not asked", {encode_share()}},
      {"another protocol", {std::vector<std::byte>(16, std::byte{'G'})}},
  };
  for (const auto& one : cases) {
    heard_ = {};
    visit();
    say({encode(hello(true))});
    for (const auto& words : one.words) {
      say({words});
    }
    EXPECT_TRUE(heard_.ended) << one.what;
  }
}

/// As one does whose caller gives up before it has said hello.
TEST_F(SimSessionDoor, AConnectionThatFailsBeforeItsHelloEndsAlone) {
  visit();
  say({encode(hello(true)), encode_of(1),
       encode(ControlType::failure, Refusal{Errc::remote, "it gave up"}), encode_of(1),
       encode_over(), encode_of(2), encode(hello(false))});
  EXPECT_EQ(heard_.text, "0:20 0:2 2:2 ");
  EXPECT_FALSE(heard_.ended);
}

TEST_F(SimSessionDoor, ConnectionsSpeakInAnyOrder) {
  visit();
  say({encode(hello(true)), encode_of(7), encode(hello(false)), encode_of(2),
       encode(hello(false))});
  EXPECT_EQ(heard_.text, "0:20 0:2 7:2 2:2 ");
}

TEST_F(SimSessionDoor, OneConnectionTooManyIsRefusedAlone) {
  visit();
  std::vector<std::byte> words = encode(hello(true));
  constexpr size_t more = ha::SessionState::connections_max;
  for (uint32_t number = 1; number <= more; ++number) {
    for (const auto& frame : {encode_of(number), encode(hello(false))}) {
      words.insert(words.end(), frame.begin(), frame.end());
    }
    if (words.size() > 16384 || number == more) {
      visitor_->say(std::exchange(words, {}));
      pass(milliseconds(1));
    }
  }
  pass(milliseconds(20));
  const std::string refused = fmt::format("{}:22 ", more);
  EXPECT_NE(heard_.text.find(refused), std::string::npos);
  EXPECT_EQ(heard_.text.find(":22 "), heard_.text.find(refused) + refused.find(":22 "))
      << "another one has ended too";
  EXPECT_FALSE(heard_.ended);
}

TEST_F(SimSessionDoor, ConnectionsThatWereEndedHereMayBeSpokenToInVain) {
  visit();
  say({encode(hello(true)), encode_of(1), encode(hello(false, 1))});
  heard_.text.clear();
  say({encode_of(1), encode_ask()});
  EXPECT_EQ(heard_.text, "");
  EXPECT_FALSE(heard_.ended);
}

}  // namespace
}  // namespace nccl_ha::test
