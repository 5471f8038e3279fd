// A host whose ports are all taken, in a network of the test's own.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <fstream>

#include "runtime/streams/listening.h"
#include "runtime/streams/uv_streams.h"
#include "tests/support/own_network.h"
#include "tests/support/until.h"

namespace nccl_ha {
namespace {

sockaddr_in loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

/// Of a stream that has to fail: why it did.
class Ending final : public StreamOwner {
 public:
  void on_stream_open(Stream&) override { said_ = "it opened"; }
  void on_stream_data(Stream&, std::span<const std::byte>) override {}
  void on_stream_closed(Stream&, const Error& error) override { said_ = error.message(); }
  std::string of_connecting(const sockaddr_in* from) {
    auto streams = make_uv_streams(std::chrono::seconds(1));
    const sockaddr_in to = loopback(9);
    auto stream = (*streams)->connect_tcp(reinterpret_cast<const sockaddr*>(&to),
                                          reinterpret_cast<const sockaddr*>(from), this);
    if (!stream) {
      return stream.error().message();
    }
    EXPECT_TRUE(test::until([&] {
      (*streams)->turn();
      return !said_.empty();
    }));
    return said_;
  }

 private:
  std::string said_;
};

TEST(LocalPorts, ThatAreAllTakenAreNamedWithTheirRange) {
  EXPECT_EQ(test::in_own_network([] {
              ASSERT_TRUE(test::ip("link set lo up"));
              std::ofstream("/proc/sys/net/ipv4/ip_local_port_range") << "40000 40001";
              int held[2];
              for (int i = 0; i < 2; ++i) {
                held[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
                sockaddr_in any = loopback(static_cast<uint16_t>(40000 + i));
                any.sin_addr.s_addr = 0;
                ASSERT_EQ(bind(held[i], reinterpret_cast<const sockaddr*>(&any), sizeof any), 0);
                ASSERT_EQ(listen(held[i], 1), 0);
              }
              const sockaddr_in from = loopback(0);
              const IpAddress here = *parse_address("127.0.0.1");
              const auto listening = open_listener(here, "0");
              ASSERT_FALSE(listening);
              for (const std::string& said :
                   {Ending().of_connecting(nullptr), Ending().of_connecting(&from),
                    listening.error().message()}) {
                for (const char* part :
                     {"no free TCP port", "net.ipv4.ip_local_port_range is 40000 to 40001"}) {
                  EXPECT_NE(said.find(part), std::string::npos) << said;
                }
                EXPECT_EQ(said.find("peer"), std::string::npos) << said;
                EXPECT_EQ(said.find("LISTEN_PORTS"), std::string::npos) << said;
              }
              // With a port again it is the other side that refuses.
              close(held[0]);
              EXPECT_NE(Ending().of_connecting(nullptr).find("Connection refused"),
                        std::string::npos);
              close(held[1]);
            }),
            0);
}

}  // namespace
}  // namespace nccl_ha
