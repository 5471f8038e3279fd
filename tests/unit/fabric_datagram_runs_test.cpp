// Runs of equal segments, which the kernel cuts: a path's turn ends with a whole one.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "runtime/engine/timer_wheel.h"
#include "runtime/fabric/datagram/datagram_path.h"
#include "runtime/fabric/datagram/port.h"
#include "runtime/fabric/packet_io.h"
#include "tests/rig/sim/secrets.h"
#include "tests/support/memory_network.h"

namespace nccl_ha::fabric {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// Keeps how many segments each run on the data channel has.
class RunIo final : public PacketIo {
 public:
  RunIo(std::unique_ptr<PacketIo> inner, std::vector<size_t>* runs)
      : inner_(std::move(inner)), runs_(runs) {}
  size_t send(Channel channel, std::span<OutDatagram> out) override {
    for (const OutDatagram& one : out) {
      size_t bytes = 0;
      for (size_t i = 0; i < one.part_count; ++i) {
        bytes += one.parts[i].iov_len;
      }
      const size_t segment = one.segment_bytes == 0 ? bytes : one.segment_bytes;
      if (channel == Channel::data && !one.probe) {
        runs_->push_back((bytes + segment - 1) / segment);
      }
    }
    return inner_->send(channel, out);
  }
  size_t receive(Channel channel, PacketSink& sink, size_t limit) override {
    return inner_->receive(channel, sink, limit);
  }
  SocketAddress local(Channel channel) const override { return inner_->local(channel); }
  size_t receive_buffer_bytes() const override { return 8 << 20; }
  bool segmentation_offload() const override { return true; }
  int wait_fd(Channel) const override { return -1; }

 private:
  std::unique_ptr<PacketIo> inner_;
  std::vector<size_t>* runs_;
};

struct RunEnd final : PathOwner {
  RunEnd(std::unique_ptr<PacketIo> io, Clock& clock, uint64_t seed)
      : secrets(seed),
        port(std::make_unique<RunIo>(std::move(io), &runs), DatagramOptions{},
             DatagramPort::Environment{&memory, &clock, &timers, &secrets, nullptr}, 1500),
        path(std::move(*port.create_path({}, this))) {}
  void on_completion(const Completion&) override { ++completions; }
  void on_path_state(Path&, PathState, const Error&) override {}
  void on_fence_stuck(Path&, const Error&) override {}

  Memory memory;
  TimerWheel timers{Instant(seconds(1))};
  sim::SimSecrets secrets;
  std::vector<size_t> runs;
  unsigned completions = 0;
  DatagramPort port;
  std::unique_ptr<Path> path;
};

class DatagramRuns : public testing::Test {
 protected:
  DatagramRuns() {
    clock_.set(Instant(seconds(1)));
    network_.set_time(clock_.now());
    a_ = std::make_unique<RunEnd>(network_.open(), clock_, 1);
    b_ = std::make_unique<RunEnd>(network_.open(), clock_, 2);
    EXPECT_TRUE(a_->path->connect(b_->path->local_address()));
    EXPECT_TRUE(b_->path->connect(a_->path->local_address()));
    pass(milliseconds(50));
    EXPECT_EQ(a_->path->state(), PathState::ready);
  }
  void pass(Duration time) {
    for (const Instant end = clock_.now() + time; clock_.now() < end;) {
      clock_.advance(microseconds(2));
      network_.set_time(clock_.now());
      for (RunEnd* one : {a_.get(), b_.get()}) {
        static_cast<void>(one->port.poll(clock_));
        static_cast<void>(one->timers.expire(clock_.now()));
      }
    }
  }
  void write(std::vector<std::byte>& from, std::vector<std::byte>& to) {
    const auto local = a_->memory.add(0, from.data(), from.size());
    const auto remote = b_->memory.add(0, to.data(), to.size());
    ASSERT_TRUE(local && remote);
    WritePost post;
    post.gather_count = 1;
    post.gathers[0] = {from.data(), static_cast<uint32_t>(from.size()), *local};
    post.remote_address = reinterpret_cast<uint64_t>(to.data());
    post.remote_key = *remote;
    ASSERT_EQ(a_->path->post_write(post), Errc::ok);
  }

  ManualClock clock_;
  test::MemoryNetwork network_{1};
  std::unique_ptr<RunEnd> a_;
  std::unique_ptr<RunEnd> b_;
};

TEST_F(DatagramRuns, ATurnEndsWithAWholeRun) {
  std::vector<std::byte> from(700000, std::byte{7});
  std::vector<std::byte> to(from.size());
  for (unsigned i = 1; i <= 4; ++i) {  // the congestion window opens
    write(from, to);
    pass(milliseconds(20));
    ASSERT_EQ(a_->completions, i);
  }
  a_->runs.clear();
  write(from, to);
  pass(milliseconds(20));
  ASSERT_EQ(a_->completions, 5U);
  EXPECT_EQ(to, from);
  ASSERT_GT(a_->runs.size(), 4U);
  const size_t whole = a_->runs.front();
  EXPECT_GT(whole, 40U);
  // But for the last one, which is as long as what is left.
  for (size_t i = 0; i + 1 < a_->runs.size(); ++i) {
    EXPECT_EQ(a_->runs[i], whole) << i;
  }
}

}  // namespace
}  // namespace nccl_ha::fabric
