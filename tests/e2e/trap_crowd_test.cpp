// Crowds of unknown peers: many on the TCP port at once, and noise on the UDP ports while data
// flows. (trap_hostile_test.cpp has them one by one.)
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <sstream>
#include <thread>

#include "runtime/fabric/datagram/wire.h"
#include "tests/support/plugin_fixture.h"

namespace nccl_ha::test {
namespace {

class Crowd : public PluginFixture {
 protected:
  /// Listens, lets `knock` act on the port, then connects the real peer and moves data.
  void real_peer_still_gets_in(const std::function<void(uint16_t port)>& knock) {
    tools::NetHandle handle{};
    auto listening = api().listen(0, handle);
    ASSERT_TRUE(listening);
    knock(handle_port(handle));
    Connection c;
    ASSERT_TRUE(until([&] {
      if (c.send == nullptr) {
        auto got = api().connect(0, handle);
        EXPECT_TRUE(got);
        c.send = got ? *got : nullptr;
      }
      if (c.recv == nullptr) {
        auto got = api().accept(*listening);
        EXPECT_TRUE(got) << "an unknown peer must not fail the listener";
        c.recv = got ? *got : nullptr;
      }
      return HasFailure() || (c.send != nullptr && c.recv != nullptr);
    }));
    open_.push_back(c);
    exchange(c, 70000, 5);
    EXPECT_TRUE(api().close_listen(*listening));
  }
};

TEST_P(Crowd, TheRealPeerGetsInBesideManyWhoStay) {
  std::vector<int> newcomers;
  real_peer_still_gets_in([&](uint16_t port) {
    for (int i = 0; i < 40; ++i) {
      const int fd = connect_tcp(port);
      ASSERT_GE(fd, 0);
      if (i % 2 == 0) {
        const std::array<char, 3> words{'n', 'o', 'p'};
        ASSERT_EQ(send(fd, words.data(), words.size(), MSG_NOSIGNAL), 3);
      }
      newcomers.push_back(fd);
    }
  });
  for (const int fd : newcomers) {
    close(fd);
  }
}

TEST_P(Crowd, APortScanThatHangsUpAtOnceChangesNothing) {
  real_peer_still_gets_in([&](uint16_t port) {
    for (int i = 0; i < 100; ++i) {
      const int fd = connect_tcp(port);
      ASSERT_GE(fd, 0);
      const linger reset{1, 0};
      setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
      close(fd);
    }
  });
}

TEST_P(Crowd, NoiseOnTheDataPortsTouchesNothing) {
  Connection c = open_connection();
  exchange(c, 1000, 1);
  const std::set<uint16_t> ports = own_udp_ports();
  ASSERT_FALSE(ports.empty()) << "no data port found: the test would prove nothing";
  std::atomic<bool> stop{false};
  std::atomic<size_t> sent{0};
  std::thread noise([&] {
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    std::mt19937_64 random(11);
    std::array<std::byte, 1400> packet;
    for (uint32_t round = 0; !stop.load(); ++round) {
      for (std::byte& byte : packet) {
        byte = static_cast<std::byte>(random());
      }
      size_t length = random() % packet.size();
      if (round % 2 == 0) {
        // A frame that is well-formed in everything but the token, for small path numbers.
        fabric::FrameHeader header;
        header.type = static_cast<fabric::FrameType>(1 + random() % 7);
        header.path = static_cast<uint32_t>(random() % 4);
        header.token = random();
        header.sequence = static_cast<uint32_t>(random());
        header.acknowledge = static_cast<uint32_t>(random());
        header.flags = static_cast<uint8_t>(random() % 32);
        header.payload_length = 100;
        header.fragment_length = 100;
        header.address = random();
        encode(header, packet.data());
        length = fabric::header_bytes + 100;
      }
      for (const uint16_t port : ports) {
        sockaddr_in to{};
        to.sin_family = AF_INET;
        to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        to.sin_port = htons(port);
        if (sendto(fd, packet.data(), length, 0, reinterpret_cast<sockaddr*>(&to), sizeof to) >=
            0) {
          sent.fetch_add(1);
        }
      }
      sched_yield();
    }
    close(fd);
  });
  for (int i = 0; i < 100 || sent.load() < 2000; ++i) {
    exchange(c, 30000, static_cast<unsigned char>(i));
    if (HasFailure()) {
      break;
    }
  }
  stop.store(true);
  noise.join();
  EXPECT_GE(sent.load(), 2000U);
}

INSTANTIATE_TEST_SUITE_P(Abi, Crowd, ::testing::Combine(::testing::Values(12), ::testing::Bool()),
                         instance_name);

}  // namespace
}  // namespace nccl_ha::test
