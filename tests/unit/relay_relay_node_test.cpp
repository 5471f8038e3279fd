// A relay node over sockets of this host.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <future>
#include <string>
#include <variant>
#include <vector>

#include "relay/relay_node.h"
#include "runtime/engine/engine.h"
#include "tests/support/memory_hops.h"
#include "tests/support/sim_pair.h"

namespace nccl_ha::relay {
namespace {

/// Of a host without neighbours.
class Nobody final : public NextHops {
 public:
  std::optional<NextHop> find(NodeId) const override { return std::nullopt; }
  bool is_at(NodeId, const IpAddress&) const override { return false; }
};

Config one_thread() {
  Config config;
  config.use_progress_thread = true;
  config.progress_threads = 1;
  config.counters_dir = "";
  return config;
}

TEST(RelayNode, RelaysForNobodyUntilItCanListen) {
  const int socket = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  ASSERT_EQ(bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(socket, 1), 0);
  socklen_t length = sizeof address;
  ASSERT_EQ(getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length), 0);

  test::MemoryHops hops;
  Nobody nobody;
  std::array<std::promise<bool>, 2> told;
  size_t next = 0;
  auto engine = Engine::start(one_thread());
  ASSERT_TRUE(engine);
  ASSERT_TRUE((*engine)->worker(0).adopt(std::make_unique<RelayNode>(
      hops, nobody, RelayOptions{}, std::to_string(ntohs(address.sin6_port)),
      [&](bool relays) { told.at(next++).set_value(relays); })));
  EXPECT_FALSE(told[0].get_future().get());
  close(socket);
  EXPECT_TRUE(told[1].get_future().get());
}

TEST(RelayNode, TellsANeighbourOfAnotherVersionWhy) {
  test::MemoryHops hops;
  Nobody nobody;
  const test::ErrorsOnly quiet;
  std::promise<bool> listens;
  auto engine = Engine::start(one_thread());
  ASSERT_TRUE(engine);
  auto node = std::make_unique<RelayNode>(hops, nobody, RelayOptions{}, "0",
                                          [&](bool relays) { listens.set_value(relays); });
  const RelayNode& told = *node;
  ASSERT_TRUE((*engine)->worker(0).adopt(std::move(node)));
  ASSERT_TRUE(listens.get_future().get());

  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const timeval limit{.tv_sec = 10, .tv_usec = 0};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(told.port());
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  auto ping = encode(SessionMessage(SessionPing{}));
  ping[4] = std::byte{session_version - 1};
  ASSERT_EQ(send(socket, ping.data(), ping.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(ping.size()));
  std::vector<std::byte> answer(session_message_max);
  size_t got = 0;
  for (ssize_t more = 1; more > 0; got += static_cast<size_t>(std::max<ssize_t>(more, 0))) {
    more = recv(socket, answer.data() + got, answer.size() - got, 0);
  }
  close(socket);
  answer.resize(got);
  const auto message = decode_session_message(answer);
  ASSERT_TRUE(message) << message.error().message();
  ASSERT_TRUE(std::holds_alternative<SetupRefusal>(*message));
  EXPECT_NE(std::get<SetupRefusal>(*message).text.find("speaks version"), std::string::npos);
}

}  // namespace
}  // namespace nccl_ha::relay
