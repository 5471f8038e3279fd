// Datagram paths on a port: how often one that only stands by is looked at, and what becomes of
// what is lost.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/base/config.h"
#include "runtime/engine/timer_wheel.h"
#include "runtime/fabric/datagram/datagram_path.h"
#include "runtime/fabric/datagram/port.h"
#include "runtime/fabric/datagram/wire.h"
#include "runtime/fabric/packet_io.h"
#include "tests/rig/sim/secrets.h"
#include "tests/support/memory_network.h"

namespace nccl_ha::fabric {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// Counts how often somebody looks whether something came.
class QuietIo final : public PacketIo {
 public:
  QuietIo(unsigned* looks, const int* wakes) : looks_(looks), wakes_(wakes) {}
  size_t send(Channel, std::span<OutDatagram> out) override { return out.size(); }
  size_t receive(Channel channel, PacketSink&, size_t) override {
    *looks_ += channel == Channel::command ? 1 : 0;
    return 0;
  }
  SocketAddress local(Channel) const override { return {}; }
  size_t receive_buffer_bytes() const override { return 65536; }
  bool segmentation_offload() const override { return false; }
  int wait_fd(Channel) const override { return *wakes_; }

 private:
  unsigned* looks_;
  const int* wakes_;
};

class BackedOffPort : public testing::Test, private PathOwner {
 protected:
  BackedOffPort() {
    clock_.set(Instant(seconds(1)));
    port_.emplace(std::make_unique<QuietIo>(&looks_, &wakes_), DatagramOptions{},
                  DatagramPort::Environment{&memory_, &clock_, &timers_, &secrets_, nullptr}, 1500);
  }
  std::unique_ptr<Path> make(bool fallback) {
    PathOptions options;
    options.fallback = fallback;
    return std::move(*port_->create_path(options, this));
  }
  unsigned looks_in(unsigned passes, Duration each) {
    looks_ = 0;
    for (unsigned i = 0; i < passes; ++i) {
      clock_.advance(each);
      static_cast<void>(port_->poll(clock_));
    }
    return looks_;
  }
  void on_completion(const Completion&) override {}
  void on_path_state(Path&, PathState, const Error&) override {}
  void on_fence_stuck(Path&, const Error&) override {}

  unsigned looks_ = 0;
  int wakes_ = 7;
  ManualClock clock_;
  Memory memory_;
  TimerWheel timers_{Instant(seconds(1))};
  sim::SimSecrets secrets_{1};
  std::optional<DatagramPort> port_;
};

// As when an RDMA device is gone.
TEST_F(BackedOffPort, WhoSleepsHearsThatNothingCanWakeAnyMore) {
  std::array<int, 4> fds{};
  EXPECT_TRUE(port_->prepare_sleep());
  EXPECT_EQ(port_->wait_fds(fds), 2U);
  EXPECT_FALSE(port_->take_waits_changed());
  wakes_ = -1;
  EXPECT_TRUE(port_->prepare_sleep());
  EXPECT_EQ(port_->wait_fds(fds), 0U);
  EXPECT_TRUE(port_->take_waits_changed());
  EXPECT_TRUE(port_->prepare_sleep());
  EXPECT_FALSE(port_->take_waits_changed()) << "once";
}

TEST_F(BackedOffPort, APathInUseIsLookedAtWithEachPass) {
  auto used = make(false);
  auto other = make(true);
  EXPECT_EQ(looks_in(1000, microseconds(1)), 1000U);
  EXPECT_EQ(port_->max_poll_gap(), milliseconds(2));
}

TEST_F(BackedOffPort, OneThatOnlyStandsByIsLookedAtNowAndThen) {
  auto path = make(true);
  static_cast<void>(looks_in(10, milliseconds(1)));
  const unsigned looks = looks_in(100000, Duration(100));  // 10 ms
  EXPECT_GE(looks, 8U);
  EXPECT_LE(looks, 11U);
  EXPECT_EQ(port_->max_poll_gap(), milliseconds(10));
}

TEST_F(BackedOffPort, SlowPassesDoNotDelayItForLong) {
  auto path = make(true);
  static_cast<void>(looks_in(10, milliseconds(1)));
  EXPECT_GE(looks_in(640, milliseconds(1)), 10U);
}

TEST_F(BackedOffPort, WhoWakesLooksFirst) {
  auto path = make(true);
  static_cast<void>(looks_in(10, milliseconds(1)));
  EXPECT_EQ(looks_in(2, Duration(100)), 0U);
  EXPECT_TRUE(port_->prepare_sleep());
  EXPECT_EQ(looks_in(1, Duration(100)), 1U);
}

TEST_F(BackedOffPort, APathThatComesIntoUseEndsIt) {
  auto path = make(true);
  static_cast<void>(looks_in(10, milliseconds(1)));
  EXPECT_EQ(looks_in(2, Duration(100)), 0U);
  auto used = make(false);
  EXPECT_EQ(looks_in(2, Duration(100)), 2U);
  used.reset();
  static_cast<void>(looks_in(10, milliseconds(1)));
  EXPECT_EQ(looks_in(2, Duration(100)), 0U);
}

/// Counts how often packets are looked for.
class CountingIo final : public PacketIo {
 public:
  CountingIo(std::unique_ptr<PacketIo> inner, unsigned* looks)
      : inner_(std::move(inner)), looks_(looks) {}
  size_t send(Channel channel, std::span<OutDatagram> out) override {
    return inner_->send(channel, out);
  }
  size_t receive(Channel channel, PacketSink& sink, size_t limit) override {
    *looks_ += channel == Channel::command ? 1 : 0;
    return inner_->receive(channel, sink, limit);
  }
  SocketAddress local(Channel channel) const override { return inner_->local(channel); }
  size_t receive_buffer_bytes() const override { return inner_->receive_buffer_bytes(); }
  bool segmentation_offload() const override { return false; }
  int wait_fd(Channel) const override { return -1; }

 private:
  std::unique_ptr<PacketIo> inner_;
  unsigned* looks_;
};

/// One end of two that only stand by.
struct StandbyEnd final : PathOwner {
  StandbyEnd(std::unique_ptr<PacketIo> io, Clock& clock, uint64_t seed,
             const DatagramOptions& settings)
      : secrets(seed),
        port(std::make_unique<CountingIo>(std::move(io), &looks), settings,
             DatagramPort::Environment{&memory, &clock, &timers, &secrets, nullptr}, 1500) {
    PathOptions options;
    options.fallback = true;
    path = std::move(*port.create_path(options, this));
  }
  void on_completion(const Completion&) override { ++completions; }
  void on_path_state(Path&, PathState, const Error&) override {}
  void on_fence_stuck(Path&, const Error&) override {}

  Memory memory;
  TimerWheel timers{Instant(seconds(1))};
  sim::SimSecrets secrets;
  unsigned looks = 0;
  unsigned completions = 0;
  DatagramPort port;
  std::unique_ptr<Path> path;
};

class BackedOffPortPair : public testing::Test {
 protected:
  explicit BackedOffPortPair(const DatagramOptions& settings = {}) {
    clock_.set(Instant(seconds(1)));
    network_.set_time(clock_.now());
    a_ = std::make_unique<StandbyEnd>(network_.open(), clock_, 1, settings);
    b_ = std::make_unique<StandbyEnd>(network_.open(), clock_, 2, settings);
    EXPECT_TRUE(a_->path->connect(b_->path->local_address()));
    EXPECT_TRUE(b_->path->connect(a_->path->local_address()));
    pass(milliseconds(50));
    EXPECT_EQ(a_->path->state(), PathState::ready);
    EXPECT_EQ(b_->path->post_receive(), Errc::ok);
  }
  void TearDown() override {
    for (const StandbyEnd* one : {a_.get(), b_.get()}) {
      const auto wrong = static_cast<const DatagramPath&>(*one->path).self_check();
      EXPECT_FALSE(wrong) << *wrong;
    }
  }
  /// Polls every two microseconds, as a caller that spins does.
  void pass(Duration time) {
    a_->looks = b_->looks = 0;
    for (const Instant end = clock_.now() + time; clock_.now() < end;) {
      clock_.advance(microseconds(2));
      network_.set_time(clock_.now());
      for (StandbyEnd* one : {a_.get(), b_.get()}) {
        static_cast<void>(one->port.poll(clock_));
        static_cast<void>(one->timers.expire(clock_.now()));
      }
    }
  }
  Errc write(std::span<std::byte> from, std::span<std::byte> to) {
    WritePost post;
    post.has_immediate = true;
    if (!from.empty()) {
      const auto local = a_->memory.add(0, from.data(), from.size());
      const auto remote = b_->memory.add(0, to.data(), to.size());
      EXPECT_TRUE(local && remote);
      post.gather_count = 1;
      post.gathers[0] = {from.data(), static_cast<uint32_t>(from.size()), *local};
      post.remote_address = reinterpret_cast<uint64_t>(to.data());
      post.remote_key = *remote;
    }
    return a_->path->post_write(post);
  }

  ManualClock clock_;
  test::MemoryNetwork network_{1};
  std::unique_ptr<StandbyEnd> a_;
  std::unique_ptr<StandbyEnd> b_;
};

TEST_F(BackedOffPortPair, AHeartbeatKeepsNobodyAwake) {
  ASSERT_EQ(write({}, {}), Errc::ok);
  pass(milliseconds(20));
  EXPECT_EQ(a_->completions, 1U);
  EXPECT_EQ(b_->completions, 1U);
  // Each looks once a millisecond, and the other end answers as soon as it does.
  for (const StandbyEnd* one : {a_.get(), b_.get()}) {
    EXPECT_LE(one->looks, 24U);
    EXPECT_GE(one->looks, 19U);
  }
}

TEST_F(BackedOffPortPair, PayloadMakesBothLookWithEachPass) {
  std::vector<std::byte> from(64, std::byte{7});
  std::vector<std::byte> to(64);
  ASSERT_EQ(write(from, to), Errc::ok);
  pass(milliseconds(2));
  EXPECT_EQ(a_->completions, 1U);
  EXPECT_EQ(to, from);
  // More may follow for a millisecond, which is 500 passes.
  EXPECT_GT(a_->looks, 400U);
  EXPECT_GT(b_->looks, 400U);
  pass(milliseconds(20));
  EXPECT_LE(a_->looks + b_->looks, 300U) << "they never back off again";
}

/// A port whose settings say how much one of its passes sends.
class PassLimits : public BackedOffPortPair, public testing::WithParamInterface<int64_t> {
 protected:
  PassLimits() : BackedOffPortPair(settings()) {}
  uint64_t sent() const {
    const auto& counters = static_cast<const DatagramPath&>(*a_->path).statistics();
    return resends_ ? counters.segments_resent.get() : counters.segments_sent.get();
  }
  uint64_t most_in_a_pass(Duration time) {
    uint64_t most = 0;
    for (const Instant end = clock_.now() + time; clock_.now() < end;) {
      const uint64_t before = sent();
      pass(microseconds(2));
      most = std::max(most, sent() - before);
    }
    return most;
  }
  bool resends_ = false;
  std::vector<std::byte> from_ = std::vector<std::byte>(400'000, std::byte{7});
  std::vector<std::byte> to_ = std::vector<std::byte>(400'000);

 private:
  static DatagramOptions settings() {
    Config config;
    config.dgram_credits = config.dgram_resend_batch = GetParam();
    return DatagramOptions::from(config);
  }
};
INSTANTIATE_TEST_SUITE_P(Settings, PassLimits, testing::Values(2, 8));

TEST_P(PassLimits, SegmentsOfAPathThatOnePassSends) {
  ASSERT_EQ(write(from_, to_), Errc::ok);
  EXPECT_EQ(most_in_a_pass(milliseconds(20)), GetParam());
  EXPECT_EQ(to_, from_);
}

TEST_P(PassLimits, RetransmissionsThatOnePassSends) {
  ASSERT_EQ(write(from_, to_), Errc::ok);
  pass(milliseconds(20));  // its window grows
  ASSERT_EQ(to_, from_);
  network_.faults.pass = [](Channel, std::span<const std::byte> bytes) {
    const auto header = decode(bytes, bytes.size());
    return !header || header->type != FrameType::put;
  };
  resends_ = true;
  ASSERT_EQ(write(from_, to_), Errc::ok);
  EXPECT_EQ(most_in_a_pass(milliseconds(60)), GetParam());
}

/// Two paths of one port to another, over one of which nothing gets through.
class DeadBesideLive : public BackedOffPortPair {
 protected:
  DeadBesideLive() : BackedOffPortPair(one_at_a_time()) {
    for (size_t i = 0; i < 2; ++i) {
      from_[i] = std::move(*a_->port.create_path({}, a_.get()));
      to_[i] = std::move(*b_->port.create_path({}, b_.get()));
      EXPECT_TRUE(from_[i]->connect(to_[i]->local_address()));
      EXPECT_TRUE(to_[i]->connect(from_[i]->local_address()));
    }
    pass(milliseconds(50));
    const auto local = a_->memory.add(0, bytes_.data(), bytes_.size());
    const auto remote = b_->memory.add(0, there_.data(), there_.size());
    EXPECT_TRUE(local && remote);
    post_.gather_count = 1;
    post_.gathers[0] = {bytes_.data(), static_cast<uint32_t>(bytes_.size()), *local};
    post_.remote_address = reinterpret_cast<uint64_t>(there_.data());
    post_.remote_key = *remote;
    network_.faults.pass = [this](Channel, std::span<const std::byte> bytes) {
      const auto header = decode(bytes, bytes.size());
      const bool dead = header && header->path == static_cast<DatagramPath&>(*to_[0]).id();
      const bool first = header && header->path == static_cast<DatagramPath&>(*to_[1]).id() &&
                         header->type == FrameType::put && std::exchange(drops_first_, false);
      return !dead && !first;
    };
  }
  const DatagramPathCounters& live() const {
    return static_cast<const DatagramPath&>(*from_[1]).statistics();
  }
  bool drops_first_ = true;  ///< of the live one
  WritePost post_;
  std::array<std::unique_ptr<Path>, 2> from_;
  std::array<std::unique_ptr<Path>, 2> to_;

 private:
  static DatagramOptions one_at_a_time() {
    DatagramOptions options;
    options.resend_batch = 1;
    return options;
  }
  std::vector<std::byte> bytes_ = std::vector<std::byte>(20'000);
  std::vector<std::byte> there_ = std::vector<std::byte>(20'000);
};

/// Whoever slept would wake by a timeout only, up to 200 ms later.
TEST_F(DeadBesideLive, NobodySleepsOnASegmentThatWaitsBehindThoseOfADeadPeer) {
  ASSERT_EQ(from_[0]->post_write(post_), Errc::ok);
  pass(milliseconds(30));
  const auto& dead = static_cast<const DatagramPath&>(*from_[0]).statistics();
  ASSERT_GT(dead.timeouts.get(), 8U) << "all that may be under way";
  ASSERT_TRUE(a_->port.prepare_sleep()) << "they wait";
  post_.gathers[0].length = 11'000;  // all of it leaves at once
  ASSERT_EQ(from_[1]->post_write(post_), Errc::ok);
  for (int i = 0; i < 1000 && live().fast_retransmits.get() == 0; ++i) {
    pass(microseconds(2));
  }
  ASSERT_EQ(live().fast_retransmits.get(), 1U);
  ASSERT_FALSE(drops_first_);
  for (int i = 0; i < 100 && live().segments_resent.get() == 0; ++i) {
    ASSERT_FALSE(a_->port.prepare_sleep()) << "after " << i << " passes";
    pass(microseconds(2));
  }
  EXPECT_EQ(live().segments_resent.get(), 1U);
  pass(milliseconds(2));
  EXPECT_EQ(live().segments_acked.get(), live().segments_sent.get());
}

const DatagramPathCounters& statistics_of(const StandbyEnd& end) {
  return static_cast<const DatagramPath&>(*end.path).statistics();
}

TEST_F(BackedOffPortPair, ASegmentThatIsLostGoesAgainWhenLaterOnesAreSelectivelyAcknowledged) {
  unsigned puts = 0;
  network_.faults.pass = [&](Channel, std::span<const std::byte> bytes) {
    const auto header = decode(bytes, bytes.size());
    return !header || header->type != FrameType::put || ++puts != 3;
  };
  std::vector<std::byte> from(100000, std::byte{7});
  std::vector<std::byte> to(from.size());
  ASSERT_EQ(write(from, to), Errc::ok);
  pass(milliseconds(5));
  EXPECT_GT(puts, 10U);
  EXPECT_EQ(network_.counts.dropped, 1U);
  EXPECT_EQ(a_->completions, 1U);
  EXPECT_EQ(to, from);
  EXPECT_EQ(statistics_of(*a_).timeouts, 0U);
}

TEST_F(BackedOffPortPair, ASegmentThatComesTwiceIsAcknowledgedAgain) {
  // Probes, which ask for the same, are lost as well.
  unsigned lost = 0;
  network_.faults.pass = [&](Channel, std::span<const std::byte> bytes) {
    const auto header = decode(bytes, bytes.size());
    const bool drops = header && (header->type == FrameType::probe ||
                                  (header->type == FrameType::ack && lost == 0));
    lost += drops ? 1 : 0;
    return !drops;
  };
  std::vector<std::byte> from(64, std::byte{7});
  std::vector<std::byte> to(from.size());
  ASSERT_EQ(write(from, to), Errc::ok);
  pass(milliseconds(200));
  EXPECT_GT(lost, 0U);
  EXPECT_EQ(b_->completions, 1U);
  EXPECT_GT(statistics_of(*b_).duplicates, 0U);
  EXPECT_EQ(a_->completions, 1U);
  EXPECT_EQ(a_->path->state(), PathState::ready);
}

// What says that there is room again is sent once.
TEST_F(BackedOffPortPair, AnAcknowledgementThatComesOnceMoreLaterIsNoRoundTrip) {
  std::vector<std::byte> late;
  bool losing = false;
  unsigned lost = 0;
  network_.faults.pass = [&](Channel, std::span<const std::byte> bytes) {
    const auto header = decode(bytes, bytes.size());
    if (header && header->type == FrameType::ack && (header->flags & flag_echo) != 0) {
      late.assign(bytes.begin(), bytes.end());
    }
    const bool drops = std::exchange(losing, false);
    lost += drops ? 1 : 0;
    return !drops;
  };
  ASSERT_EQ(write({}, {}), Errc::ok);
  pass(milliseconds(5));
  ASSERT_FALSE(late.empty()) << "no acknowledgement with an echo";
  pass(milliseconds(200));
  const uint64_t heard = statistics_of(*a_).acks_received;
  network_.inject(1000, late);
  pass(milliseconds(1));
  ASSERT_EQ(statistics_of(*a_).acks_received, heard + 1);
  ASSERT_EQ(b_->path->post_receive(), Errc::ok);
  losing = true;
  ASSERT_EQ(write({}, {}), Errc::ok);
  pass(milliseconds(20));
  EXPECT_EQ(lost, 1U);
  EXPECT_EQ(b_->completions, 2U) << "it waits as for a way of 200 ms";
}

TEST_F(BackedOffPortPair, CreditsThatWereLostWhileNothingWasUnderWayAreAskedFor) {
  const uint32_t window = DatagramOptions{}.window;
  // The first one meets a receive, all others wait.
  for (unsigned posted = 0, passes = 0; posted <= window && passes < 1000; ++passes) {
    while (posted <= window && write({}, {}) == Errc::ok) {
      ++posted;
    }
    pass(milliseconds(1));
  }
  pass(milliseconds(20));
  ASSERT_EQ(a_->completions, window + 1) << "all were acknowledged";
  ASSERT_EQ(b_->completions, 1U);
  uint64_t lost = 0;
  network_.faults.pass = [&](Channel, std::span<const std::byte>) {
    ++lost;
    return false;
  };
  for (unsigned i = 0; i < 64; ++i) {
    ASSERT_EQ(b_->path->post_receive(), Errc::ok);
  }
  pass(milliseconds(20));
  ASSERT_EQ(b_->completions, 65U);
  ASSERT_EQ(lost, 1U) << "the news of credits";
  network_.faults.pass = nullptr;
  ASSERT_EQ(write({}, {}), Errc::ok);
  pass(milliseconds(200));
  EXPECT_EQ(a_->completions, window + 2);
  EXPECT_EQ(a_->path->state(), PathState::ready);
}

/// A receiver that has posted less than its window holds: what it has no receive for takes the
/// sender's credits.
class FullWindow : public BackedOffPortPair {
 protected:
  static constexpr unsigned window = 16;
  FullWindow() : BackedOffPortPair(settings()) {}
  static DatagramOptions settings() {
    DatagramOptions made;
    made.window = window;
    return made;
  }
  void write_signs(unsigned count) {
    for (unsigned i = 0; i < count; ++i) {
      ASSERT_EQ(write({}, {}), Errc::ok);
    }
    pass(milliseconds(5));
  }
  void post_receives(unsigned count) {
    for (unsigned i = 0; i < count; ++i) {
      ASSERT_EQ(b_->path->post_receive(), Errc::ok);
    }
    pass(milliseconds(5));
  }
};

TEST_F(FullWindow, CreditsOfWhichTheNewsIsLostAreAskedFor) {
  bool losing = false;
  unsigned lost = 0;
  network_.faults.pass = [&](Channel, std::span<const std::byte> bytes) {
    const auto header = decode(bytes, bytes.size());
    const bool drops = losing && header && header->type == FrameType::ack;
    lost += drops ? 1 : 0;
    return !drops;
  };
  write_signs(window + 2);  // the first one has its receive, the last one no credit
  ASSERT_EQ(a_->completions, window + 1);
  losing = true;
  post_receives(window + 1);
  EXPECT_GT(lost, 0U);
  ASSERT_EQ(a_->completions, window + 1);
  losing = false;
  pass(milliseconds(100));
  EXPECT_EQ(a_->completions, window + 2);
  EXPECT_EQ(b_->completions, window + 2);
}

TEST_F(FullWindow, AnAcknowledgementThatComesLateTakesNoCreditsBack) {
  std::vector<std::byte> late;
  unsigned probes = 0;
  network_.faults.pass = [&](Channel, std::span<const std::byte> bytes) {
    const auto header = decode(bytes, bytes.size());
    if (header && header->type == FrameType::ack && header->credits == 0) {
      late.assign(bytes.begin(), bytes.end());
    }
    probes += header && header->type == FrameType::probe ? 1 : 0;
    return true;
  };
  write_signs(window + 1);
  ASSERT_FALSE(late.empty()) << "no acknowledgement without credits";
  post_receives(window + 1);
  const uint64_t heard = statistics_of(*a_).acks_received;
  network_.inject(1000, late);
  pass(milliseconds(5));
  ASSERT_EQ(statistics_of(*a_).acks_received, heard + 1);
  write_signs(1);
  EXPECT_EQ(b_->completions, window + 2);
  EXPECT_EQ(probes, 0U) << "it had to ask";
}

}  // namespace
}  // namespace nccl_ha::fabric
