#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "runtime/fabric/datagram/frame_seal.h"
#include "runtime/fabric/datagram/port.h"
#include "tests/support/datagram_environment.h"
#include "tests/support/memory_network.h"
#include "tests/support/path_harness.h"

namespace nccl_ha::fabric {
namespace {

WireAddress end_of(uint32_t path, uint64_t token) {
  WireAddress address;
  address.path = path;
  address.token = Secret::heard(token);
  return address;
}

SharedKey shared_of(uint8_t fill, bool encrypts = false) {
  SharedKey shared;
  shared.key.fill(std::byte{fill});
  shared.encrypts = encrypts;
  return shared;
}

const WireAddress this_end = end_of(1, 0x1111);
const WireAddress that_end = end_of(2, 0x2222);

std::vector<std::byte> a_frame(size_t payload) {
  FrameHeader header;
  header.type = FrameType::put;
  header.flags = flag_sealed | flag_last;
  header.payload_length = static_cast<uint16_t>(payload);
  header.fragment_length = static_cast<uint32_t>(payload);
  std::vector<std::byte> frame(header.frame_bytes());
  encode(header, frame.data());
  for (size_t i = 0; i < payload; ++i) {
    frame[header_bytes + i] = static_cast<std::byte>(i + 1);
  }
  return frame;
}

std::vector<std::byte> payload_in(const std::vector<std::byte>& frame) {
  return {frame.begin() + header_bytes, frame.end() - seal_bytes};
}

std::optional<std::vector<std::byte>> opened(FrameSeal& seal, std::span<const std::byte> frame) {
  std::vector<std::byte> room(frame.size());
  const auto payload = seal.open(frame, room);
  return payload ? std::optional(std::vector(payload->begin(), payload->end())) : std::nullopt;
}

TEST(FrameSeal, WhatThePeerSealedOpensInPiecesOrInOne) {
  for (const bool encrypts : {false, true}) {
    FrameSeal sender(shared_of(1, encrypts), this_end, that_end);
    FrameSeal receiver(shared_of(1, encrypts), that_end, this_end);
    for (const size_t payload : {0U, 1U, 128U, 1408U, 8832U}) {
      auto frame = a_frame(payload);
      const auto plain = payload_in(frame);
      sender.close(frame);
      EXPECT_EQ(payload < 16 || payload_in(frame) != plain, payload < 16 || encrypts);
      EXPECT_EQ(opened(receiver, frame), plain);
      if (!encrypts) {
        frame = a_frame(payload);
        const size_t half = header_bytes + payload / 2;
        const std::array<iovec, 2> parts{
            iovec{frame.data(), half},
            iovec{frame.data() + half, frame.size() - half - seal_bytes}};
        sender.close(parts, std::span(frame).last<seal_bytes>());
        EXPECT_EQ(opened(receiver, frame), plain);
      }
    }
  }
}

TEST(FrameSeal, NoBitOfAFrameChanges) {
  for (const bool encrypts : {false, true}) {
    FrameSeal sender(shared_of(1, encrypts), this_end, that_end);
    FrameSeal receiver(shared_of(1, encrypts), that_end, this_end);
    auto frame = a_frame(40);
    sender.close(frame);
    for (size_t i = 0; i < frame.size(); ++i) {
      auto changed = frame;
      changed[i] ^= std::byte{0x80};
      EXPECT_FALSE(opened(receiver, changed)) << "byte " << i;
    }
    EXPECT_TRUE(opened(receiver, frame)) << "what was forged does not take its place";
  }
}

TEST(FrameSeal, OfAnotherKeyPathDirectionOrTimeItIsNoUse) {
  FrameSeal sender(shared_of(1), this_end, that_end);
  auto frame = a_frame(40);
  sender.close(frame);
  for (auto receiver :
       {FrameSeal(shared_of(2), that_end, this_end), FrameSeal(shared_of(1), this_end, that_end),
        FrameSeal(shared_of(1), end_of(3, 0x2222), this_end),
        FrameSeal(shared_of(1), end_of(2, 0x2223), this_end),
        FrameSeal(shared_of(1), that_end, end_of(1, 0x1112))}) {
    EXPECT_FALSE(opened(receiver, frame));
  }
}

TEST(FrameSeal, EachCountsOnceAlsoWhereTheyOvertakeEachOther) {
  FrameSeal sender(shared_of(1), this_end, that_end);
  FrameSeal receiver(shared_of(1), that_end, this_end);
  std::vector<std::vector<std::byte>> frames;
  for (size_t i = 0; i < 3 * FrameSeal::numbers; ++i) {
    frames.push_back(a_frame(0));
    sender.close(frames.back());
  }
  // The newest of the first half, then those that it overtook, backwards.
  for (size_t i = FrameSeal::numbers; i-- != 0;) {
    EXPECT_TRUE(opened(receiver, frames[i])) << i;
  }
  for (size_t i = 0; i < FrameSeal::numbers; ++i) {
    EXPECT_FALSE(opened(receiver, frames[i])) << i;
  }
  EXPECT_TRUE(opened(receiver, frames.back()));
  EXPECT_FALSE(opened(receiver, frames[FrameSeal::numbers])) << "too old to tell";
  EXPECT_TRUE(opened(receiver, frames[2 * FrameSeal::numbers])) << "just not";
  EXPECT_FALSE(opened(receiver, frames.back()));
}

/// Two ports of a network between which somebody sees every packet.
class SealedPaths : public testing::TestWithParam<bool> {
 protected:
  static constexpr size_t bytes = 200'000;

  SealedPaths() {
    clock_.set(Instant(std::chrono::seconds(1)));
    network_.set_time(clock_.now());
    for (size_t i = 0; i < 2; ++i) {
      auto io = network_.open();
      command_port_[i] = io->local(Channel::command).port();
      data_port_[i] = io->local(Channel::data).port();
      ports_[i] = std::make_unique<DatagramPort>(
          std::move(io), DatagramOptions{},
          DatagramPort::Environment{&memory_, &clock_, &timers_, &secrets_, nullptr}, 1500);
      PathOptions options;
      options.domain = i + 1;
      options.shared = shared_of(9, GetParam());
      paths_[i] = std::move(*ports_[i]->create_path(options, &owners_[i]));
    }
    network_.faults.pass = [this](Channel channel, std::span<const std::byte> packet) {
      seen_.emplace_back(channel, std::vector(packet.begin(), packet.end()));
      return true;
    };
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(paths_[i]->connect(paths_[1 - i]->local_address()));
    }
    EXPECT_TRUE(until([&] {
      return paths_[0]->state() == PathState::ready && paths_[1]->state() == PathState::ready;
    }));
    for (size_t i = 0; i < bytes; ++i) {
      from_[i] = static_cast<std::byte>(i * 31 + i / 251);
    }
    from_key_ = *memory_.add(1, from_.data(), bytes);
    to_key_ = *memory_.add(2, to_.data(), bytes);
  }
  ~SealedPaths() override {
    for (auto& path : paths_) {
      path.reset();
    }
  }
  bool until(const std::function<bool()>& done) {
    for (int i = 0; i < 200'000 && !done(); ++i) {
      for (auto& port : ports_) {
        static_cast<void>(port->poll(clock_));
      }
      static_cast<void>(timers_.expire(clock_.now()));
      clock_.advance(std::chrono::microseconds(10));
      network_.set_time(clock_.now());
    }
    return done();
  }
  void begin_write() {
    WritePost post;
    post.id = 1;
    post.gathers[0] = {from_.data(), static_cast<uint32_t>(bytes), from_key_};
    post.gather_count = 1;
    post.remote_address = reinterpret_cast<uint64_t>(to_.data());
    post.remote_key = to_key_;
    ASSERT_EQ(paths_[0]->post_write(post), Errc::ok);
  }
  void inject_everywhere(const std::vector<std::byte>& packet) {
    for (size_t i = 0; i < 2; ++i) {
      network_.inject(command_port_[i], packet);
      network_.inject(data_port_[i], packet);
    }
  }
  uint64_t forged() const {
    return ports_[0]->statistics().forged + ports_[1]->statistics().forged;
  }

  ManualClock clock_;
  Memory memory_;
  TimerWheel timers_{Instant(std::chrono::seconds(1))};
  sim::SimSecrets secrets_{5};
  test::MemoryNetwork network_{1};
  std::array<uint16_t, 2> command_port_{};
  std::array<uint16_t, 2> data_port_{};
  std::array<std::unique_ptr<DatagramPort>, 2> ports_;
  std::array<test::RecordingOwner, 2> owners_;
  std::array<std::unique_ptr<Path>, 2> paths_;
  std::vector<std::byte> from_ = std::vector<std::byte>(bytes);
  std::vector<std::byte> to_ = std::vector<std::byte>(bytes);
  uint32_t from_key_ = 0;
  uint32_t to_key_ = 0;
  std::vector<std::pair<Channel, std::vector<std::byte>>> seen_;
};

TEST_P(SealedPaths, CarryWhatIsWrittenAndShowItOnlyWhereItIsNotEncrypted) {
  begin_write();
  ASSERT_TRUE(until([&] { return !owners_[0].completions.empty(); }));
  EXPECT_EQ(owners_[0].completions.front().status, CompletionStatus::ok);
  EXPECT_EQ(to_, from_);
  EXPECT_EQ(forged(), 0U);
  const auto needle = std::span(from_).first(256);
  const bool shown = std::ranges::any_of(
      seen_, [&](const auto& one) { return !std::ranges::search(one.second, needle).empty(); });
  EXPECT_EQ(shown, !GetParam());
}

/// Who sees a packet knows path and token, and can make every frame: writes to other places,
/// acknowledgements of what did not arrive, refusals.
TEST_P(SealedPaths, AHostOnTheWayThatForgesFramesDoesNothingButCount) {
  begin_write();
  ASSERT_TRUE(until([&] { return seen_.size() > 20; }));
  uint64_t made = 0;
  const auto all = seen_;
  for (const auto& [channel, packet] : all) {
    const auto header = decode(packet, packet.size());
    ASSERT_TRUE(header);
    for (const FrameType type : {FrameType::put, FrameType::ack, FrameType::probe, FrameType::ping,
                                 FrameType::pong, FrameType::refuse}) {
      for (const bool sealed : {false, true}) {
        FrameHeader own = *header;
        own.type = type;
        own.flags = static_cast<uint8_t>(flag_last | flag_ack | (sealed ? flag_sealed : 0));
        own.sequence += 3;
        own.acknowledge = own.sequence + 100;
        own.credits = 1000;
        own.payload_length = 128;
        own.fragment_length = 128;
        own.fragment_offset = 0;
        own.key = to_key_;
        own.address = reinterpret_cast<uint64_t>(to_.data()) + 64;
        std::vector<std::byte> forged_frame(own.frame_bytes(), std::byte{0xEE});
        encode(own, forged_frame.data());
        inject_everywhere(forged_frame);
        ++made;
      }
    }
    inject_everywhere(packet);  // as it was
  }
  ASSERT_TRUE(until([&] { return !owners_[0].completions.empty(); }));
  EXPECT_EQ(owners_[0].completions.front().status, CompletionStatus::ok);
  EXPECT_EQ(to_, from_);
  EXPECT_GE(forged(), made);
  EXPECT_EQ(paths_[0]->state(), PathState::ready);
  EXPECT_EQ(paths_[1]->state(), PathState::ready);
}

INSTANTIATE_TEST_SUITE_P(Either, SealedPaths, testing::Bool(),
                         [](const auto& one) { return one.param ? "encrypted" : "clear"; });

}  // namespace
}  // namespace nccl_ha::fabric
