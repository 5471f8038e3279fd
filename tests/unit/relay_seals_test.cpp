#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "relay/packet_seal.h"
#include "relay/session_seal.h"
#include "runtime/base/key_file.h"
#include "tests/support/temporary_folder.h"

namespace nccl_ha::relay {
namespace {

std::string hex_key(char digit) { return std::string(64, digit); }

HashKey a_key(uint8_t fill) {
  HashKey key;
  key.fill(std::byte{fill});
  return key;
}

std::shared_ptr<const KeyRing> ring_of(const std::vector<uint32_t>& numbers) {
  KeyRing made;
  for (const uint32_t number : numbers) {
    made.add(number, a_key(static_cast<uint8_t>(number)));
  }
  return std::make_shared<const KeyRing>(made);
}

class KeyFileTest : public testing::Test {
 protected:
  void write(const std::string& text, mode_t mode = 0600) {
    std::ofstream(path_) << text;
    chmod(path_.c_str(), mode);
  }
  tests::TemporaryFolder folder_;
  const std::string path_{folder_.path() + "/keys"};
};

TEST_F(KeyFileTest, IsReadWhereOnlyItsOwnerCan) {
  EXPECT_FALSE(KeyRing::read(path_));
  write("# of the cluster\n2 " + hex_key('b') + "\n1 " + hex_key('A') +
        " # for those that still say 1\n");
  const auto keys = KeyRing::read(path_);
  ASSERT_TRUE(keys) << keys.error().message();
  EXPECT_EQ(keys->first(), 2U);
  EXPECT_EQ(*keys->find(1), a_key(0xAA));
  EXPECT_EQ(*keys->find(2), a_key(0xBB));
  EXPECT_EQ(keys->find(3), nullptr);
  for (const mode_t mode : {0640, 0604}) {
    write("1 " + hex_key('a') + "\n", mode);
    const auto refused = KeyRing::read(path_);
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().what.find("chmod 600"), std::string::npos) << refused.error().what;
  }
}

TEST_F(KeyFileTest, LinesThatAreNoneAreNamed) {
  for (const std::string& line :
       {std::string("1"), "0 " + hex_key('a'), "x " + hex_key('a'), "1 " + hex_key('a') + "a",
        "1 " + hex_key('g'), "1 " + hex_key('a') + " more", "-1 " + hex_key('a'),
        "1 " + hex_key('a') + "\n1 " + hex_key('b')}) {
    const auto refused = KeyRing::parse("\n" + line + "\n", "file");
    ASSERT_FALSE(refused) << line;
    EXPECT_NE(refused.error().what.find("file:"), std::string::npos) << refused.error().what;
  }
  EXPECT_FALSE(KeyRing::parse("# nothing\n", "file"));
}

TEST_F(KeyFileTest, IsReadAgainWhenItChangesAndKeptWhenItIsNoUse) {
  write("1 " + hex_key('a') + "\n");
  const auto key = KeyFile::open(path_);
  ASSERT_TRUE(key);
  const auto before = (*key)->current();
  EXPECT_TRUE((*key)->refresh());
  EXPECT_EQ((*key)->current(), before) << "nothing was read";
  write("1 " + hex_key('a') + "\n2 " + hex_key('b') + "\n");
  EXPECT_TRUE((*key)->refresh());
  EXPECT_EQ((*key)->current()->size(), 2U);
  write("nonsense that is longer\n");
  EXPECT_FALSE((*key)->refresh());
  EXPECT_EQ((*key)->current()->size(), 2U);
  EXPECT_TRUE((*key)->refresh()) << "told once";
}

TEST_F(KeyFileTest, IsReadAgainWhenItsModeIsPutRight) {
  write("1 " + hex_key('a') + "\n");
  const auto key = KeyFile::open(path_);
  ASSERT_TRUE(key);
  write("1 " + hex_key('a') + "\n2 " + hex_key('b') + "\n", 0644);
  EXPECT_FALSE((*key)->refresh());
  EXPECT_EQ((*key)->current()->size(), 1U);
  ASSERT_EQ(chmod(path_.c_str(), 0600), 0);
  EXPECT_TRUE((*key)->refresh());
  EXPECT_EQ((*key)->current()->size(), 2U);
}

std::vector<std::byte> hello_packet(uint32_t incarnation = 1) {
  return encode(DiscoveryPacket{NodeId{9}, incarnation, HelloPacket{}});
}

constexpr Instant noon{std::chrono::seconds(1)};

TEST(PacketSeals, AreTakenOnceByWhoHasTheKey) {
  PacketSeal sender;
  PacketSeal receiver;
  sender.set_keys(ring_of({1}));
  receiver.set_keys(ring_of({1, 2}));
  const auto packet = hello_packet();
  const auto sealed = sender.seal(packet, 1);
  const auto opened = receiver.open(sealed, noon);
  ASSERT_TRUE(opened) << opened.error().message();
  EXPECT_TRUE(std::ranges::equal(opened->packet, packet));
  EXPECT_EQ(opened->key, 1U);
  EXPECT_FALSE(receiver.open(sealed, noon)) << "a repetition";
  EXPECT_FALSE(receiver.open(sealed, noon + std::chrono::hours(9))) << "also a late one";
  EXPECT_EQ(receiver.counts().repeated, 2U);
  EXPECT_TRUE(receiver.open(sender.seal(packet, 1), noon)) << "the same said anew";
  EXPECT_FALSE(receiver.open(packet, noon)) << "without a seal";
  PacketSeal other;
  other.set_keys(ring_of({3}));
  EXPECT_FALSE(receiver.open(other.seal(packet, 3), noon));
  other.set_keys(std::make_shared<const KeyRing>([] {
    KeyRing keys;
    keys.add(1, a_key(77));
    return keys;
  }()));
  EXPECT_FALSE(receiver.open(other.seal(packet, 1), noon)) << "another key of that number";
  EXPECT_EQ(receiver.counts().forged, 3U);
}

/// Which begins to number its packets at one again.
TEST(PacketSeals, OfAHostThatBeginsAnewAreNoRepetitions) {
  PacketSeal receiver;
  receiver.set_keys(ring_of({1}));
  for (uint32_t life = 1; life <= 3; ++life) {
    PacketSeal sender;
    sender.set_keys(ring_of({1}));
    for (int i = 0; i < 100; ++i) {
      EXPECT_TRUE(receiver.open(sender.seal(hello_packet(life), 1), noon)) << life << ", " << i;
    }
  }
  EXPECT_EQ(receiver.counts().repeated, 0U);
}

TEST(PacketSeals, WhereTheyAreOpenWhoeverHasNoneIsHeardToo) {
  PacketSeal sender;
  PacketSeal receiver;
  sender.set_keys(ring_of({1, 3}));
  receiver.set_keys(ring_of({2, 3}), true);
  const auto packet = hello_packet();
  const auto plain = receiver.open(packet, noon);
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->key, 0U);
  const auto sealed = sender.seal(packet, 3);
  const auto common = receiver.open(sealed, noon);
  ASSERT_TRUE(common);
  EXPECT_EQ(common->key, 3U);
  EXPECT_TRUE(std::ranges::equal(common->packet, packet));
  const auto others = sender.seal(packet, 1);
  const auto unknown = receiver.open(others, noon);
  ASSERT_TRUE(unknown);
  EXPECT_FALSE(decode_packet(unknown->packet)) << "of another job it makes no sense";
}

TEST(PacketSeals, NoBitMayChangeAndNoByteBeMissing) {
  PacketSeal sender;
  sender.set_keys(ring_of({1}));
  const auto sealed = sender.seal(hello_packet(), 1);
  PacketSeal receiver;
  receiver.set_keys(ring_of({1}));
  for (size_t bit = 0; bit < 8 * sealed.size(); ++bit) {
    auto changed = sealed;
    changed[bit / 8] ^= std::byte{1} << (bit % 8);
    ASSERT_FALSE(receiver.open(changed, noon)) << bit;
  }
  for (size_t length = 0; length < sealed.size(); ++length) {
    ASSERT_FALSE(receiver.open(std::span(sealed).first(length), noon)) << length;
  }
  EXPECT_TRUE(receiver.open(sealed, noon));
}

TEST(PacketSeals, KeysChangeWithoutAGap) {
  PacketSeal one;
  PacketSeal other;
  const auto both_hear = [&] {
    return other.open(one.seal(hello_packet(1), one.keys()->first()), noon).ok() &&
           one.open(other.seal(hello_packet(2), other.keys()->first()), noon).ok();
  };
  // Added on one, then on the other; then put first; then the old one goes.
  const std::pair<std::vector<uint32_t>, std::vector<uint32_t>> steps[] = {
      {{1}, {1}},       {{1, 2}, {1}}, {{1, 2}, {1, 2}}, {{2, 1}, {1, 2}},
      {{2, 1}, {2, 1}}, {{2}, {2, 1}}, {{2}, {2}}};
  for (const auto& [first, second] : steps) {
    one.set_keys(ring_of(first));
    other.set_keys(ring_of(second));
    EXPECT_TRUE(both_hear());
  }
}

/// Two ends of a stream that have said hello.
struct Streams {
  explicit Streams(uint8_t seed = 1, SealKeys dialled_keys = ring_of({1, 2}),
                   SealKeys diallers_keys = ring_of({1}), const Ticket& peer = {}) {
    SessionHello::Nonce nonce{};
    nonce[0] = std::byte{seed};
    dialler.emplace(std::move(diallers_keys), true, nonce, peer);
    nonce[1] = std::byte{1};
    dialled.emplace(std::move(dialled_keys), false, nonce);
  }
  bool shake() {
    const auto hello = dialler->hello();
    if (!hello || !hear(*dialled, *hello)) {
      return false;
    }
    answer = *dialled->hello();
    return hear(*dialler, answer) && dialler->unseal(answer).ok();
  }
  static bool hear(SessionSeal& seal, const std::vector<std::byte>& sealed) {
    std::vector<std::byte> plain(sealed.begin(), sealed.end() - tag_bytes);
    set_session_message_length(plain, plain.size());
    const auto hello = decode_session_message(plain);
    return hello && seal.on_hello(std::get<SessionHello>(*hello), sealed).ok();
  }
  std::optional<SessionSeal> dialler;
  std::optional<SessionSeal> dialled;
  std::vector<std::byte> answer;
};

TEST(SessionSeals, CarryMessagesBothWaysInOrder) {
  Streams streams;
  ASSERT_TRUE(streams.shake());
  const auto ping = encode(SessionPing{});
  for (int i = 0; i < 3; ++i) {
    const auto there = streams.dialled->unseal(streams.dialler->seal(ping));
    const auto back = streams.dialler->unseal(streams.dialled->seal(ping));
    ASSERT_TRUE(there && back);
    EXPECT_EQ(*there, ping);
    EXPECT_EQ(*back, ping);
  }
  const auto first = streams.dialler->seal(ping);
  const auto second = streams.dialler->seal(ping);
  EXPECT_FALSE(streams.dialled->unseal(second)) << "one is missing";
  EXPECT_TRUE(streams.dialled->unseal(first));
  EXPECT_FALSE(streams.dialled->unseal(first)) << "a repetition";
  EXPECT_FALSE(streams.dialler->unseal(streams.dialler->seal(ping))) << "a reflection";
  auto changed = streams.dialled->seal(ping);
  changed[changed.size() - 1] ^= std::byte{1};
  EXPECT_FALSE(streams.dialler->unseal(changed));
  EXPECT_FALSE(streams.dialler->unseal(ping)) << "without a tag";
}

TEST(SessionSeals, WhatWasSaidOnAnotherStreamIsNoUse) {
  Streams first;
  ASSERT_TRUE(first.shake());
  const auto recorded = first.dialler->seal(encode(SessionPing{}));
  // The same first message, and the answer is another one.
  Streams second;
  SessionHello::Nonce fresh{};
  fresh[5] = std::byte{5};
  second.dialled.emplace(ring_of({1}), false, fresh);
  ASSERT_TRUE(Streams::hear(*second.dialled, *first.dialler->hello()));
  EXPECT_FALSE(second.dialled->unseal(recorded));
}

TEST(SessionSeals, WhoHasNoKeyIsFoundOutOnBothSides) {
  EXPECT_FALSE(Streams(1, ring_of({2})).shake()) << "who is dialled does not know the key";
  Streams impostor(1, std::make_shared<const KeyRing>([] {
                     KeyRing keys;
                     keys.add(1, a_key(99));
                     return keys;
                   }()));
  EXPECT_FALSE(impostor.shake()) << "who dials sees that the answer is of another key";
}

TEST(SessionSeals, WhoHasNotShownTheKeyHearsNothing) {
  Streams streams;
  const auto proven = *streams.dialler->hello();
  for (size_t i = 0; i < tag_bytes; ++i) {
    auto guessed = proven;
    guessed[guessed.size() - 1 - i] ^= std::byte{1};
    EXPECT_FALSE(Streams::hear(*streams.dialled, guessed));
  }
  const SessionHello of_key_1{{.key = 1}, {}};
  const auto bare = encode(of_key_1);
  EXPECT_FALSE(streams.dialled->on_hello(of_key_1, bare));
  EXPECT_FALSE(streams.dialled->on_hello(of_key_1, {}));
  EXPECT_FALSE(streams.dialled->open());
  EXPECT_TRUE(Streams::hear(*streams.dialled, proven));
}

Ticket a_ticket(uint32_t user = 1000, uint32_t key = 1) {
  Ticket ticket{key, NodeId{9}, 5, user, {}};
  ticket.id[0] = std::byte{77};
  return ticket;
}

std::shared_ptr<const Tickets> holding(const std::vector<NamedKey>& given) {
  auto tickets = std::make_shared<Tickets>();
  for (const NamedKey& one : given) {
    tickets->add(one);
  }
  return tickets;
}

TEST(SessionTickets, AreGoodBetweenTheirProcessAndWhoHasTheKey) {
  const NamedKey mine = make_named_key(a_key(1), a_ticket());
  Streams asks(1, ring_of({1, 2}), holding({mine}));
  ASSERT_TRUE(asks.shake());
  EXPECT_EQ(asks.dialled->ticket(), mine.ticket);
  const auto ping = encode(SessionPing{});
  EXPECT_EQ(*asks.dialled->unseal(asks.dialler->seal(ping)), ping);
  EXPECT_EQ(*asks.dialler->unseal(asks.dialled->seal(ping)), ping);
  EXPECT_TRUE(Streams(1, holding({mine}), ring_of({1}), mine.ticket).shake()) << "it is asked";
  EXPECT_FALSE(Streams(1, holding({mine}), ring_of({1})).shake()) << "its ticket is not named";
  EXPECT_FALSE(Streams(1, holding({mine}), ring_of({2}), mine.ticket).shake())
      << "the key is gone with which it was made";
  EXPECT_FALSE(Streams(1, ring_of({2}), holding({mine})).shake());
}

TEST(SessionTickets, OfOneProcessAreNoUseToAnother) {
  const NamedKey mine = make_named_key(a_key(1), a_ticket());
  const NamedKey others = make_named_key(a_key(1), a_ticket(1001));
  EXPECT_NE(mine.key, others.key);
  EXPECT_FALSE(Streams(1, holding({mine}), holding({others})).shake()) << "processes alone";
  EXPECT_FALSE(Streams(1, ring_of({1}), holding({{others.ticket, mine.key}})).shake())
      << "what a ticket says is of its key";
  EXPECT_FALSE(Streams(1, holding({mine}), holding({{mine.ticket, others.key}})).shake());
  EXPECT_FALSE(Streams(1, ring_of({1}), holding({make_named_key(mine.key, a_ticket(0))})).shake())
      << "a ticket makes no ticket";
  Ticket itself;
  itself.key = 1;
  EXPECT_FALSE(Streams(1, ring_of({1}), holding({{itself, mine.key}})).shake())
      << "it is not the cluster's key";
}

TEST(SessionTickets, EarlierOnesAreKeptForPeersThatWereToldOfThem) {
  std::vector<NamedKey> given;
  const auto tickets = std::make_shared<Tickets>();
  for (uint32_t user = 0; user <= Tickets::kept_max; ++user) {
    given.push_back(make_named_key(a_key(1), a_ticket(user)));
    tickets->add(given.back());
  }
  const std::shared_ptr<const Tickets> own = tickets;
  EXPECT_EQ(tickets->newest()->ticket, given.back().ticket);
  EXPECT_TRUE(Streams(1, own, ring_of({1}), given[1].ticket).shake());
  EXPECT_FALSE(Streams(1, own, ring_of({1}), given[0].ticket).shake()) << "too old";
  tickets->add(given.back());
  EXPECT_TRUE(tickets->find(given[1].ticket)) << "the same again takes no place";
}

}  // namespace
}  // namespace nccl_ha::relay
