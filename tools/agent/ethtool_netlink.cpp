#include "tools/agent/ethtool_netlink.h"

#include <fmt/format.h>
#include <linux/ethtool_netlink.h>
#include <netlink/attr.h>
#include <netlink/genl/ctrl.h>
#include <netlink/genl/genl.h>
#include <netlink/netlink.h>

#include <algorithm>
#include <cerrno>

namespace nccl_ha::tools {
namespace {

std::optional<uint64_t> number_of(const nlattr* attribute) {
  if (attribute == nullptr || nla_len(attribute) != sizeof(uint64_t)) {
    return std::nullopt;
  }
  return nla_get_u64(attribute);
}

bool read_pauses(nlattr* head, int length, StandardStatistics& statistics) {
  nlattr* all[ETHTOOL_A_PAUSE_MAX + 1];
  if (nla_parse(all, ETHTOOL_A_PAUSE_MAX, head, length, nullptr) != 0) {
    return false;
  }
  if (all[ETHTOOL_A_PAUSE_STATS] == nullptr) {
    return true;
  }
  nlattr* counts[ETHTOOL_A_PAUSE_STAT_MAX + 1];
  if (nla_parse_nested(counts, ETHTOOL_A_PAUSE_STAT_MAX, all[ETHTOOL_A_PAUSE_STATS], nullptr) !=
      0) {
    return false;
  }
  statistics.pauses_out = number_of(counts[ETHTOOL_A_PAUSE_STAT_TX_FRAMES]);
  statistics.pauses_in = number_of(counts[ETHTOOL_A_PAUSE_STAT_RX_FRAMES]);
  return true;
}

/// A group holds a nest per statistic, each with the attribute that its number names.
bool read_group(nlattr* group, StandardStatistics& statistics) {
  nlattr* parts[ETHTOOL_A_STATS_GRP_MAX + 1];
  if (nla_parse_nested(parts, ETHTOOL_A_STATS_GRP_MAX, group, nullptr) != 0) {
    return false;
  }
  const nlattr* id = parts[ETHTOOL_A_STATS_GRP_ID];
  if (id == nullptr || nla_len(id) != sizeof(uint32_t) ||
      nla_get_u32(id) != ETHTOOL_STATS_ETH_MAC) {
    return true;
  }
  nlattr* part = nullptr;
  int left = 0;
  nla_for_each_nested(part, group, left) {
    if (nla_type(part) != ETHTOOL_A_STATS_GRP_STAT) {
      continue;
    }
    nlattr* one[ETHTOOL_A_STATS_ETH_MAC_MAX + 1];
    if (nla_parse_nested(one, ETHTOOL_A_STATS_ETH_MAC_MAX, part, nullptr) != 0) {
      return false;
    }
    if (const auto lost = number_of(one[ETHTOOL_A_STATS_ETH_MAC_12_TX_INT_ERR])) {
      statistics.lost_out = lost;
    }
    if (const auto lost = number_of(one[ETHTOOL_A_STATS_ETH_MAC_15_RX_INT_ERR])) {
      statistics.lost_in = lost;
    }
  }
  return true;
}

int on_message(nl_msg* message, void* statistics) {
  read_statistics_reply(*nlmsg_hdr(message), *static_cast<StandardStatistics*>(statistics));
  return NL_OK;
}

bool put_request(nl_msg* message, const std::string& interface, uint8_t command) {
  const bool pauses = command == ETHTOOL_MSG_PAUSE_GET;
  nlattr* header =
      nla_nest_start(message, pauses ? int{ETHTOOL_A_PAUSE_HEADER} : int{ETHTOOL_A_STATS_HEADER});
  const uint32_t flags = pauses ? ETHTOOL_FLAG_STATS : 0;
  if (header == nullptr ||
      nla_put_string(message, ETHTOOL_A_HEADER_DEV_NAME, interface.c_str()) != 0 ||
      nla_put_u32(message, ETHTOOL_A_HEADER_FLAGS, flags) != 0) {
    return false;
  }
  nla_nest_end(message, header);
  if (pauses) {
    return true;
  }
  nlattr* groups = nla_nest_start(message, ETHTOOL_A_STATS_GROUPS);
  constexpr uint32_t wanted = 1U << ETHTOOL_STATS_ETH_MAC;
  if (groups == nullptr || nla_put_flag(message, ETHTOOL_A_BITSET_NOMASK) != 0 ||
      nla_put_u32(message, ETHTOOL_A_BITSET_SIZE, ETHTOOL_STATS_ETH_MAC + 1) != 0 ||
      nla_put(message, ETHTOOL_A_BITSET_VALUE, sizeof wanted, &wanted) != 0) {
    return false;
  }
  nla_nest_end(message, groups);
  return true;
}

}  // namespace

void StandardStatistics::add_to(ha::NicReading& reading) const {
  reading.pauses_out = std::max(reading.pauses_out, pauses_out.value_or(0));
  reading.pauses_in = std::max(reading.pauses_in, pauses_in.value_or(0));
  reading.discards = std::max(reading.discards, lost_out.value_or(0) + lost_in.value_or(0));
}

bool read_statistics_reply(const nlmsghdr& message, StandardStatistics& statistics) {
  auto* header = const_cast<nlmsghdr*>(&message);  // libnl does not write to it
  if (!genlmsg_valid_hdr(header, 0)) {
    return false;
  }
  auto* what = genlmsg_hdr(header);
  nlattr* head = genlmsg_attrdata(what, 0);
  const int length = genlmsg_attrlen(what, 0);
  if (what->cmd == ETHTOOL_MSG_PAUSE_GET_REPLY) {
    return read_pauses(head, length, statistics);
  }
  if (what->cmd != ETHTOOL_MSG_STATS_GET_REPLY) {
    return false;
  }
  nlattr* part = nullptr;
  int left = 0;
  bool right = true;
  nla_for_each_attr(part, head, length, left) {
    right = right && (nla_type(part) != ETHTOOL_A_STATS_GRP || read_group(part, statistics));
  }
  return right;
}

Result<std::unique_ptr<EthtoolNetlink>> EthtoolNetlink::open() {
  nl_sock* socket = nl_socket_alloc();
  if (socket == nullptr) {
    return fail(Errc::system, "no memory for a netlink socket", ENOMEM);
  }
  int status = genl_connect(socket);
  const int family = status == 0 ? genl_ctrl_resolve(socket, ETHTOOL_GENL_NAME) : status;
  if (family < 0) {
    nl_socket_free(socket);
    return fail(Errc::system, fmt::format("the kernel cannot be asked for ethtool's statistics: {}",
                                          nl_geterror(family)));
  }
  return std::unique_ptr<EthtoolNetlink>(new EthtoolNetlink(socket, family));
}

EthtoolNetlink::~EthtoolNetlink() { nl_socket_free(socket_); }

Result<void> EthtoolNetlink::ask(const std::string& interface, uint8_t command,
                                 StandardStatistics& statistics) {
  const std::unique_ptr<nl_msg, decltype(&nlmsg_free)> request(nlmsg_alloc(), nlmsg_free);
  if (!request ||
      genlmsg_put(request.get(), NL_AUTO_PORT, NL_AUTO_SEQ, family_, 0, 0, command,
                  ETHTOOL_GENL_VERSION) == nullptr ||
      !put_request(request.get(), interface, command)) {
    return fail(Errc::system, "a request does not fit into a netlink message", ENOMEM);
  }
  nl_socket_modify_cb(socket_, NL_CB_VALID, NL_CB_CUSTOM, on_message, &statistics);
  int status = nl_send_auto(socket_, request.get());
  // The kernel answers within the call: a reply and an acknowledgement, or an error alone.
  status = status < 0 ? status : nl_recvmsgs_default(socket_);
  status = status < 0 ? status : nl_wait_for_ack(socket_);
  if (status < 0 && status != -NLE_OPNOTSUPP) {
    return fail(Errc::system, fmt::format("{}: no statistics from the kernel: {}", interface,
                                          nl_geterror(status)));
  }
  return {};
}

Result<StandardStatistics> EthtoolNetlink::statistics(const std::string& interface) {
  StandardStatistics statistics;
  for (const uint8_t command : {ETHTOOL_MSG_PAUSE_GET, ETHTOOL_MSG_STATS_GET}) {
    if (const auto asked = ask(interface, command, statistics); !asked) {
      return asked.error();
    }
  }
  return statistics;
}

}  // namespace nccl_ha::tools
