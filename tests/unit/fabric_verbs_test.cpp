// What of the verbs fabric needs no device: selection, addresses, names.
#include <gtest/gtest.h>

#include "runtime/base/config.h"
#include "runtime/base/random.h"
#include "runtime/fabric/verbs/device.h"
#include "runtime/fabric/verbs/options.h"
#include "runtime/fabric/verbs/route.h"
#include "runtime/fabric/verbs/wire_address.h"
#include "runtime/fabric/verbs/work_id.h"

namespace nccl_ha::fabric::verbs {
namespace {

GidEntry entry(uint32_t index, bool v2, Gid bytes) {
  GidEntry e;
  e.index = index;
  e.roce_v2 = v2;
  e.bytes = bytes;
  return e;
}

const Gid link_local{0xFE, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xFF, 0xFE, 0, 0, 1};
const Gid global6{0x20, 0x01, 0x0D, 0xB8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};

Gid mapped(uint8_t a, uint8_t b, uint8_t c, uint8_t d) {
  return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, a, b, c, d};
}

// A ConnectX's table: each address once per RoCE version.
const std::vector<GidEntry> table{entry(0, false, link_local),
                                  entry(1, true, link_local),
                                  entry(2, false, mapped(10, 0, 0, 1)),
                                  entry(3, true, mapped(10, 0, 0, 1)),
                                  entry(4, false, global6),
                                  entry(5, true, global6),
                                  entry(6, true, mapped(192, 168, 9, 4))};

TEST(Gid, ChoosesFamilyThenReachThenVersion) {
  GidPreference want;
  EXPECT_EQ(select_gid(table, want)->index, 3U);
  want.family = 6;
  EXPECT_EQ(select_gid(table, want)->index, 5U);
  want.roce_version = 1;
  EXPECT_EQ(select_gid(table, want)->index, 4U);
  const std::vector<GidEntry> mixed{entry(0, false, link_local), entry(1, true, global6),
                                    entry(2, false, mapped(10, 0, 0, 1))};
  EXPECT_EQ(select_gid(mixed, {})->index, 2U) << "as NCCL does";
}

TEST(Gid, FamilyAndVersionCanBeSet) {
  const auto chosen = [](const Config& config) {
    PortInfo port;
    port.link = LinkLayer::ethernet;
    return select_gid(table, *gid_preference(config, port))->index;
  };
  Config config;
  EXPECT_EQ(chosen(config), 3U);
  config.ib_roce_version = 1;
  EXPECT_EQ(chosen(config), 2U);
  config.ib_addr_family = "AF_INET6";
  EXPECT_EQ(chosen(config), 4U);
  config.ib_roce_version = 2;
  EXPECT_EQ(chosen(config), 5U);
  config.ib_addr_family = "IPv6";
  EXPECT_FALSE(gid_preference(config, PortInfo{}));
}

TEST(Gid, ThoseOfOtherNamespacesAreLeftOut) {
  std::vector<GidEntry> of_pods{entry(0, true, mapped(10, 0, 0, 7)),
                                entry(1, true, mapped(10, 0, 0, 8)),
                                entry(2, true, mapped(10, 0, 0, 9))};
  of_pods[0].scope = GidScope::hidden;
  of_pods[1].scope = GidScope::elsewhere;
  EXPECT_EQ(select_gid(of_pods, {})->index, 2U);
  of_pods.pop_back();
  EXPECT_EQ(select_gid(of_pods, {})->index, 1U) << "a container without interfaces of its own";
  of_pods.pop_back();
  EXPECT_FALSE(select_gid(of_pods, {}));
  GidPreference want;
  want.index = 0;
  EXPECT_EQ(select_gid(of_pods, want)->index, 0U);
}

TEST(Gid, WhatAWorkRequestCannotNameIsNotChosen) {
  const std::vector<GidEntry> far{entry(256, true, mapped(10, 0, 0, 1)), entry(255, true, global6)};
  EXPECT_EQ(select_gid(far, {})->index, 255U);
}

TEST(Gid, RangeAndIndexExclude) {
  GidPreference want;
  want.range = *parse_address_range("192.168.0.0/16");
  EXPECT_EQ(select_gid(table, want)->index, 6U);
  want.range = *parse_address_range("172.16.0.0/12");
  EXPECT_FALSE(select_gid(table, want));
  want.range.reset();
  want.index = 1;
  EXPECT_EQ(select_gid(table, want)->index, 1U);
  want.index = 99;
  EXPECT_FALSE(select_gid(table, want));
}

TEST(Gid, TakesWhatThereIs) {
  const std::vector<GidEntry> only{entry(0, false, link_local)};
  EXPECT_EQ(select_gid(only, {})->index, 0U);
  const std::vector<GidEntry> empty{entry(0, true, Gid{})};
  EXPECT_FALSE(select_gid(empty, {})) << "an empty place in the table";
  GidPreference infiniband;
  infiniband.infiniband = true;
  EXPECT_EQ(select_gid(table, infiniband)->index, 0U);
}

TEST(Gid, RangesAreChecked) {
  for (const char* bad :
       {"", "10.0.0.0/33", "10.0.0/8", "10.0.0.0/", "fe80::/129", "10.0.0.0/8x"}) {
    EXPECT_FALSE(parse_address_range(bad)) << bad;
  }
  EXPECT_EQ(parse_address_range("fe80::/10")->prefix_len, 10);
  EXPECT_EQ(parse_address_range("10.1.2.3")->prefix_len, 32);
}

TEST(Routes, OfRoceAreGlobalAndKnowNoLid) {
  PortInfo port;
  port.port = 2;
  const ibv_ah_attr route =
      route_between(port, entry(3, true, mapped(10, 0, 0, 1)), {9, mapped(10, 0, 0, 2)}, {104, 3});
  EXPECT_EQ(route.port_num, 2);
  EXPECT_EQ(route.sl, 3);
  EXPECT_EQ(route.dlid, 0);
  ASSERT_EQ(route.is_global, 1);
  EXPECT_EQ(route.grh.dgid.raw[15], 2);
  EXPECT_EQ(route.grh.sgid_index, 3);
  EXPECT_EQ(route.grh.traffic_class, 104);
  EXPECT_GT(route.grh.hop_limit, 1);
}

class InfiniBandRoutes : public testing::Test {
 protected:
  InfiniBandRoutes() { port_.link = LinkLayer::infiniband; }
  /// A subnet's number, the LID of the router that leads there, and whose GID.
  static Gid gid(uint8_t subnet, uint8_t router, uint8_t whose) {
    return {0xFE, 0x80, 0, 0, 0, router, 0, subnet, 2, 0, 0, 0xFF, 0xFE, 0, 0, whose};
  }
  ibv_ah_attr to(const Gid& peer) const { return route_between(port_, own_, {37, peer}); }

  PortInfo port_;
  GidEntry own_ = entry(1, false, gid(0, 0, 1));
};

TEST_F(InfiniBandRoutes, WithinASubnetGoByTheLidAlone) {
  const ibv_ah_attr route = to(gid(0, 0, 2));
  EXPECT_EQ(route.dlid, 37);
  EXPECT_EQ(route.is_global, 0);
  EXPECT_EQ(route_between(port_, std::nullopt, {37, {}}).is_global, 0) << "nobody has a GID";
}

TEST_F(InfiniBandRoutes, HaveTheHeaderThatTheirPortRequires) {
  port_.global_only = true;
  EXPECT_TRUE(port_.needs_gid());
  const ibv_ah_attr route = to(gid(0, 0, 2));
  EXPECT_EQ(route.dlid, 37);
  ASSERT_EQ(route.is_global, 1);
  EXPECT_EQ(route.grh.dgid.raw[15], 2);
  EXPECT_EQ(route.grh.sgid_index, 1);
}

TEST_F(InfiniBandRoutes, ToAnotherSubnetGoByTheRouterThatThePeersGidNames) {
  const ibv_ah_attr route = to(gid(7, 0x51, 2));
  EXPECT_EQ(route.dlid, 0x51);
  ASSERT_EQ(route.is_global, 1);
  EXPECT_EQ(route.grh.dgid.raw[7], 7);
  EXPECT_EQ(to(gid(7, 0, 2)).dlid, 37) << "it names none";
  EXPECT_EQ(to(gid(0, 0x51, 2)).dlid, 37) << "the same subnet";
  EXPECT_EQ(to(gid(0, 0x51, 2)).is_global, 1);
}

TEST(Hca, SpecificationsMeanWhatNcclMeans) {
  EXPECT_TRUE(hca_selected("", "mlx5_0", 1));
  EXPECT_TRUE(hca_selected("mlx5", "mlx5_10", 1));
  EXPECT_TRUE(hca_selected("mlx5_1", "mlx5_10", 1)) << "a prefix";
  EXPECT_FALSE(hca_selected("=mlx5_1", "mlx5_10", 1));
  EXPECT_TRUE(hca_selected("=mlx5_1,mlx5_10", "mlx5_10", 1));
  EXPECT_TRUE(hca_selected("mlx5_0:2", "mlx5_0", 2));
  EXPECT_FALSE(hca_selected("mlx5_0:2", "mlx5_0", 1));
  EXPECT_FALSE(hca_selected("^mlx5_0", "mlx5_0", 1));
  EXPECT_TRUE(hca_selected("^mlx5_0", "mlx5_1", 1));
  EXPECT_TRUE(hca_selected("^=mlx5_1", "mlx5_10", 1));
  EXPECT_FALSE(hca_selected("rxe,,", "mlx5_0", 1)) << "an empty name selects nothing";
}

TEST(VerbsWire, RoundTripsAndRefusesTheImpossible) {
  WireAddress address;
  address.link = LinkLayer::infiniband;
  address.queue_pair = 0xABCDEF;
  address.packet_sequence = 0x123456;
  address.lid = 77;
  address.mtu = 5;
  address.gid = global6;
  address.has_ece = true;
  address.ece_vendor = 1;
  address.ece_options = 2;
  address.ece_compatibility = 3;
  address.scratch = 0x123456789ABCDEF0;
  address.scratch_key = 0xFEDCBA98;
  std::array<std::byte, wire_address_bytes> bytes;
  encode(address, bytes);
  const auto back = decode_address(bytes);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->queue_pair, address.queue_pair);
  EXPECT_EQ(back->packet_sequence, address.packet_sequence);
  EXPECT_EQ(back->gid, address.gid);
  EXPECT_EQ(back->lid, 77);
  EXPECT_EQ(back->link, LinkLayer::infiniband);
  EXPECT_EQ(back->ece_compatibility, 3U);
  EXPECT_EQ(back->scratch, address.scratch);
  EXPECT_EQ(back->scratch_key, address.scratch_key);
  // Every bit of the checked fields, every shorter length.
  for (size_t at : {0, 1, 7, 11, 15}) {
    auto wrong = bytes;
    wrong[at] ^= std::byte{0x80};
    EXPECT_FALSE(decode_address(wrong)) << at;
  }
  for (const int mtu : {0, 6, 255}) {
    auto wrong = bytes;
    wrong[3] = static_cast<std::byte>(mtu);
    EXPECT_FALSE(decode_address(wrong));
  }
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(decode_address(std::span(bytes).first(length)));
  }
}

TEST(WorkIds, KeepTheirParts) {
  Random random(5);
  for (int i = 0; i < 1000; ++i) {
    const WorkId id{
        static_cast<uint32_t>(random.below(1U << 24)), static_cast<uint16_t>(random.next()),
        static_cast<WorkId::Lane>(random.below(3)), static_cast<uint32_t>(random.below(1U << 22))};
    const WorkId back = WorkId::unpack(id.pack());
    EXPECT_EQ(back.path, id.path);
    EXPECT_EQ(back.generation, id.generation);
    EXPECT_EQ(back.lane, id.lane);
    EXPECT_EQ(back.position, id.position);
  }
}

TEST(VerbsOptions, ForcedTimeoutWinsAndDeadlineFollows) {
  Config config;
  config.rto_ms = 80;  // the connection's affair
  EXPECT_EQ(Options::from(config).timeout, 14);
  // 2 * 4 * 67 ms * 8
  EXPECT_NEAR(std::chrono::duration<double>(Options::from(config).dead_after).count(), 4.29, 0.01);
  config.ib_timeout = 22;
  EXPECT_EQ(Options::from(config).timeout, 22);
  config.force_ib_timeout = 10;
  EXPECT_EQ(Options::from(config).timeout, 10);
  EXPECT_EQ(Options::from(config).dead_after, std::chrono::seconds(1));
  config.ib_dead_ms = 250;
  EXPECT_EQ(Options::from(config).dead_after, std::chrono::milliseconds(250));
}

TEST(PortCodes, AreThoseOfTheSpecification) {
  EXPECT_EQ(width_lanes(2) * lane_mbps(128), 400000);  // 4x NDR
  EXPECT_EQ(width_lanes(2) * lane_mbps(32), 100000);   // 4x EDR
  EXPECT_EQ(width_lanes(1) * lane_mbps(1), 2500);
  EXPECT_EQ(lane_mbps(3), 0) << "no code";
  EXPECT_EQ(rate_mbps("800 Gb/sec (4X XDR)"), 800000);
  EXPECT_EQ(rate_mbps("2.5 Gb/sec (1X SDR)"), 2500);
  EXPECT_EQ(rate_mbps("fast Gb/sec"), 0);
  EXPECT_EQ(rate_mbps(""), 0);
}

}  // namespace
}  // namespace nccl_ha::fabric::verbs
