#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>

#include "actors/connection/lane.h"
#include "actors/control.h"
#include "actors/immediate.h"
#include "runtime/base/random.h"

namespace nccl_ha {
namespace {

Hello sample_hello() {
  Hello hello;
  hello.nonce = 0x0123456789ABCDEF;
  hello.rejoin = {40001, Secret::heard(99), {4, 5}, 4, {10, 0, 0, 1}};
  hello.host = "node\n17";
  const std::array<std::byte, 72> bytes{std::byte{1}, std::byte{2}};
  hello.kind = fabric::FabricKind{2};
  hello.shadows = 1;
  hello.paths = {{*PathAddress::from(bytes), {}, 0x7000, 5, {0x7F00, 3}},
                 {*PathAddress::from(std::span(bytes).first(48)), {}, 0, 0, {}},
                 {{}, "port 1 is down", 0, 0, {}}};
  return hello;
}

TEST(Control, MessagesRoundTripWhateverTheCuts) {
  Random random(8);
  std::vector<std::byte> stream = encode(sample_hello());
  Welcome welcome;
  welcome.host = "b";
  welcome.paths.emplace_back();
  for (const auto& more : {encode(welcome), encode(ControlType::failure, {Errc::remote, "why"}),
                           encode(CloseNotice{42})}) {
    stream.insert(stream.end(), more.begin(), more.end());
  }
  for (int round = 0; round < 200; ++round) {
    ControlReader reader;
    std::vector<ControlType> types;
    size_t offset = 0;
    while (offset < stream.size()) {
      const size_t take = std::min<size_t>(1 + random.below(50), stream.size() - offset);
      ASSERT_TRUE(reader.feed(std::span(stream).subspan(offset, take)));
      offset += take;
      while (const auto message = reader.next()) {
        types.push_back(message->type);
        if (message->type == ControlType::hello) {
          const auto hello = decode_hello(message->payload);
          ASSERT_TRUE(hello);
          EXPECT_EQ(hello->nonce, sample_hello().nonce);
          EXPECT_EQ(hello->host, "node?17") << "control characters do not reach a log";
          ASSERT_EQ(hello->paths.size(), 3U);
          EXPECT_EQ(hello->paths[0].address.length, 72);
          EXPECT_EQ(hello->paths[0].control_address, 0x7000U);
          EXPECT_EQ(hello->paths[0].control_key, 5U);
          EXPECT_EQ(hello->paths[0].table, (RemoteTable{0x7F00, 3}));
          EXPECT_EQ(hello->paths[1].address.length, 48);
          EXPECT_EQ(hello->paths[1].missing, "");
          EXPECT_EQ(hello->paths[2].address.length, 0);
          EXPECT_EQ(hello->paths[2].missing, "port 1 is down");
          EXPECT_EQ(hello->shadows, 1);
          EXPECT_EQ(hello->kind, fabric::FabricKind{2});
        } else if (message->type == ControlType::close) {
          EXPECT_EQ(decode_close(message->payload)->groups_completed, 42U);
        }
      }
    }
    EXPECT_EQ(types, (std::vector{ControlType::hello, ControlType::welcome, ControlType::failure,
                                  ControlType::close}));
    EXPECT_FALSE(reader.broken());
  }
}

TEST(Control, TheLongestHandshakeFitsIntoItsMessages) {
  const std::vector<std::byte> bytes(fabric::path_address_max, std::byte{9});
  const PathEnd longest{*PathAddress::from(bytes), {}, 1, 2, {3, 4}};
  Hello hello = sample_hello();
  hello.host = std::string(200, 'h');
  hello.paths.assign(paths_max, longest);
  Welcome welcome;
  welcome.host = hello.host;
  welcome.paths = hello.paths;
  welcome.rails.resize(ha::rails_max);
  PathOffer offer;
  offer.end = longest;
  ControlReader reader;
  for (const auto& frame : {encode(hello), encode(welcome), encode(ControlType::rebuild, offer)}) {
    ASSERT_LE(frame.size(), control_header_bytes + control_payload_max);
    ASSERT_TRUE(reader.feed(frame));
    const auto message = reader.next();
    ASSERT_TRUE(message);
    if (message->type == ControlType::hello) {
      const auto back = decode_hello(message->payload);
      ASSERT_TRUE(back);
      EXPECT_EQ(back->paths.back().address.length, fabric::path_address_max);
    } else if (message->type == ControlType::welcome) {
      ASSERT_TRUE(decode_welcome(message->payload));
    } else {
      EXPECT_LE(frame.size(), ControlBox::slot_bytes) << "it travels over paths too";
      ASSERT_TRUE(decode_offer(message->payload));
    }
  }
  EXPECT_FALSE(PathAddress::from(std::vector<std::byte>(fabric::path_address_max + 1)));
}

TEST(Control, WhatThePeerSaysIsReportedOnceHoweverOftenItWasPassedOn) {
  Error error = from_peer("the link is down");
  EXPECT_EQ(error.what, "the peer reports: the link is down");
  for (int i = 0; i < 3; ++i) {
    error = from_peer(error.what);
  }
  EXPECT_EQ(error.what, "the peer reports: the link is down");
  EXPECT_EQ(without_reporter(error.what), "the link is down");
  EXPECT_EQ(without_reporter("it is down"), "it is down");
}

TEST(Control, CallsAndAnswersRoundTrip) {
  const ProcessId process{4711, uint64_t{1} << 40};
  const auto call = encode(ControlType::probe, RejoinCall{Secret::heard(99), process});
  const auto back = decode_call(std::span(call).subspan(control_header_bytes));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->token.told(), 99U);
  EXPECT_EQ(back->process, process);
  EXPECT_FALSE(back->shares);
  const auto asks = encode(ControlType::rejoin, RejoinCall{Secret::heard(99), process, true});
  const auto payload_of_asks = std::span(asks).subspan(control_header_bytes);
  ASSERT_EQ(asks.size(), call.size() + 1) << "versions without sessions read no more";
  ASSERT_TRUE(decode_call(payload_of_asks));
  EXPECT_TRUE(decode_call(payload_of_asks)->shares);
  const auto answer = encode(ControlType::present, process);
  EXPECT_EQ(decode_process(std::span(answer).subspan(control_header_bytes)), process);
  for (size_t length = 0; length < call.size() - control_header_bytes; ++length) {
    EXPECT_FALSE(decode_call(std::span(call).subspan(control_header_bytes, length))) << length;
  }
  for (size_t length = 0; length < answer.size() - control_header_bytes; ++length) {
    EXPECT_FALSE(decode_process(std::span(answer).subspan(control_header_bytes, length))) << length;
  }
}

TEST(Control, OtherProtocolsAreRecognisedAtTheFirstWrongByte) {
  ControlReader reader;
  const std::array<std::byte, 1> g{std::byte{'G'}};  // of "GET / HTTP/1.1"
  EXPECT_FALSE(reader.feed(g));
  EXPECT_TRUE(reader.broken());
  EXPECT_FALSE(reader.next());
}

TEST(Control, ImpossibleLengthsAndTypesBreakTheStream) {
  for (const size_t at : {4UL, 6UL}) {
    std::vector<std::byte> bytes = encode(CloseNotice{1});
    bytes[at] = std::byte{0xFF};
    bytes[at + 1] = std::byte{0xFF};
    ControlReader reader;
    static_cast<void>(reader.feed(bytes));
    EXPECT_FALSE(reader.next());
    EXPECT_TRUE(reader.broken()) << at;
  }
}

TEST(Control, OfTheVersionsThatBothSpeakTheNewestIsTaken) {
  constexpr uint16_t own = control_version;
  EXPECT_EQ(common_version({own, own}), own);
  EXPECT_EQ(common_version({own, own + 1}), own) << "a newer peer that speaks with this version";
  EXPECT_EQ(common_version({own - 1, own}), own);
  EXPECT_EQ(common_version({own - 2, own + 2}), own);
  EXPECT_EQ(common_version({own + 1, own + 2}), std::nullopt);
  EXPECT_EQ(common_version({own_versions.oldest - 2, own_versions.oldest - 1}), std::nullopt);
  EXPECT_GE(own_versions.oldest, first_version_with_range);
  EXPECT_LE(own - own_versions.oldest, 1);
}

TEST(Control, WithoutACommonVersionAHelloIsToldFromGarbage) {
  for (const uint16_t oldest :
       {uint16_t{own_versions.oldest - 2}, uint16_t{own_versions.newest + 1}}) {
    Hello hello = sample_hello();
    hello.versions = {oldest, static_cast<uint16_t>(oldest + 1)};
    std::vector<std::byte> bytes = encode(hello);
    bytes.resize(control_header_bytes + 40);  // it may look different behind the versions
    const auto decoded = decode_hello(std::span(bytes).subspan(control_header_bytes));
    ASSERT_TRUE(decoded);
    EXPECT_FALSE(common_version(decoded->versions));
    EXPECT_EQ(decoded->versions.newest, oldest + 1);
    EXPECT_EQ(decoded->nonce, hello.nonce);
  }
}

/// As version 16 said it: one version, then the nonce, then what this one does not read.
TEST(Control, AHelloOfBeforeThereWereRangesNamesOneVersion) {
  std::vector<std::byte> payload(60, std::byte{0xA5});
  payload[0] = std::byte{16};
  payload[1] = std::byte{0};
  const auto decoded = decode_hello(payload);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->versions.oldest, 16);
  EXPECT_EQ(decoded->versions.newest, 16);
  EXPECT_EQ(decoded->nonce, 0xA5A5A5A5A5A5A5A5U);
}

/// Nor is it read: of version 17 a hello ends with its paths.
TEST(Control, OnlyAHelloOfAVersionWithSessionsSaysWhetherItShares) {
  Hello hello = sample_hello();
  hello.shares = true;
  const std::vector<std::byte> now = encode(hello);
  ASSERT_TRUE(decode_hello(std::span(now).subspan(control_header_bytes)));
  EXPECT_TRUE(decode_hello(std::span(now).subspan(control_header_bytes))->shares);
  hello.versions = {first_version_with_sessions - 1, first_version_with_sessions - 1};
  const std::vector<std::byte> before = encode(hello);
  EXPECT_EQ(before.size() + 1, now.size());
  const auto decoded = decode_hello(std::span(before).subspan(control_header_bytes));
  ASSERT_TRUE(decoded);
  EXPECT_FALSE(decoded->shares);
  EXPECT_EQ(decoded->paths.size(), hello.paths.size());
}

TEST(Control, ANewerHelloMayHaveMoreAtItsEnd) {
  for (const uint16_t newest : {control_version, static_cast<uint16_t>(control_version + 1)}) {
    Hello hello = sample_hello();
    hello.versions = {control_version, newest};
    std::vector<std::byte> bytes = encode(hello);
    bytes.resize(bytes.size() + 20);
    const auto decoded = decode_hello(std::span(bytes).subspan(control_header_bytes));
    ASSERT_EQ(decoded.has_value(), newest != control_version) << newest;
    if (decoded) {
      EXPECT_EQ(decoded->host, "node?17");
      EXPECT_EQ(decoded->paths.size(), hello.paths.size());
    }
  }
  Hello reversed = sample_hello();
  reversed.versions = {control_version + 1, control_version};
  const std::vector<std::byte> bytes = encode(reversed);
  EXPECT_FALSE(decode_hello(std::span(bytes).subspan(control_header_bytes)));
}

TEST(Control, TruncatedAndPaddedPayloadsAreRefused) {
  const std::vector<std::byte> whole = encode(sample_hello());
  const auto payload = std::span(whole).subspan(control_header_bytes);
  ASSERT_TRUE(decode_hello(payload));
  for (size_t length = 0; length < payload.size(); ++length) {
    EXPECT_FALSE(decode_hello(payload.first(length))) << length;
  }
  std::vector<std::byte> longer(payload.begin(), payload.end());
  longer.push_back(std::byte{0});
  EXPECT_FALSE(decode_hello(longer));
}

template <class Value, class Decode>
void expect_cut_short_is_refused(const std::vector<std::byte>& whole, const Value& check,
                                 Decode decode) {
  const auto payload = std::span(whole).subspan(control_header_bytes);
  const auto back = decode(payload);
  ASSERT_TRUE(back);
  check(*back);
  for (size_t length = 0; length < payload.size(); ++length) {
    EXPECT_FALSE(decode(payload.first(length))) << length;
  }
  std::vector<std::byte> longer(payload.begin(), payload.end());
  longer.push_back(std::byte{0});
  EXPECT_FALSE(decode(longer));
}

TEST(Control, WhatIsSaidOfAPathComesBackAsItWas) {
  expect_cut_short_is_refused(
      encode(ControlType::suspect, PathNotice{7, 123456, true, false, "retry budget"}),
      [](const PathNotice& back) {
        EXPECT_EQ(back.path, 7);
        EXPECT_EQ(back.epoch, 123456U);
        EXPECT_TRUE(back.rejected);
        EXPECT_FALSE(back.unproven);
        EXPECT_EQ(back.why, "retry budget");
      },
      decode_notice);
  expect_cut_short_is_refused(
      encode(ControlType::down, PathNotice{7, 123456, false, true, "hangs"}),
      [](const PathNotice& back) {
        EXPECT_FALSE(back.rejected);
        EXPECT_TRUE(back.unproven);
        EXPECT_EQ(back.why, "hangs");
      },
      decode_notice);
  FenceReport report{3, 9, {}};
  report.arrived.completed = 1ULL << 40;
  report.arrived.groups.resize(report_groups_max);
  for (auto& group : report.arrived.groups) {
    group.chunks.assign(report_positions_max, 0x8001);
  }
  report.arrived.groups[5] = {true, {}};
  ASSERT_LE(encode(report).size(), control_header_bytes + control_payload_max);
  expect_cut_short_is_refused(
      encode(report),
      [](const FenceReport& back) {
        EXPECT_EQ(back.path, 3);
        EXPECT_EQ(back.epoch, 9U);
        EXPECT_TRUE(back.arrived.has((1ULL << 40) - 1, 0, 0));
        EXPECT_TRUE(back.arrived.has(1ULL << 40, 7, 15));
        EXPECT_FALSE(back.arrived.has(1ULL << 40, 7, 14));
        EXPECT_TRUE(back.arrived.has((1ULL << 40) + 5, 3, 9));
        EXPECT_TRUE(back.arrived.covers((1ULL << 40) + 63));
        EXPECT_FALSE(back.arrived.covers((1ULL << 40) + 64));
      },
      decode_report);
  PathOffer offer{1, 2, 7, {}};
  offer.end.table = {0x123456789A, 77};
  offer.end.address.length = 3;
  offer.end.address.bytes[2] = std::byte{9};
  offer.end.control_key = 8;
  expect_cut_short_is_refused(
      encode(ControlType::rebuild, offer),
      [](const PathOffer& back) {
        EXPECT_EQ(back.path, 1);
        EXPECT_EQ(back.epoch, 2U);
        EXPECT_EQ(back.rail, 7);
        EXPECT_EQ(back.end.table, (RemoteTable{0x123456789A, 77}));
        EXPECT_EQ(back.end.control_key, 8U);
        ASSERT_EQ(back.end.address.length, 3);
        EXPECT_EQ(back.end.address.bytes[2], std::byte{9});
      },
      decode_offer);
  expect_cut_short_is_refused(
      encode(LinkNotice{5}), [](const LinkNotice& back) { EXPECT_EQ(back.rail, 5); },
      decode_link_back);
  EndNotice moved{3, {}};
  moved.rail.number = 9;
  moved.rail.family = 6;
  moved.rail.prefix_len = 64;
  moved.rail.address[15] = 7;
  expect_cut_short_is_refused(
      encode(moved),
      [&](const EndNotice& back) {
        EXPECT_EQ(back.place, 3);
        EXPECT_EQ(back.rail, moved.rail);
      },
      decode_end);
}

TEST(Control, TheRailsOfAWelcomeComeBackAsTheyWere) {
  Welcome welcome;
  welcome.host = "b";
  welcome.shadows = 1;
  welcome.paths.emplace_back();
  welcome.rails.resize(ha::rails_max);
  ha::Rail& last = welcome.rails.back();
  last.kind = 2;
  last.number = 700;
  last.primary = true;
  last.distance = ha::pci_far;
  last.family = 6;
  last.prefix_len = 128;
  last.address[15] = 1;
  expect_cut_short_is_refused(
      encode(welcome),
      [&](const Welcome& back) {
        EXPECT_EQ(back.shadows, 1);
        ASSERT_EQ(back.rails.size(), ha::rails_max);
        EXPECT_EQ(back.rails.back(), last);
      },
      decode_welcome);
  last.prefix_len = 129;
  const auto whole = encode(welcome);
  EXPECT_FALSE(decode_welcome(std::span(whole).subspan(control_header_bytes)));
}

/// Else the fuzzer would begin with what is refused at its first bytes (tests/fuzz/make_corpus.py).
TEST(Control, TheSeedsOfTheFuzzerAreOfThisVersion) {
  const auto seed = [](const std::string& name) {
    std::ifstream file(NHA_SOURCE_DIR "/tests/fuzz/corpus/control/" + name + "_body",
                       std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
    return std::vector<std::byte>(bytes, bytes + text.size());
  };
  for (const char* name : {"hello", "hello_rdma", "hello_newer"}) {
    const auto hello = decode_hello(seed(name));
    ASSERT_TRUE(hello) << name;
    EXPECT_EQ(common_version(hello->versions), control_version) << name;
    EXPECT_FALSE(hello->paths.empty()) << name;
  }
  const auto welcome = decode_welcome(seed("welcome"));
  ASSERT_TRUE(welcome);
  EXPECT_EQ(welcome->version, control_version);
  EXPECT_FALSE(welcome->rails.empty());
  EXPECT_TRUE(decode_refusal(seed("failure")));
  EXPECT_TRUE(decode_close(seed("close")));
  EXPECT_TRUE(decode_notice(seed("suspect")));
  EXPECT_TRUE(decode_report(seed("fenced")));
  EXPECT_TRUE(decode_offer(seed("rebuild")));
  EXPECT_TRUE(decode_call(seed("rejoin")));
  EXPECT_TRUE(decode_process(seed("present")));
  EXPECT_TRUE(decode_link_back(seed("link_back")));
  EXPECT_TRUE(decode_end(seed("end")));
}

TEST(Control, NumbersTravelInTheHeader) {
  std::vector<std::byte> frame = encode(CloseNotice{1});
  set_numbers(frame, 0xAABBCCDD, 0x11223344);
  ControlReader reader;
  ASSERT_TRUE(reader.feed(frame));
  const auto message = reader.next();
  ASSERT_TRUE(message);
  EXPECT_EQ(message->number, 0xAABBCCDDU);
  EXPECT_EQ(message->confirmed, 0x11223344U);
}

TEST(Control, NumbersBeyondTheirSetsAreRefused) {
  auto damaged = [](std::vector<std::byte> whole, size_t at, uint8_t value) {
    whole[control_header_bytes + at] = std::byte{value};
    return std::vector<std::byte>(whole.begin() + control_header_bytes, whole.end());
  };
  const auto notice = encode(ControlType::down, PathNotice{0, 1, false, false, ""});
  EXPECT_FALSE(decode_notice(damaged(notice, 0, lanes_max)));
  EXPECT_FALSE(decode_notice(damaged(notice, 5, 2)));
  EXPECT_FALSE(decode_notice(damaged(notice, 6, 2)));
  EXPECT_FALSE(decode_link_back(damaged(encode(LinkNotice{}), 0, ha::rails_max)));
  EXPECT_TRUE(decode_link_back(damaged(encode(LinkNotice{}), 0, ha::rails_max - 1)));
  EXPECT_FALSE(decode_end(damaged(encode(EndNotice{}), 0, ha::rails_max)));
  EXPECT_FALSE(decode_end(damaged(encode(EndNotice{}), 6, 5))) << "no family of addresses";
  FenceReport report{0, 1, {}};
  report.arrived.groups = {{false, {1, 2}}};
  EXPECT_FALSE(decode_report(damaged(encode(report), 0, lanes_max)));
  EXPECT_FALSE(decode_report(damaged(encode(report), 13, report_groups_max + 1)));
  EXPECT_FALSE(decode_report(damaged(encode(report), 14, 2))) << "neither whole nor not";
  EXPECT_FALSE(decode_report(damaged(encode(report), 15, report_positions_max + 1)));
  EXPECT_TRUE(decode_report(damaged(encode(report), 14, 1)));
}

TEST(Immediate, PacksWholeNumbersAndComparesThem) {
  for (const uint64_t group : {0ULL, 1ULL, 8191ULL, 8192ULL, 123456789ULL}) {
    const Immediate immediate{ImmediateKind::clear_to_send, static_cast<uint32_t>(group), 5};
    const Immediate back = Immediate::unpack(immediate.pack());
    EXPECT_EQ(back.kind, ImmediateKind::clear_to_send);
    EXPECT_EQ(back.position, 5U);
    EXPECT_TRUE(Immediate::same_group(back.group, group));
    EXPECT_FALSE(Immediate::same_group(back.group, group + 1));
    EXPECT_TRUE(Immediate::same_epoch(immediate.pack(), 0));
    EXPECT_FALSE(Immediate::same_epoch(immediate.pack(), 1));
    EXPECT_EQ(Immediate::group_distance(back.group, group + 40), 40U);
  }
  const Immediate chunk = Immediate::unpack(Immediate{ImmediateKind::data, 1, 2, 15, 15}.pack());
  EXPECT_EQ(chunk.chunk, 15U);
  EXPECT_EQ(chunk.last_chunk, 15U);
  const uint32_t late = Immediate{ImmediateKind::data, 8191, 7, 15, 15, 64 + 5}.pack();
  EXPECT_TRUE(Immediate::same_epoch(late, 5));
  EXPECT_TRUE(Immediate::same_epoch(late, 64 + 5)) << "of an epoch only the low bits travel";
  EXPECT_FALSE(Immediate::same_epoch(late, 4));
  EXPECT_EQ(Immediate::unpack(late).group, 8191U);
  EXPECT_EQ(Announcement::unpack(Announcement{8191, 511, 63}.pack()).first_entry, 511U);
  EXPECT_TRUE(Immediate::same_epoch(Announcement{8191, 511, 63}.pack(), 63));
}

}  // namespace
}  // namespace nccl_ha
