#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <vector>

#include "runtime/base/random.h"
#include "runtime/streams/stream_seal.h"

namespace nccl_ha {
namespace {

std::shared_ptr<const KeyRing> stream_keys(const std::vector<std::pair<uint32_t, uint8_t>>& keys) {
  KeyRing ring;
  for (const auto& [number, fill] : keys) {
    HashKey key;
    key.fill(std::byte{fill});
    ring.add(number, key);
  }
  return std::make_shared<const KeyRing>(ring);
}

StreamSeal::Nonce nonce_of(uint8_t fill) {
  StreamSeal::Nonce nonce;
  nonce.fill(std::byte{fill});
  return nonce;
}

std::vector<std::byte> said(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

struct SealedPair {
  explicit SealedPair(bool dialler_encrypts = false, bool dialled_encrypts = false)
      : dialler(stream_keys({{1, 1}}), true, dialler_encrypts, nonce_of(10)),
        dialled(stream_keys({{1, 1}}), false, dialled_encrypts, nonce_of(20)) {}
  void shake_hands() {
    greeting = dialler.greet();
    auto heard = dialled.hear(greeting);
    ASSERT_TRUE(heard) << heard.error().message();
    answer = heard->answer;
    EXPECT_TRUE(heard->bytes.empty());
    ASSERT_TRUE(dialled.open());
    ASSERT_FALSE(dialler.open());
    ASSERT_TRUE(dialler.hear(answer));
    ASSERT_TRUE(dialler.open());
  }
  StreamSeal dialler;
  StreamSeal dialled;
  std::vector<std::byte> greeting;
  std::vector<std::byte> answer;
};

TEST(StreamSeals, CarryBytesBothWaysHoweverTheyAreCut) {
  Random random(3);
  for (const bool encrypts : {false, true}) {
    SealedPair pair(encrypts, false);
    pair.shake_hands();
    for (const size_t length : {size_t{1}, size_t{100}, StreamSeal::record_max,
                                StreamSeal::record_max + 1, 3 * StreamSeal::record_max}) {
      std::vector<std::byte> bytes(length);
      for (auto& byte : bytes) {
        byte = static_cast<std::byte>(random.next());
      }
      for (const auto& [from, to] :
           {std::pair(&pair.dialler, &pair.dialled), std::pair(&pair.dialled, &pair.dialler)}) {
        const auto records = from->close(bytes);
        std::vector<std::byte> arrived;
        for (size_t at = 0; at < records.size();) {
          const size_t piece = std::min(records.size() - at, 1 + random.next() % 5000);
          const auto heard = to->hear(std::span(records).subspan(at, piece));
          ASSERT_TRUE(heard);
          arrived.insert(arrived.end(), heard->bytes.begin(), heard->bytes.end());
          at += piece;
        }
        EXPECT_EQ(arrived, bytes);
      }
    }
  }
}

TEST(StreamSeals, BothEndsShareAKeyThatNoOtherStreamHas) {
  SealedPair one;
  one.shake_hands();
  EXPECT_EQ(one.dialler.shared()->key, one.dialled.shared()->key);
  EXPECT_FALSE(one.dialler.shared()->encrypts);
  StreamSeal dialled(stream_keys({{1, 1}}), false, false, nonce_of(21));
  ASSERT_TRUE(dialled.hear(one.greeting));
  EXPECT_NE(dialled.shared()->key, one.dialler.shared()->key) << "with another answer";
}

TEST(StreamSeals, EitherSidesWishEncryptsBothWays) {
  for (const auto& [dialler, dialled] :
       {std::pair(true, false), std::pair(false, true), std::pair(true, true)}) {
    SealedPair pair(dialler, dialled);
    pair.shake_hands();
    EXPECT_TRUE(pair.dialler.shared()->encrypts && pair.dialled.shared()->encrypts);
    const auto text = said("a text that can be looked for");
    for (StreamSeal* from : {&pair.dialler, &pair.dialled}) {
      const auto records = from->close(text);
      EXPECT_TRUE(std::ranges::search(records, text).empty());
    }
  }
  SealedPair clear;
  clear.shake_hands();
  const auto text = said("a text that can be looked for");
  const auto records = clear.dialler.close(text);
  EXPECT_FALSE(std::ranges::search(records, text).empty());
}

TEST(StreamSeals, WhoHasNotShownTheKeyHearsNothing) {
  SealedPair pair;
  const auto greeting = pair.dialler.greet();
  for (size_t i = 0; i < greeting.size(); ++i) {
    auto changed = greeting;
    changed[i] ^= std::byte{1};
    StreamSeal dialled(stream_keys({{1, 1}}), false, false, nonce_of(20));
    const auto heard = dialled.hear(changed);
    EXPECT_FALSE(heard) << "byte " << i;
    EXPECT_FALSE(dialled.open());
  }
  for (const size_t length : {size_t{0}, size_t{3}, size_t{59}}) {
    StreamSeal dialled(stream_keys({{1, 1}}), false, false, nonce_of(20));
    const auto heard = dialled.hear(std::span(greeting).first(length));
    ASSERT_TRUE(heard);
    EXPECT_TRUE(heard->answer.empty()) << length;
  }
  StreamSeal with_other_key(stream_keys({{1, 2}}), false, false, nonce_of(20));
  EXPECT_FALSE(with_other_key.hear(greeting));
  StreamSeal with_other_number(stream_keys({{2, 1}}), false, false, nonce_of(20));
  EXPECT_FALSE(with_other_number.hear(greeting));
  StreamSeal of_plain(stream_keys({{1, 1}}), false, false, nonce_of(20));
  EXPECT_FALSE(of_plain.hear(said("NCHA, as who has no key says"))) << "at once, not at 60 bytes";
}

TEST(StreamSeals, AnAnswerIsOfTheOneThatWasDialledAndOfThisStream) {
  SealedPair pair;
  pair.shake_hands();
  for (size_t i = 0; i < pair.answer.size(); ++i) {
    auto changed = pair.answer;
    changed[i] ^= std::byte{1};
    StreamSeal dialler(stream_keys({{1, 1}}), true, false, nonce_of(10));
    static_cast<void>(dialler.greet());
    EXPECT_FALSE(dialler.hear(changed)) << "byte " << i;
    EXPECT_FALSE(dialler.open());
  }
  StreamSeal later(stream_keys({{1, 1}}), true, false, nonce_of(11));
  static_cast<void>(later.greet());
  EXPECT_FALSE(later.hear(pair.answer)) << "of another stream";
  StreamSeal mirrored(stream_keys({{1, 1}}), true, false, nonce_of(10));
  EXPECT_FALSE(mirrored.hear(mirrored.greet())) << "its own";
}

TEST(StreamSeals, NoBitChangesNoRecordComesTwiceAndNoneIsLeftOut) {
  for (const bool encrypts : {false, true}) {
    SealedPair first(encrypts, false);
    first.shake_hands();
    const auto record = first.dialler.close(said("one"));
    const auto second = first.dialler.close(said("two"));
    for (size_t i = 0; i < record.size(); ++i) {
      SealedPair pair(encrypts, false);
      pair.shake_hands();
      auto changed = record;
      changed[i] ^= std::byte{4};
      const auto heard = pair.dialled.hear(changed);
      // A length may be larger now: then it waits for what never comes, or for what is wrong.
      EXPECT_TRUE(!heard || (heard->bytes.empty() && i < 2)) << "byte " << i;
    }
    ASSERT_TRUE(first.dialled.hear(record));
    EXPECT_FALSE(first.dialled.hear(record)) << "twice";
    SealedPair left_out(encrypts, false);
    left_out.shake_hands();
    EXPECT_FALSE(left_out.dialled.hear(second));
    SealedPair turned(encrypts, false);
    turned.shake_hands();
    EXPECT_FALSE(turned.dialler.hear(record)) << "its own, sent back";
  }
}

TEST(StreamSeals, WhatDidNotLeaveIsAsIfItHadNotBeen) {
  SealedPair pair;
  pair.shake_hands();
  static_cast<void>(pair.dialler.close(std::vector<std::byte>(StreamSeal::record_max + 1)));
  pair.dialler.take_back(StreamSeal::record_max + 1);
  const auto heard = pair.dialled.hear(pair.dialler.close(said("next")));
  ASSERT_TRUE(heard);
  EXPECT_EQ(heard->bytes, said("next"));
}

TEST(StreamSeals, KeysChangeWithoutAGap) {
  const auto talks = [](const std::shared_ptr<const KeyRing>& from,
                        const std::shared_ptr<const KeyRing>& to) {
    StreamSeal dialler(from, true, false, nonce_of(1));
    StreamSeal dialled(to, false, false, nonce_of(2));
    const auto heard = dialled.hear(dialler.greet());
    return heard && dialler.hear(heard->answer).ok();
  };
  const auto old_only = stream_keys({{1, 1}});
  const auto added = stream_keys({{1, 1}, {2, 2}});
  const auto turned = stream_keys({{2, 2}, {1, 1}});
  const auto new_only = stream_keys({{2, 2}});
  for (const auto& [one, other] :
       {std::pair(old_only, added), std::pair(added, turned), std::pair(turned, new_only)}) {
    EXPECT_TRUE(talks(one, other) && talks(other, one));
  }
  EXPECT_FALSE(talks(old_only, new_only));
}

TEST(StreamSeals, ALengthThatNoRecordHasEndsIt) {
  for (const uint16_t length : {uint16_t{0}, uint16_t{StreamSeal::record_max + 1}}) {
    SealedPair pair;
    pair.shake_hands();
    EXPECT_FALSE(pair.dialled.hear(std::as_bytes(std::span(&length, 1))));
  }
}

}  // namespace
}  // namespace nccl_ha
