// UDP ports at which parts of a test meet.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <fstream>
#include <random>

namespace nccl_ha::test {

/// Binds an IPv4 socket where nobody is, at any of this host's addresses, below what the kernel
/// gives to whoever connects: a port that is given back is nobody's whose test runs meanwhile.
inline uint16_t bind_to_meet(int fd) {
  int given_from = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> given_from;
  EXPECT_GT(given_from, 2048);
  std::random_device random;
  std::uniform_int_distribution<int> any(given_from / 2, given_from - 1);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  do {
    at.sin_port = htons(static_cast<uint16_t>(any(random)));
  } while (bind(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0 && errno == EADDRINUSE);
  return ntohs(at.sin_port);
}

}  // namespace nccl_ha::test
