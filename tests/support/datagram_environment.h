// What datagram paths have of their port, without a port: nothing is received, and what is sent is
// kept.  On a manual clock.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/engine/poller.h"
#include "runtime/engine/timer_wheel.h"
#include "runtime/fabric/datagram/datagram_path.h"
#include "runtime/fabric/datagram/path_environment.h"
#include "runtime/fabric/datagram/wire.h"
#include "runtime/fabric/packet_io.h"
#include "tests/rig/sim/secrets.h"
#include "tests/support/path_harness.h"

namespace nccl_ha::test {

class KeepingIo final : public fabric::PacketIo {
 public:
  using Datagrams = std::vector<std::pair<fabric::Channel, std::vector<std::byte>>>;
  /// `full`: nothing leaves.
  KeepingIo(Datagrams& sent, const bool& full) : sent_(sent), full_(full) {}
  size_t send(fabric::Channel channel, std::span<fabric::OutDatagram> out) override {
    if (full_) {
      return 0;
    }
    for (const fabric::OutDatagram& one : out) {
      split_datagram(one, [&](const auto& bytes) { sent_.emplace_back(channel, bytes); });
    }
    return out.size();
  }
  size_t receive(fabric::Channel, fabric::PacketSink&, size_t) override { return 0; }
  fabric::SocketAddress local(fabric::Channel channel) const override {
    fabric::SocketAddress address;
    auto& ip = reinterpret_cast<sockaddr_in&>(address.storage);
    ip.sin_family = AF_INET;
    ip.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ip.sin_port = htons(static_cast<uint16_t>(1000 + static_cast<unsigned>(channel)));
    address.length = sizeof(sockaddr_in);
    return address;
  }
  size_t receive_buffer_bytes() const override { return 1 << 20; }
  bool segmentation_offload() const override { return false; }
  int wait_fd(fabric::Channel) const override { return -1; }

 private:
  Datagrams& sent_;
  const bool& full_;
};

struct DatagramEnvironment {
  explicit DatagramEnvironment(const fabric::DatagramOptions& options = {})
      : env({&memory, &clock, &timers, &secrets}, options, std::make_unique<KeepingIo>(sent, full),
            1500, poller) {
    advance(std::chrono::seconds(1));
  }
  void advance(Duration by) {
    clock.advance(by);
    env.refresh();
  }
  std::unique_ptr<fabric::DatagramPath> make_path(const fabric::PathOptions& options = {}) {
    return std::make_unique<fabric::DatagramPath>(env, options, &owner,
                                                  env.paths.next_id(secrets).value());
  }

  class Idler final : public Poller {
   public:
    std::string name() const override { return "idler"; }
    unsigned poll(Clock&) override { return 0; }
  };
  ManualClock clock;
  fabric::Memory memory;
  TimerWheel timers{Instant{}};
  sim::SimSecrets secrets{1};
  Idler poller;
  RecordingOwner owner;
  KeepingIo::Datagrams sent;
  bool full = false;
  fabric::PathEnvironment env;
};

}  // namespace nccl_ha::test
