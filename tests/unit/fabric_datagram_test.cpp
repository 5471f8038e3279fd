// The parts of the datagram engine, each by itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <vector>

#include "runtime/base/random.h"
#include "runtime/fabric/datagram/congestion.h"
#include "runtime/fabric/datagram/fault_io.h"
#include "runtime/fabric/datagram/hotel.h"
#include "runtime/fabric/datagram/receive_window.h"
#include "runtime/fabric/datagram/wire.h"
#include "runtime/fabric/packet_io.h"

namespace nccl_ha::fabric {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

FrameHeader sample_put() {
  FrameHeader header;
  header.type = FrameType::put;
  header.flags = flag_last | flag_immediate | flag_ack;
  header.path = 0x12345678;
  header.token = 0x1122334455667788;
  header.sequence = 77;
  header.payload_length = 100;
  header.fragment_length = 1000;
  header.fragment_offset = 900;
  header.immediate = 0xABCDEF01;
  header.key = 0x100001;
  header.address = 0x7F0000001000;
  return header;
}

TEST(Wire, EncodesAndDecodesEveryField) {
  FrameHeader header = sample_put();
  header.acknowledge = 5;
  header.credits = 6;
  header.ack_delay_us = 7;
  header.sent_us = 8;
  header.echo_us = 9;
  header.fragment = 10;
  std::array<std::byte, header_bytes + 100> bytes{};
  encode(header, bytes.data());
  const auto got = decode(bytes, bytes.size());
  ASSERT_TRUE(got);
  std::array<std::byte, header_bytes> again{};
  encode(*got, again.data());
  EXPECT_TRUE(std::equal(again.begin(), again.end(), bytes.begin()));
  EXPECT_EQ(got->address, header.address);
  EXPECT_EQ(got->ack_delay_us, 7);
}

TEST(Wire, RefusesWhatCannotBe) {
  const auto refused = [](auto change) {
    FrameHeader header = sample_put();
    change(header);
    std::array<std::byte, header_bytes + 100> bytes{};
    encode(header, bytes.data());
    return !decode(bytes, bytes.size());
  };
  EXPECT_FALSE(refused([](FrameHeader&) {}));
  EXPECT_TRUE(refused([](FrameHeader& h) { h.payload_length = 101; })) << "longer than the packet";
  EXPECT_TRUE(refused([](FrameHeader& h) { h.fragment_offset = 901; })) << "beyond the fragment";
  EXPECT_TRUE(refused([](FrameHeader& h) { h.fragment_offset = 100; })) << "last, but not the end";
  EXPECT_TRUE(refused([](FrameHeader& h) { h.flags = 0; })) << "the end, but not last";
  EXPECT_TRUE(refused([](FrameHeader& h) { h.flags = 0xFF; })) << "unknown flags";
  EXPECT_TRUE(refused([](FrameHeader& h) { h.type = static_cast<FrameType>(0); }));
  EXPECT_TRUE(refused([](FrameHeader& h) { h.type = static_cast<FrameType>(2); })) << "once a send";
  EXPECT_TRUE(refused([](FrameHeader& h) { h.type = static_cast<FrameType>(8); }));
  EXPECT_TRUE(refused([](FrameHeader& h) { h.address = UINT64_MAX - 10; })) << "wraps";
  EXPECT_TRUE(refused([](FrameHeader& h) {
    h.payload_length = 0;
    h.fragment_offset = 1000;
  })) << "empty segment of a fragment that is not";
  std::array<std::byte, header_bytes> bytes{};
  encode(sample_put(), bytes.data());
  for (size_t length = 0; length < header_bytes; ++length) {
    EXPECT_FALSE(decode(std::span(bytes).first(length), length)) << length;
  }
  bytes[0] = std::byte{0};
  EXPECT_FALSE(decode(bytes, bytes.size())) << "wrong magic";
}

TEST(Wire, SequenceOrderSurvivesTheWrap) {
  EXPECT_LT(sequence_distance(1, 2), 0);
  EXPECT_GT(sequence_distance(0, UINT32_MAX), 0);
  EXPECT_EQ(sequence_distance(UINT32_MAX, 0), -1);
}

/// What a port says of itself, but for its addresses.
WireAddress sample_address() {
  WireAddress address;
  address.path = 5;
  address.token = Secret::heard(6);
  address.mtu = 9000;
  address.socket_bytes = 1 << 20;
  address.window = 1024;
  address.tiny_bytes = 768;
  return address;
}

TEST(Wire, AddressBlocksRoundTripAndAreChecked) {
  WireAddress address = sample_address();
  auto* in4 = reinterpret_cast<sockaddr_in*>(&address.command.storage);
  in4->sin_family = AF_INET;
  in4->sin_port = htons(1111);
  in4->sin_addr.s_addr = htonl(0x0A000001);
  address.command.length = sizeof(sockaddr_in);
  address.data = address.command;
  address.data.set_port(2222);
  std::array<std::byte, wire_address_bytes> bytes{};
  encode(address, bytes);
  const auto got = decode_address(bytes);
  ASSERT_TRUE(got);
  EXPECT_TRUE(got->command == address.command);
  EXPECT_TRUE(got->data == address.data);
  EXPECT_EQ(got->token.told(), 6U);
  EXPECT_EQ(got->mtu, 9000U);
  for (const auto& [field, value] : std::map<std::string, uint32_t>{
           {"mtu", 100}, {"window", 1000}, {"window", 1 << 20}, {"tiny", 5000}}) {
    WireAddress bad = address;
    (field == "mtu" ? bad.mtu : field == "window" ? bad.window : bad.tiny_bytes) = value;
    encode(bad, bytes);
    EXPECT_FALSE(decode_address(bytes)) << field << " " << value;
  }
}

TEST(Wire, QueuePairsTakeThePlaceOfSockets) {
  UdAddress ud;
  ud.lid = 7;
  ud.queue_pair = 0x1234;
  ud.gid = {0xfe, 0x80, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
  WireAddress address = sample_address();
  address.command = SocketAddress::from_ud(ud);
  ud.queue_pair = 0x1235;
  address.data = SocketAddress::from_ud(ud);
  std::array<std::byte, wire_address_bytes> bytes{};
  encode(address, bytes);
  const auto got = decode_address(bytes);
  ASSERT_TRUE(got);
  EXPECT_TRUE(got->command == address.command);
  EXPECT_TRUE(got->data == address.data);
  EXPECT_EQ(got->data.ud().queue_pair, 0x1235U);
  // The fabric's own queue pairs, everybody, and more than 24 bits.
  for (const uint32_t number : {0U, 1U, 0xFFFFFFU, 0x1000000U, UINT32_MAX}) {
    for (const bool data : {false, true}) {
      WireAddress bad = address;
      ud.queue_pair = number;
      (data ? bad.data : bad.command) = SocketAddress::from_ud(ud);
      encode(bad, bytes);
      EXPECT_FALSE(decode_address(bytes)) << number;
    }
  }
}

struct Guest {
  Room room;
  bool evicted = false;
};

TEST(Hotel, EvictsNeverEarlyAndAtMostOneFloorLate) {
  Random random(3);
  Instant now(seconds(50));
  Hotel hotel(now);
  std::deque<Guest> guests(2000);
  for (Guest& guest : guests) {
    hotel.check_in(guest.room, now + Duration(static_cast<int64_t>(random.below(400'000'000))));
  }
  EXPECT_EQ(hotel.guests(), guests.size());
  while (hotel.guests() != 0) {
    now += Duration(static_cast<int64_t>(random.below(3'000'000)));
    hotel.evict(now, [&](Room& room) {
      auto& guest = reinterpret_cast<Guest&>(room);
      EXPECT_LE(room.deadline, now) << "early";
      EXPECT_FALSE(guest.evicted) << "twice";
      guest.evicted = true;
    });
    for (const Guest& guest : guests) {
      if (!guest.evicted) {
        ASSERT_GT(guest.room.deadline + Duration(2 * Hotel::floor_ns), now) << "late";
      }
    }
  }
}

TEST(Hotel, CheckOutStopsTheClockAndCallbacksMayCheckIn) {
  Instant now(seconds(1));
  Hotel hotel(now);
  Guest out;
  Guest again;
  hotel.check_in(out.room, now + milliseconds(1));
  hotel.check_in(again.room, now + milliseconds(1));
  hotel.check_out(out.room);
  int evictions = 0;
  for (int i = 0; i < 10; ++i) {
    now += milliseconds(2);
    hotel.evict(now, [&](Room& room) {
      ++evictions;
      hotel.check_in(room, now + milliseconds(1));
    });
  }
  EXPECT_EQ(evictions, 10);
  EXPECT_FALSE(out.room.occupied());
  EXPECT_EQ(hotel.guests(), 1U);
  EXPECT_LE(hotel.sleep_until(), again.room.deadline + Duration(Hotel::floor_ns));
  hotel.check_out(again.room);
}

TEST(Hotel, SleepsPastALongGap) {
  Instant now(seconds(1));
  Hotel hotel(now);
  Guest guest;
  hotel.check_in(guest.room, now + milliseconds(5));
  now += seconds(3);  // many times round the floors
  int evictions = 0;
  hotel.evict(now, [&](Room&) { ++evictions; });
  EXPECT_EQ(evictions, 1);
}

TEST(Hotel, WhoeverIsEvictedInVainAndThoseBehindItLeaveLater) {
  Instant now(seconds(1));
  Hotel hotel(now);
  std::deque<Guest> guests(3);
  for (Guest& guest : guests) {
    hotel.check_in(guest.room, now + milliseconds(1));
  }
  const auto leave = [](Room& room) { reinterpret_cast<Guest&>(room).evicted = true; };
  int turns = 0;
  now += milliseconds(2);
  EXPECT_THROW(hotel.evict(now,
                           [&](Room& room) {
                             if (++turns == 2) {
                               throw std::bad_alloc();
                             }
                             leave(room);
                           }),
               std::bad_alloc);
  EXPECT_EQ(hotel.guests(), 2U);
  now += milliseconds(2);
  EXPECT_EQ(hotel.evict(now, leave), 2U);
  EXPECT_EQ(hotel.guests(), 0U);
  for (const Guest& guest : guests) {
    EXPECT_TRUE(guest.evicted);
  }
}

TEST(Congestion, GrowsWithoutDelayAndShrinksWithIt) {
  CongestionControl control({milliseconds(1), 10, 1, 1000});
  Instant now(seconds(1));
  const Duration base = microseconds(100);
  for (int i = 0; i < 100; ++i) {
    now += base;
    control.on_ack(now, control.window(), base, base, true);
  }
  EXPECT_EQ(control.window(), 1000U) << "slow start reaches the maximum";
  const uint32_t before = control.window();
  now += milliseconds(20);
  control.on_ack(now, 1, milliseconds(20), base, true);
  EXPECT_LT(control.window(), before);
  EXPECT_GE(control.window(), before / 2) << "never more than half at a time";
  const uint32_t once = control.window();
  control.on_ack(now + microseconds(1), 1, milliseconds(20), base, true);
  EXPECT_EQ(control.window(), once) << "once per round trip";
}

TEST(Congestion, RandomLossOfOnePercentCostsLittleHeavyLossMuch) {
  const auto run = [](double loss) {
    CongestionControl control({milliseconds(1), 10, 1, 500});
    Random random(5);
    Instant now(seconds(1));
    const Duration base = microseconds(100);
    for (int round = 0; round < 2000; ++round) {
      now += base;
      uint32_t lost = 0;
      const uint32_t window = control.window();
      for (uint32_t i = 0; i < window; ++i) {
        lost += random.chance(loss) ? 1 : 0;
      }
      control.on_ack(now, window - lost, base, base, true);
      if (lost != 0) {
        control.on_loss(now, lost, base);
      }
    }
    return control.window();
  };
  EXPECT_GT(run(0.01), 100U);
  EXPECT_LT(run(0.5), 30U);
}

TEST(Congestion, AnUnusedWindowDoesNotGrowAndATimeoutCollapsesIt) {
  CongestionControl control({milliseconds(1), 10, 1, 1000});
  Instant now(seconds(1));
  for (int i = 0; i < 100; ++i) {
    now += milliseconds(1);
    control.on_ack(now, 5, microseconds(50), microseconds(50), false);
  }
  EXPECT_EQ(control.window(), 10U);
  control.on_timeout();
  EXPECT_EQ(control.window(), 2U);
  for (int i = 0; i < 10; ++i) {
    control.on_timeout();
  }
  EXPECT_EQ(control.window(), 1U);
}

TEST(Congestion, AWindowThatTimeoutsCollapsedGrowsAgainWhereTheWayHasBecomeLonger) {
  CongestionControl control({milliseconds(10), 10, 1, 1000});
  Instant now(seconds(1));
  for (int i = 0; i < 5; ++i) {
    control.on_timeout();
  }
  ASSERT_EQ(control.window(), 1U);
  for (int i = 0; i < 1000; ++i) {
    now += milliseconds(30);
    control.on_ack(now, control.window(), milliseconds(30), microseconds(100), true);
  }
  EXPECT_EQ(control.window(), 10U) << "and no further, as what delays may be a queue";
}

TEST(ReceiveWindow, AgainstAPlainSetForRandomArrivals) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    ReceiveWindow window(64);
    std::set<uint32_t> arrived;
    uint32_t delivered = 0;
    for (int step = 0; step < 5000; ++step) {
      const uint32_t sequence = window.next() + static_cast<uint32_t>(random.below(80)) - 8;
      const auto verdict = window.check(sequence);
      const bool known = sequence_distance(sequence, delivered) < 0 || arrived.contains(sequence);
      const bool beyond = sequence_distance(sequence, delivered) >= 64;
      ASSERT_EQ(verdict, known    ? ReceiveWindow::Verdict::duplicate
                         : beyond ? ReceiveWindow::Verdict::beyond
                                  : ReceiveWindow::Verdict::fresh)
          << "seed " << seed << " step " << step;
      if (verdict == ReceiveWindow::Verdict::fresh) {
        ArrivedSegment segment;
        segment.immediate = sequence;
        window.arrive(sequence, segment);
        arrived.insert(sequence);
      }
      uint32_t next = delivered;
      while (arrived.contains(next)) {
        ++next;
      }
      ASSERT_EQ(window.next(), next) << "seed " << seed;
      std::array<std::byte, 16> bitmap;
      const size_t bytes = window.selective(bitmap);
      for (uint32_t i = 0; i < 63; ++i) {
        const bool bit =
            i / 8 < bytes && (std::to_integer<unsigned>(bitmap[i / 8]) >> (i % 8) & 1U) != 0;
        ASSERT_EQ(bit, arrived.contains(window.next() + 1 + i)) << "seed " << seed;
      }
      while (random.chance(0.5) && window.front() != nullptr) {
        ASSERT_EQ(window.front()->immediate, delivered) << "seed " << seed;
        window.pop();
        arrived.erase(delivered);
        ++delivered;
      }
    }
    EXPECT_GT(delivered, 500U);
  }
}

TEST(OutDatagram, IsSplitAcrossPartsAndLosesNothing) {
  std::array<std::byte, 100> bytes{};
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(i);
  }
  // A header, nothing, and a payload that ends in the middle of a segment.
  std::array<iovec, 3> parts{{{bytes.data(), 24}, {bytes.data() + 24, 0}, {bytes.data() + 24, 76}}};
  OutDatagram datagram;
  datagram.parts = parts.data();
  datagram.part_count = parts.size();
  datagram.segment_bytes = 32;
  std::vector<size_t> lengths;
  std::vector<std::byte> joined;
  split_datagram(datagram, [&](const std::vector<std::byte>& piece) {
    lengths.push_back(piece.size());
    joined.insert(joined.end(), piece.begin(), piece.end());
  });
  EXPECT_EQ(lengths, (std::vector<size_t>{32, 32, 32, 4}));
  EXPECT_TRUE(std::equal(joined.begin(), joined.end(), bytes.begin(), bytes.end()));
}

TEST(FaultPlan, ParsesAndRefuses) {
  auto plan = parse_fault_plan("drop=0.01,dup=0.5,reorder=1,ack_loss=0,seed=9");
  ASSERT_TRUE(plan);
  EXPECT_DOUBLE_EQ(plan->drop, 0.01);
  EXPECT_DOUBLE_EQ(plan->duplicate, 0.5);
  EXPECT_EQ(plan->seed, 9U);
  EXPECT_TRUE(plan->active());
  EXPECT_FALSE(parse_fault_plan("")->active());
  for (const char* bad : {"drop", "drop=", "drop=2", "drop=-1", "drop=nan", "lose=0.1", "seed=x",
                          "drop=0.1;dup=0.1"}) {
    auto result = parse_fault_plan(bad);
    ASSERT_FALSE(result) << bad;
    EXPECT_NE(result.error().what.find("HA_NCCL_DGRAM_FAULTS"), std::string::npos);
  }
}

}  // namespace
}  // namespace nccl_ha::fabric
