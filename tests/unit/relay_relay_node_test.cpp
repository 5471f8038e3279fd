// A relay node over sockets of this host.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <future>
#include <string>

#include "relay/relay_node.h"
#include "runtime/engine/engine.h"
#include "tests/support/memory_hops.h"

namespace nccl_ha::relay {
namespace {

/// Of a host without neighbours.
class Nobody final : public NextHops {
 public:
  std::optional<NextHop> find(NodeId) const override { return std::nullopt; }
};

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
  Config config;
  config.use_progress_thread = true;
  config.progress_threads = 1;
  config.counters_dir = "";
  std::array<std::promise<bool>, 2> told;
  size_t next = 0;
  auto engine = Engine::start(config);
  ASSERT_TRUE(engine);
  ASSERT_TRUE((*engine)->worker(0).adopt(std::make_unique<RelayNode>(
      hops, nobody, RelayOptions{}, std::to_string(ntohs(address.sin6_port)),
      [&](bool relays) { told.at(next++).set_value(relays); })));
  EXPECT_FALSE(told[0].get_future().get());
  close(socket);
  EXPECT_TRUE(told[1].get_future().get());
}

}  // namespace
}  // namespace nccl_ha::relay
