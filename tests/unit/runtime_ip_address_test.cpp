#include <gtest/gtest.h>
#include <net/if.h>

#include "runtime/base/ip_address.h"

namespace nccl_ha {
namespace {

TEST(IpAddressText, IsReadWithAndWithoutBrackets) {
  const std::pair<const char*, const char*> good[] = {
      {"10.1.2.3", "10.1.2.3"},         {"fd00::1", "fd00::1"},    {"[fd00::1]", "fd00::1"},
      {"[2001:db8::1]", "2001:db8::1"}, {"fe80::1%lo", "fe80::1"}, {"[fe80::1%lo]", "fe80::1"},
      {"[fe80::1%7]", "fe80::1"},
  };
  for (const auto& [text, address] : good) {
    const auto read = parse_address(text);
    ASSERT_TRUE(read) << text << read.error().message();
    EXPECT_EQ(read->text(), address) << text;
  }
  EXPECT_EQ(parse_address("[fe80::1%7]")->scope_id, 7U);
  EXPECT_EQ(parse_address("fe80::1%lo")->scope_id, if_nametoindex("lo"));
  EXPECT_EQ(parse_address_range("[fd00::]/16")->prefix_len, 16);
  for (const char* bad : {"", "[]", "[10.1.2.3]", "[fd00::1", "fd00::1]", "[[fd00::1]]", "h1",
                          "10.1.2.3%lo", "fd00::1%lo", "fe80::1%", "%lo"}) {
    EXPECT_FALSE(parse_address(bad)) << bad;
  }
  EXPECT_NE(parse_address("[fe80::1%none0]").error().what.find("no interface 'none0'"),
            std::string::npos);
}

TEST(IpAddressText, APortStandsBehindTheHost) {
  const std::tuple<const char*, const char*, uint16_t> good[] = {
      {"h1:80", "h1", 80},
      {"10.0.0.1:0", "10.0.0.1", 0},
      {"[fe80::1%eth0]:123", "fe80::1%eth0", 123},
      {"[2001:db8::1]:65535", "2001:db8::1", 65535},
  };
  for (const auto& [text, host, port] : good) {
    const auto read = parse_host_port(text);
    ASSERT_TRUE(read) << text << read.error().message();
    EXPECT_EQ(read->host, host);
    EXPECT_EQ(read->port, port);
  }
  const std::pair<const char*, const char*> bad[] = {
      {"h1", "HOST:PORT"},
      {":80", "HOST:PORT"},
      {"[fd00::1]", "HOST:PORT"},
      {"[fd00::1:80", "HOST:PORT"},
      {"[fd00::1]x:80", "HOST:PORT"},
      {"h1:", "not a number from 0 to 65535"},
      {"h1:65536", "not a number from 0 to 65535"},
      {"h1:8x", "not a number from 0 to 65535"},
  };
  for (const auto& [text, reason] : bad) {
    const auto read = parse_host_port(text);
    ASSERT_FALSE(read) << text;
    EXPECT_NE(read.error().what.find(reason), std::string::npos) << read.error().what;
  }
  EXPECT_FALSE(parse_host_port("h1:65535", 65534));
}

TEST(IpAddressText, FamiliesThatNeverMeetAreNamed) {
  const IpAddress four = *parse_address("10.0.0.1");
  const IpAddress six = *parse_address("fd00::2");
  const std::vector<IpAddress> both{four, six};
  EXPECT_EQ(families_apart(std::span(&four, 1), both), "");
  EXPECT_EQ(families_apart(both, std::span(&six, 1)), "");
  EXPECT_EQ(families_apart({}, both), "");
  const std::string apart = families_apart(std::span(&four, 1), std::span(&six, 1));
  for (const char* part : {"IPv4 only (10.0.0.1)", "IPv6 only (fd00::2)", "NCCL_SOCKET_FAMILY"}) {
    EXPECT_NE(apart.find(part), std::string::npos) << apart;
  }
}

}  // namespace
}  // namespace nccl_ha
