#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "plugin/connect.h"
#include "plugin/edge.h"
#include "plugin/handle.h"
#include "runtime/base/random.h"
#include "runtime/streams/listening.h"

namespace nccl_ha::plugin {
namespace {

using fabric::NetInterface;

IpAddress ip(uint8_t a, uint8_t b, uint8_t c, uint8_t d, uint8_t prefix = 24) {
  IpAddress address;
  address.bytes = {a, b, c, d};
  address.prefix_len = prefix;
  return address;
}

NetInterface device(const char* name, std::vector<IpAddress> addresses) {
  NetInterface result;
  result.name = name;
  result.addresses = std::move(addresses);
  return result;
}

TEST(Handle, RoundTripsWithManyAddressesAndLeavesTheScratchZero) {
  Handle handle;
  handle.port = 4711;
  handle.fabric = fabric::FabricKind{1};
  handle.nonce = 99;
  for (uint8_t i = 0; i < 40; ++i) {
    handle.addresses.push_back(ip(10, 0, i, 1));
  }
  std::array<std::byte, handle_bytes> bytes;
  bytes.fill(std::byte{0xFF});
  write_handle(handle, bytes);
  const auto back = read_handle(bytes);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->port, 4711);
  EXPECT_EQ(back->nonce, 99U);
  EXPECT_GE(back->addresses.size(), 16U);
  EXPECT_EQ(back->addresses[0].text(), "10.0.0.1") << "the most important first";
  EXPECT_FALSE(back->sealed);
  handle.sealed = true;
  write_handle(handle, bytes);
  const auto sealed = read_handle(bytes);
  ASSERT_TRUE(sealed);
  EXPECT_TRUE(sealed->sealed);
  EXPECT_EQ(sealed->addresses, back->addresses);
  EXPECT_EQ(handle_scratch(bytes), 0U);
  set_handle_scratch(bytes, 77);
  EXPECT_EQ(handle_scratch(bytes), 77U);
  EXPECT_TRUE(read_handle(bytes));
}

TEST(Handle, DamagedHandlesAreRefused) {
  Handle handle;
  handle.port = 1;
  handle.fabric = fabric::FabricKind{1};
  handle.addresses = {ip(10, 0, 0, 1)};
  std::array<std::byte, handle_bytes> good;
  write_handle(handle, good);
  ASSERT_TRUE(read_handle(good));
  for (const size_t at : {0UL, 4UL, 16UL}) {
    auto bad = good;
    bad[at] = std::byte{0xEE};
    EXPECT_FALSE(read_handle(bad)) << at;
  }
  auto other = good;
  other[17] = std::byte{0};
  EXPECT_FALSE(read_handle(other)) << "no kind of fabric";
  other[17] = std::byte{0xEE};
  ASSERT_TRUE(read_handle(other)) << "whether a kind is known, the provider says";
  EXPECT_EQ(read_handle(other)->fabric, fabric::FabricKind{0xEE});
  std::array<std::byte, handle_bytes> zero{};
  EXPECT_FALSE(read_handle(zero));
}

TEST(Routes, ASharedSubnetWinsWhateverDeviceWasAskedFor) {
  // Three hosts in a triangle: here eth0 leads to A and eth1 to B; the handle is B's.
  const std::vector<NetInterface> devices{device("eth0", {ip(10, 0, 1, 1)}),
                                          device("eth1", {ip(10, 0, 2, 1)})};
  Handle handle;
  handle.port = 5;
  handle.addresses = {ip(10, 0, 3, 2, 32), ip(10, 0, 2, 2, 32)};
  const auto routes = plan_routes(devices, 0, handle);
  ASSERT_GE(routes.size(), 2U);
  EXPECT_EQ(IpAddress::from_sockaddr(reinterpret_cast<const sockaddr*>(&routes[0].to))->text(),
            "10.0.2.2");
  EXPECT_EQ(IpAddress::from_sockaddr(reinterpret_cast<const sockaddr*>(&routes[0].from))->text(),
            "10.0.2.1");
  EXPECT_EQ(IpAddress::from_sockaddr(reinterpret_cast<const sockaddr*>(&routes[1].to))->text(),
            "10.0.3.2")
      << "then what only routing can reach";
}

TEST(Routes, AHandleNamesTheAddressesOfAllDevicesThoseOfTheAskedOneFirst) {
  const std::vector<NetInterface> devices{device("eth0", {ip(10, 0, 1, 1)}),
                                          device("eth1", {ip(10, 0, 2, 1), ip(10, 0, 4, 1)}),
                                          device("eth2", {ip(10, 0, 3, 1)})};
  std::vector<std::string> named;
  for (const IpAddress& one : handle_addresses(devices, 1)) {
    named.push_back(one.text());
  }
  EXPECT_EQ(named, (std::vector<std::string>{"10.0.2.1", "10.0.4.1", "10.0.1.1", "10.0.3.1"}));
}

TEST(Routes, AnotherHostsLoopbackIsNoWay) {
  const std::vector<NetInterface> devices{device("eth0", {ip(10, 0, 1, 1)})};
  Handle handle;
  handle.port = 5;
  handle.addresses = {ip(127, 0, 0, 1, 32)};
  EXPECT_TRUE(plan_routes(devices, 0, handle).empty());
}

TEST(Listener, PortsAreTakenFromTheRangeAndRunOut) {
  const IpAddress loopback = ip(127, 0, 0, 1, 8);
  auto any = open_listener(loopback, "0");
  ASSERT_TRUE(any);
  EXPECT_NE(any->port, 0);
  const std::string port = std::to_string(any->port);
  auto taken = open_listener(loopback, port);
  ASSERT_FALSE(taken);
  EXPECT_NE(taken.error().what.find("HA_NCCL_LISTEN_PORTS=" + port), std::string::npos)
      << taken.error().what;
  close(any->fd);
  auto again = open_listener(loopback, port);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->port, any->port);
  close(again->fd);
  for (const char* bad : {"", "x", "5000-", "6000-5000", "70000", "-1", "0-10"}) {
    EXPECT_EQ(open_listener(loopback, bad).code(), Errc::invalid_argument) << bad;
  }
}

/// Of an interface that bounces, say.
TEST(Listener, AnAddressThatIsAwayForAMomentIsListenedAt) {
  const IpAddress away = ip(203, 0, 113, 9, 24);
  auto made = open_listener(away, "0");
  ASSERT_TRUE(made) << made.error().message();
  EXPECT_NE(made->port, 0);
  close(made->fd);
}

TEST(Edge, EveryErrorHasItsCode) {
  EXPECT_EQ(to_nccl(Errc::ok), abi::NcclResult::success);
  EXPECT_EQ(to_nccl(Errc::remote), abi::NcclResult::remote_error);
  EXPECT_EQ(to_nccl(Errc::timed_out), abi::NcclResult::remote_error);
  EXPECT_EQ(to_nccl(Errc::system), abi::NcclResult::system_error);
  EXPECT_EQ(to_nccl(Errc::invalid_usage), abi::NcclResult::invalid_usage);
  EXPECT_EQ(to_nccl(Errc::invalid_argument), abi::NcclResult::invalid_argument);
  EXPECT_EQ(to_nccl(Errc::internal), abi::NcclResult::internal_error);
}

TEST(Edge, ExceptionsDoNotPass) {
  const auto bad_alloc = guarded("call", []() -> abi::NcclResult { throw std::bad_alloc(); });
  EXPECT_EQ(bad_alloc, abi::NcclResult::internal_error);
  EXPECT_EQ(guarded("call", []() -> abi::NcclResult { throw 5; }), abi::NcclResult::internal_error);
}

}  // namespace
}  // namespace nccl_ha::plugin
