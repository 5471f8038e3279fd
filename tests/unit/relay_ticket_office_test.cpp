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
  EXPECT_TRUE(test::until([&] { return log.count("are not helped to reach hosts") != 0; }));
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
  EXPECT_FALSE(asker.take().ticket);
  close_fd(*squatter);
  EXPECT_TRUE(given_to(asker).ticket.given());
}

/// Of a process that speaks for `user`'s jobs.
std::unique_ptr<Engine> open_for_jobs(uint16_t port, std::shared_ptr<JobKeys> job,
                                      std::optional<uint32_t> user) {
  Config config;
  config.use_progress_thread = true;
  config.progress_threads = 1;
  config.counters_dir = "";
  auto engine = Engine::start(config);
  EXPECT_TRUE(engine);
  EXPECT_TRUE((*engine)->worker(0).adopt(std::make_unique<TicketOffice>(
      TicketOffice::Options{port, NodeId{7}, 5, nullptr, std::move(job), user})));
  return std::move(*engine);
}

TEST_F(TicketOfficeTest, TakesWhatJobsLendAndTellsItToProcessesOfTheSameUser) {
  auto job = std::make_shared<JobKeys>();
  job->add(1);
  const auto engine = open_for_jobs(port_, job, geteuid());
  JobKeys ones;
  ones.add(2);
  TicketAsker one(port_, kernel_secrets());
  std::optional<KeyRing> told;
  ASSERT_TRUE(test::until([&] {
    static_cast<void>(one.lend(ones.own()));
    told = one.take().lent;
    return told.has_value() && told->size() == 2;
  })) << "the second time, when it is known whose the office is";
  EXPECT_EQ(job->current()->size(), 2U);
  for (const uint64_t id : {1U, 2U}) {
    const auto [number, key] = JobKeys::key_of(id);
    ASSERT_NE(told->find(number), nullptr);
    EXPECT_EQ(*told->find(number), key);
  }
  EXPECT_EQ(job->own().size(), 1U) << "it lends its own only, should it ask another one";
}

TEST_F(TicketOfficeTest, AJobTakesNothingFromAnotherUser) {
  auto job = std::make_shared<JobKeys>();
  const auto engine = open_for_jobs(port_, job, geteuid() + 1);
  auto everybodys = std::make_shared<JobKeys>();
  const auto port = static_cast<uint16_t>(port_ + 1);
  const auto node = open_for_jobs(port, everybodys, std::nullopt);
  JobKeys ones;
  ones.add(2);
  TicketAsker one(port_, kernel_secrets());
  TicketAsker other(port, kernel_secrets());
  // A node takes them in the meantime.
  constexpr size_t often = 50;
  size_t asked = 0;
  bool answered = false;
  ASSERT_TRUE(test::until([&] {
    asked += one.lend(ones.own()) && other.lend(ones.own()) ? 1 : 0;
    answered = one.take().lent.has_value() || answered;
    static_cast<void>(other.take());
    return asked >= often && everybodys->current()->size() == 1;
  }));
  EXPECT_FALSE(answered);
  EXPECT_EQ(job->current()->size(), 0U);
  EXPECT_EQ(everybodys->current()->size(), 1U);
}

TEST(JobKeys, AreTheSameForEachRankAndOthersForEachCommunicator) {
  EXPECT_EQ(JobKeys::key_of(7), JobKeys::key_of(7));
  EXPECT_NE(JobKeys::key_of(7).first, JobKeys::key_of(8).first);
  EXPECT_NE(JobKeys::key_of(7).second, JobKeys::key_of(8).second);
  JobKeys keys;
  keys.add(0);
  EXPECT_EQ(keys.current()->size(), 0U) << "NCCL told none";
  for (uint64_t id = 1; id <= 100; ++id) {
    keys.add(id);
    keys.add(id);
  }
  // The first ones, of which the whole job's is likely one, and the newest.
  EXPECT_EQ(keys.own().size(), JobKeys::own_max);
  for (const uint64_t id : {1U, 8U, 93U, 100U}) {
    EXPECT_NE(keys.own().find(JobKeys::key_of(id).first), nullptr) << id;
  }
}

TEST(JobKeys, LentOnesAreTheirUsersAndAreForgotten) {
  JobKeys keys;
  keys.add(1);
  const auto [number, key] = JobKeys::key_of(7);
  KeyRing lent;
  lent.add(number, key);
  KeyRing forged;  // under others' numbers
  forged.add(number, HashKey{});
  forged.add(JobKeys::key_of(1).first, HashKey{});
  const Instant then{seconds(1)};
  keys.lend(999, forged, then);
  keys.lend(1000, lent, then);
  EXPECT_EQ(keys.current()->size(), 2U);
  EXPECT_EQ(*keys.current()->find(number), key);
  EXPECT_EQ(*keys.current()->find(JobKeys::key_of(1).first), JobKeys::key_of(1).second);
  EXPECT_EQ(keys.own().size(), 1U);
  EXPECT_EQ(keys.of_user(1000, false).size(), 1U);
  EXPECT_EQ(keys.of_user(1000, true).size(), 2U);
  EXPECT_EQ(keys.of_user(1002, false).size(), 0U);
  // As long as they are lent again they stay, and the same ring is given.
  const auto before = keys.current();
  keys.lend(1000, lent, then + JobKeys::lent_for / 2);
  EXPECT_EQ(keys.current(), before);
  keys.lend(1001, {}, then + JobKeys::lent_for);
  EXPECT_EQ(keys.of_user(999, false).size(), 0U);
  EXPECT_EQ(keys.of_user(1000, false).size(), 1U);
  keys.lend(1001, {}, then + 2 * JobKeys::lent_for);
  EXPECT_EQ(keys.current()->size(), 1U);
  // Many processes of one user.
  for (uint64_t id = 100; id < 200; ++id) {
    KeyRing one;
    one.add(JobKeys::key_of(id).first, JobKeys::key_of(id).second);
    keys.lend(1000, one, then + std::chrono::milliseconds(id));
  }
  EXPECT_EQ(keys.of_user(1000, false).size(), JobKeys::lent_max);
  EXPECT_NE(keys.current()->find(JobKeys::key_of(199).first), nullptr);
}

}  // namespace
}  // namespace nccl_ha::relay
