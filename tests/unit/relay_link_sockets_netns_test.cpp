// Whom discovery hears, where interfaces come and go.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "relay/link_sockets.h"
#include "tests/support/own_network.h"

namespace nccl_ha::relay {
namespace {

using test::in_own_network;
using test::ip;

/// Whether some socket of this namespace is in discovery's group (224.0.0.254) there, as the kernel
/// tells it: a line for each interface, and below it one for each group.
bool in_group(const std::string& interface) {
  std::ifstream file("/proc/thread-self/net/igmp");
  bool here = false;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string first;
    std::string second;
    words >> first >> second;
    if (line[0] != '\t') {
      here = second == interface;
    } else if (here && first == "FE0000E0") {
      return true;
    }
  }
  return false;
}

TEST(LinkSockets, HearOverEachInterfaceHoweverManyThereWereBefore) {
  EXPECT_EQ(in_own_network([] {
              auto sockets = LinkSockets::open({.port = 0, .peers = {}}, nullptr);
              ASSERT_TRUE(sockets.ok()) << sockets.error().message();
              constexpr int more_than_a_socket_may_join = 30;
              for (int i = 0; i < more_than_a_socket_may_join; ++i) {
                const std::string name = "one" + std::to_string(i);
                ASSERT_TRUE(ip("link add " + name + " type veth peer name far"));
                fabric::NetInterface made;
                made.name = name;
                made.ifindex = static_cast<int>(if_nametoindex(name.c_str()));
                (*sockets)->use({made});
                ASSERT_TRUE(in_group(name)) << i;
                ASSERT_TRUE(ip("link del " + name));
              }
            }),
            0);
}

}  // namespace
}  // namespace nccl_ha::relay
