// Standard statistics over generic netlink: replies as the kernel lays them out, and the kernel
// itself.
#include <gtest/gtest.h>
#include <linux/ethtool_netlink.h>
#include <netlink/attr.h>
#include <netlink/genl/genl.h>
#include <netlink/msg.h>

#include <cstring>
#include <memory>
#include <vector>

#include "tools/agent/ethtool_netlink.h"

namespace nccl_ha::tools {
namespace {

/// A reply under construction.
class Reply {
 public:
  explicit Reply(uint8_t command) : message_(nlmsg_alloc()) {
    genlmsg_put(message_, 1, 1, 20, 0, 0, command, ETHTOOL_GENL_VERSION);
  }
  ~Reply() { nlmsg_free(message_); }
  Reply(const Reply&) = delete;
  Reply& operator=(const Reply&) = delete;

  nl_msg* get() { return message_; }
  const nlmsghdr& header() { return *nlmsg_hdr(message_); }
  Reply& pauses(uint64_t out, uint64_t in) {
    nlattr* nest = nla_nest_start(message_, ETHTOOL_A_PAUSE_STATS);
    nla_put_u64(message_, ETHTOOL_A_PAUSE_STAT_TX_FRAMES, out);
    nla_put_u64(message_, ETHTOOL_A_PAUSE_STAT_RX_FRAMES, in);
    nla_nest_end(message_, nest);
    return *this;
  }
  Reply& group(uint32_t id, const std::vector<std::pair<int, uint64_t>>& values) {
    nlattr* nest = nla_nest_start(message_, ETHTOOL_A_STATS_GRP);
    nla_put_u32(message_, ETHTOOL_A_STATS_GRP_ID, id);
    for (const auto& [name, value] : values) {
      nlattr* one = nla_nest_start(message_, ETHTOOL_A_STATS_GRP_STAT);
      nla_put_u64(message_, name, value);
      nla_nest_end(message_, one);
    }
    nla_nest_end(message_, nest);
    return *this;
  }

 private:
  nl_msg* const message_;
};

TEST(EthtoolNetlink, PauseFramesAreRead) {
  StandardStatistics statistics;
  Reply reply(ETHTOOL_MSG_PAUSE_GET_REPLY);
  ASSERT_TRUE(read_statistics_reply(reply.pauses(7, 9).header(), statistics));
  EXPECT_EQ(statistics.pauses_out, 7U);
  EXPECT_EQ(statistics.pauses_in, 9U);
  EXPECT_FALSE(statistics.lost_in || statistics.lost_out);
}

TEST(EthtoolNetlink, ADriverWithoutStatisticsTellsNothing) {
  StandardStatistics statistics;
  Reply pauses(ETHTOOL_MSG_PAUSE_GET_REPLY);
  EXPECT_TRUE(read_statistics_reply(pauses.header(), statistics));
  Reply mac(ETHTOOL_MSG_STATS_GET_REPLY);
  EXPECT_TRUE(read_statistics_reply(mac.group(ETHTOOL_STATS_ETH_MAC, {}).header(), statistics));
  EXPECT_TRUE(statistics.empty());
}

TEST(EthtoolNetlink, OnlyTheGroupThatIsMeantCounts) {
  StandardStatistics statistics;
  Reply reply(ETHTOOL_MSG_STATS_GET_REPLY);
  reply.group(ETHTOOL_STATS_RMON, {{ETHTOOL_A_STATS_ETH_MAC_12_TX_INT_ERR, 100}});
  reply.group(ETHTOOL_STATS_ETH_MAC, {{ETHTOOL_A_STATS_ETH_MAC_8_TX_BYTES, 5000},
                                      {ETHTOOL_A_STATS_ETH_MAC_12_TX_INT_ERR, 3},
                                      {ETHTOOL_A_STATS_ETH_MAC_15_RX_INT_ERR, 4}});
  ASSERT_TRUE(read_statistics_reply(reply.header(), statistics));
  EXPECT_EQ(statistics.lost_out, 3U);
  EXPECT_EQ(statistics.lost_in, 4U);
}

TEST(EthtoolNetlink, OtherRepliesAndOddLengthsAreNone) {
  StandardStatistics statistics;
  Reply other(ETHTOOL_MSG_RINGS_GET_REPLY);
  EXPECT_FALSE(read_statistics_reply(other.pauses(1, 1).header(), statistics));
  Reply narrow(ETHTOOL_MSG_PAUSE_GET_REPLY);
  nlattr* nest = nla_nest_start(narrow.get(), ETHTOOL_A_PAUSE_STATS);
  nla_put_u32(narrow.get(), ETHTOOL_A_PAUSE_STAT_TX_FRAMES, 1);
  nla_nest_end(narrow.get(), nest);
  EXPECT_TRUE(read_statistics_reply(narrow.header(), statistics));
  EXPECT_TRUE(statistics.empty());

  // Each length that a reply could be cut to, in memory of just that size.
  Reply whole(ETHTOOL_MSG_PAUSE_GET_REPLY);
  whole.pauses(7, 9);
  const uint32_t length = whole.header().nlmsg_len;
  for (uint32_t cut = sizeof(nlmsghdr); cut < length; ++cut) {
    std::vector<uint32_t> bytes((cut + 3) / 4);
    std::memcpy(bytes.data(), &whole.header(), cut);
    reinterpret_cast<nlmsghdr*>(bytes.data())->nlmsg_len = cut;
    StandardStatistics none;
    static_cast<void>(
        read_statistics_reply(*reinterpret_cast<const nlmsghdr*>(bytes.data()), none));
    EXPECT_FALSE(none.pauses_in) << cut;
  }
}

TEST(EthtoolNetlink, TheLargerCountHolds) {
  StandardStatistics statistics{.pauses_out = 5, .pauses_in = 5, .lost_out = 2, .lost_in = 1};
  ha::NicReading reading;
  reading.pauses_out = 9;
  reading.discards = 1;
  statistics.add_to(reading);
  EXPECT_EQ(reading.pauses_out, 9U);
  EXPECT_EQ(reading.pauses_in, 5U);
  EXPECT_EQ(reading.discards, 3U);
}

TEST(EthtoolNetlink, TheKernelAnswers) {
  auto netlink = EthtoolNetlink::open();
  ASSERT_TRUE(netlink) << netlink.error().message();
  // Each answer is read whole, so that the next question gets its own.
  for (int round = 0; round < 3; ++round) {
    const auto missing = (*netlink)->statistics("nha-none");
    ASSERT_FALSE(missing);
    EXPECT_NE(missing.error().what.find("nha-none"), std::string::npos);
    const auto loopback = (*netlink)->statistics("lo");
    ASSERT_TRUE(loopback) << loopback.error().message();
    EXPECT_FALSE(loopback->pauses_in) << "a loopback device sends no pause frames";
  }
}

}  // namespace
}  // namespace nccl_ha::tools
