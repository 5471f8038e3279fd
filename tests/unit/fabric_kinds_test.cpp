// The kinds of fabric by their numbers and names, and what a provider makes of a peer's.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include "plugin/profiler_event.h"
#include "runtime/engine/worker.h"
#include "runtime/fabric/datagram/ud_factory.h"
#include "runtime/fabric/datagram/udp_factory.h"
#include "runtime/fabric/datagram/wire.h"
#include "runtime/fabric/provider.h"
#include "runtime/fabric/verbs/rc_factory.h"
#include "runtime/streams/uv_streams.h"
#include "tests/support/path_harness.h"

namespace nccl_ha::fabric {
namespace {

NetInterface interface_named(const char* name, uint8_t last) {
  NetInterface interface;
  interface.name = name;
  interface.speed_mbps = 40;
  IpAddress address;
  address.bytes = {10, 0, 0, last};
  interface.addresses.push_back(address);
  return interface;
}

TEST(FabricKinds, NumbersAreWhatProfilersAreTold) {
  using abi::TransferFabric;
  EXPECT_EQ(static_cast<int>(datagram_kind), static_cast<int>(TransferFabric::udp));
  EXPECT_EQ(static_cast<int>(verbs::rc_kind), static_cast<int>(TransferFabric::rdma));
  EXPECT_EQ(static_cast<int>(ud_kind), static_cast<int>(TransferFabric::rdma_datagrams));
}

TEST(FabricKinds, ASettingThatNamesNoneIsRefusedWithThoseThatThereAre) {
  Config config;
  config.fabric = "carrier-pigeon";
  const auto provider = Provider::make(config, {interface_named("a", 1)}, 1);
  ASSERT_FALSE(provider);
  EXPECT_NE(provider.error().message().find(
                "HA_NCCL_FABRIC=carrier-pigeon: use auto, verbs, ud or datagram"),
            std::string::npos)
      << provider.error().message();
}

TEST(FabricKinds, DatagramsServeEveryPeerFromInterfacesInTheirOrder) {
  Config config;
  config.fabric = "datagram";
  const auto made = Provider::make(config, {interface_named("a", 1), interface_named("b", 2)}, 1);
  ASSERT_TRUE(made) << made.error().message();
  const Provider& provider = **made;
  ASSERT_EQ(provider.devices().size(), 2U);
  EXPECT_EQ(provider.devices()[1].control_interface, 1U);
  EXPECT_EQ(provider.kind_towards(0, verbs::rc_kind), datagram_kind);
  EXPECT_TRUE(provider.accepts(0, datagram_kind));
  EXPECT_FALSE(provider.accepts(0, verbs::rc_kind));
  EXPECT_FALSE(provider.memory_is_global(0));
  const Attachment at{1, datagram_kind};
  EXPECT_EQ(provider.traits(at).bandwidth, 5'000'000U);
  EXPECT_EQ(provider.places(at).size(), 2U);
  EXPECT_STREQ(provider.setting(datagram_kind), "datagram");
  EXPECT_STREQ(provider.text(FabricKind{99}), "a fabric that is not known here");
}

TEST(FabricKinds, SocketsOfDatagramsHaveTheBuffersThatAreSet) {
  for (const int64_t bytes : {65536, 100'000}) {
    Config config;
    config.fabric = "datagram";
    config.dgram_socket_bytes = bytes;
    const auto provider = Provider::make(config, {interface_named("a", 1)}, 1);
    ASSERT_TRUE(provider) << provider.error().message();
    ManualClock clock;
    Worker worker({}, config, clock, *make_uv_streams());
    sockaddr_storage loopback{};
    reinterpret_cast<sockaddr_in&>(loopback).sin_family = AF_INET;
    reinterpret_cast<sockaddr_in&>(loopback).sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    test::RecordingOwner owner;
    const auto path =
        (*provider)->create_path(worker.context(), {0, datagram_kind},
                                 reinterpret_cast<const sockaddr*>(&loopback), {}, &owner);
    ASSERT_TRUE(path) << path.error().message();
    const auto address = decode_address(path->path->local_address());
    ASSERT_TRUE(address);
    EXPECT_EQ(address->socket_bytes, 2 * bytes) << "the kernel doubles what is asked for";
  }
}

}  // namespace
}  // namespace nccl_ha::fabric
