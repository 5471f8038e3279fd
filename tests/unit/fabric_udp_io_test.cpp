#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <vector>

#include "runtime/fabric/datagram/udp_io.h"

namespace nccl_ha::fabric {
namespace {

/// Keeps what is received.
class Basket final : public PacketSink {
 public:
  Placement place(std::span<const std::byte>, size_t, size_t) override { return {}; }
  void placed(size_t) override {}
  void packet(std::span<const std::byte> datagram) override { bytes.push_back(datagram.size()); }
  std::vector<size_t> bytes;
};

std::unique_ptr<UdpIo> open_io() {
  UdpIo::Options options;
  auto* address = reinterpret_cast<sockaddr_in*>(&options.bind.storage);
  address->sin_family = AF_INET;
  address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  options.bind.length = sizeof(sockaddr_in);
  auto opened = UdpIo::open(options);
  EXPECT_TRUE(opened);
  return std::move(*opened);
}

TEST(UdpIo, OneLookTellsWhichChannelHasSomething) {
  const auto from = open_io();
  const auto to = open_io();
  std::vector<std::byte> payload(100, std::byte{5});
  iovec part{payload.data(), payload.size()};
  for (const Channel channel : {Channel::command, Channel::data}) {
    const auto at = static_cast<size_t>(channel);
    EXPECT_EQ(to->waiting(), (PacketIo::Channels{false, false}));
    const SocketAddress address = to->local(channel);
    OutDatagram datagram{};
    datagram.to = &address;
    datagram.parts = &part;
    datagram.part_count = 1;
    ASSERT_EQ(from->send(channel, {&datagram, 1}), 1U);
    PacketIo::Channels expected{false, false};
    expected[at] = true;
    EXPECT_EQ(to->waiting(), expected);
    EXPECT_EQ(to->waiting(), expected) << "it was not fetched yet";
    Basket basket;
    EXPECT_EQ(to->receive(channel, basket, 1), 1U);
    EXPECT_EQ(basket.bytes, std::vector<size_t>{100});
  }
  EXPECT_EQ(to->waiting(), (PacketIo::Channels{false, false}));
}

}  // namespace
}  // namespace nccl_ha::fabric
