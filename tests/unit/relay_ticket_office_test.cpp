// A relay node that vouches for processes of its host, over sockets of this one.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>

#include "relay/ticket_office.h"
#include "runtime/base/own_fd.h"
#include "runtime/engine/engine.h"
#include "tests/support/log_lines.h"
#include "tests/support/until.h"

namespace nccl_ha::relay {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

KeyRing cluster_keys(std::initializer_list<uint8_t> numbers) {
  KeyRing keys;
  for (const uint8_t number : numbers) {
    HashKey key;
    key.fill(std::byte{number});
    keys.add(number, key);
  }
  return keys;
}

class TicketOfficeTest : public testing::Test {
 protected:
  /// No port is opened, and other programs have other numbers.
  const uint16_t port_ = static_cast<uint16_t>(getpid());
  std::shared_ptr<KeyFile> key_ = std::make_shared<KeyFile>(cluster_keys({1}));

  std::unique_ptr<Engine> open(uint32_t incarnation) {
    Config config;
    config.use_progress_thread = true;
    config.progress_threads = 1;
    config.counters_dir = "";
    auto engine = Engine::start(config);
    EXPECT_TRUE(engine);
    EXPECT_TRUE((*engine)->worker(0).adopt(std::make_unique<TicketOffice>(
        TicketOffice::Options{port_, NodeId{7}, incarnation, key_})));
    return std::move(*engine);
  }
  /// Once the node is there, whose thread may not have begun.
  static NamedKey given_to(TicketAsker& asker) {
    std::optional<NamedKey> ticket;
    EXPECT_TRUE(test::until([&] { return (ticket = asker.wait(seconds(10))).has_value(); }));
    return ticket.value_or(NamedKey{});
  }
};

TEST_F(TicketOfficeTest, GivesEachProcessItsOwnAndTheSameAgain) {
  TicketAsker one(port_, kernel_secrets());
  TicketAsker other(port_, kernel_secrets());
  EXPECT_FALSE(one.ask()) << "there is no node";
  EXPECT_FALSE(one.wait(seconds(10)));
  auto node = open(5);
  const NamedKey first = given_to(one);
  const NamedKey another = given_to(other);
  EXPECT_EQ(first.ticket.node, NodeId{7});
  EXPECT_EQ(first.ticket.incarnation, 5U);
  EXPECT_EQ(first.ticket.user, geteuid());
  EXPECT_EQ(first.ticket.key, 1U);
  EXPECT_EQ(first.key, SealKeys(key_->current()).find(first.ticket)->key)
      << "as who has the cluster's key makes it";
  EXPECT_NE(first.ticket.id, another.ticket.id);
  EXPECT_EQ(given_to(one).ticket, first.ticket);
  // The key is changed, then the node is another one.
  key_->set(cluster_keys({2, 1}));
  const NamedKey renewed = given_to(one);
  EXPECT_EQ(renewed.ticket.key, 2U);
  EXPECT_NE(renewed.ticket.id, first.ticket.id);
  node.reset();
  node = open(6);
  EXPECT_EQ(given_to(one).ticket.incarnation, 6U);
}

TEST_F(TicketOfficeTest, WaitsForItsNameAndLeavesOutWhatIsNoQuestion) {
  const test::LogLines log;
  const auto squatter = open_ticket_office(port_);
  ASSERT_TRUE(squatter);
  auto node = open(5);
  EXPECT_TRUE(test::until([&] { return log.count("need the key file themselves") != 0; }));
  TicketAsker asker(port_, kernel_secrets());
  EXPECT_TRUE(asker.ask());
  EXPECT_FALSE(asker.wait(milliseconds(1))) << "nobody answers there";
  std::optional<TicketQuestion> question;
  ASSERT_TRUE(read_question(*squatter, question));
  ASSERT_TRUE(question);
  const std::vector<std::byte> garbage(22);
  EXPECT_GE(sendto(*squatter, garbage.data(), garbage.size(), 0,
                   reinterpret_cast<const sockaddr*>(question->from.data()),
                   static_cast<socklen_t>(question->from.size())),
            0);
  EXPECT_FALSE(asker.take());
  close_fd(*squatter);
  EXPECT_TRUE(given_to(asker).ticket.given());
}

}  // namespace
}  // namespace nccl_ha::relay
