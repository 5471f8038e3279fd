#include "runtime/fabric/links.h"

#include <linux/if_addr.h>
#include <linux/if_link.h>
#include <net/if.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string_view>

namespace nccl_ha::fabric {
namespace {

/// Deeper than any stack of links; the kernel's own limit is 8 (MAX_NEST_DEV).
constexpr unsigned depth_max = 16;

/// Kinds whose frames leave by one lower link, as the kernel's drivers call themselves.
constexpr std::array<std::string_view, 8> stacked = {"vlan",   "macvlan", "macvtap", "ipvlan",
                                                     "ipvtap", "macsec",  "ipoib",   "hsr"};
/// Kinds whose frames leave by their ports.
constexpr std::string_view open_switch = "openvswitch";
constexpr std::array<std::string_view, 4> joined = {"bond", "team", "bridge", open_switch};
constexpr std::array<std::string_view, 2> pairs = {"veth", "netkit"};
/// They carry addresses, but no frames of them.
constexpr std::array<std::string_view, 5> hollow = {"dummy", "ifb", "nlmon", "vrf", "vcan"};

template <size_t size>
bool is_one_of(const std::array<std::string_view, size>& kinds, std::string_view kind) {
  return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}

/// Of a master: its ports' packets are its own.  A VRF's are not.
bool takes_packets(const Link& master) { return master.kind != "vrf"; }

}  // namespace

std::optional<Link> read_link(const nlmsghdr& message) {
  const auto* head = netlink::header_of<ifinfomsg>(message);
  if (message.nlmsg_type != RTM_NEWLINK || head == nullptr || head->ifi_family == AF_BRIDGE) {
    return std::nullopt;
  }
  const auto attributes = netlink::Attributes::after(message, sizeof *head);
  Link link;
  link.index = head->ifi_index;
  link.name = attributes.text(IFLA_IFNAME);
  attributes.nested(IFLA_PROP_LIST).each([&](uint16_t type, std::span<const std::byte> bytes) {
    if (type == IFLA_ALT_IFNAME) {
      const auto* text = reinterpret_cast<const char*>(bytes.data());
      link.other_names.emplace_back(text, strnlen(text, bytes.size()));
    }
  });
  link.kind = attributes.nested(IFLA_LINKINFO).text(IFLA_INFO_KIND);
  const auto lower = static_cast<int>(attributes.number(IFLA_LINK).value_or(0));
  link.lower_namespace =
      static_cast<int>(attributes.number(IFLA_LINK_NETNSID).value_or(static_cast<uint32_t>(-1)));
  link.lower = lower == link.index && link.lower_namespace < 0 ? 0 : lower;
  link.master = static_cast<int>(attributes.number(IFLA_MASTER).value_or(0));
  link.mtu = attributes.number(IFLA_MTU).value_or(link.mtu);
  if (const auto mac = attributes.find(IFLA_ADDRESS)) {
    std::memcpy(link.mac.data(), mac->data(), std::min(mac->size(), link.mac.size()));
  }
  constexpr unsigned works = IFF_UP | IFF_RUNNING;
  link.up = (head->ifi_flags & works) == works;
  link.loopback = (head->ifi_flags & IFF_LOOPBACK) != 0;
  return link.name.empty() ? std::nullopt : std::optional(std::move(link));
}

std::optional<LinkAddress> read_address(const nlmsghdr& message) {
  const auto* head = netlink::header_of<ifaddrmsg>(message);
  if (message.nlmsg_type != RTM_NEWADDR || head == nullptr ||
      (head->ifa_family != AF_INET && head->ifa_family != AF_INET6)) {
    return std::nullopt;
  }
  const auto attributes = netlink::Attributes::after(message, sizeof *head);
  // Where a link leads to one other host only, IFA_ADDRESS is that host's.
  auto bytes = attributes.find(IFA_LOCAL);
  bytes = bytes ? bytes : attributes.find(IFA_ADDRESS);
  const uint32_t flags = attributes.number(IFA_FLAGS).value_or(head->ifa_flags);
  if (!bytes || bytes->size() < (head->ifa_family == AF_INET ? 4U : 16U) ||
      (flags & IFA_F_DADFAILED) != 0) {
    return std::nullopt;
  }
  LinkAddress found;
  found.index = static_cast<int>(head->ifa_index);
  found.address.family = head->ifa_family == AF_INET ? 4 : 6;
  found.address.prefix_len = head->ifa_prefixlen;
  std::memcpy(found.address.bytes.data(), bytes->data(), found.address.family == 4 ? 4 : 16);
  if (found.address.family == 6 && found.address.link_local()) {
    found.address.scope_id = head->ifa_index;
  }
  found.temporary = head->ifa_family == AF_INET6 &&
                    (flags & (IFA_F_TEMPORARY | IFA_F_DEPRECATED | IFA_F_TENTATIVE)) != 0;
  return found;
}

Result<LinkList> list_links() {
  constexpr unsigned tries = 8;
  for (unsigned i = 0;; ++i) {
    LinkList list;
    netlink::Request links(RTM_GETLINK, NLM_F_DUMP, ifinfomsg{});
    constexpr uint32_t without_statistics = 1U << 3U;  // RTEXT_FILTER_SKIP_STATS
    links.add(IFLA_EXT_MASK, without_statistics);
    auto listed = netlink::ask(links, [&](const nlmsghdr& message) {
      if (auto link = read_link(message)) {
        list.links.push_back(std::move(*link));
      }
    });
    if (listed) {
      listed = netlink::ask({RTM_GETADDR, NLM_F_DUMP, ifaddrmsg{}}, [&](const nlmsghdr& message) {
        if (auto address = read_address(message)) {
          list.addresses.push_back(*address);
        }
      });
    }
    if (listed) {
      return list;
    }
    if (listed.error().code != Errc::again || i + 1 == tries) {
      return fail(Errc::system, "cannot list the network interfaces", listed.error().sys);
    }
  }
}

const char* to_text(LinkClass leads) {
  switch (leads) {
    case LinkClass::nic:
      return "a NIC";
    case LinkClass::pair:
      return "a cable of software";
    case LinkClass::routed:
      return "addresses of the host";
    case LinkClass::tunnel:
      return "a tunnel";
    case LinkClass::internal:
      break;
  }
  return "leads to no other host";
}

const Link* LinkTree::find(int index) const {
  const auto found = std::find_if(links_.begin(), links_.end(),
                                  [&](const Link& one) { return one.index == index; });
  return index == 0 || found == links_.end() ? nullptr : &*found;
}

bool LinkTree::is_port(const Link& link) const {
  const Link* master = find(link.master);
  return master != nullptr && takes_packets(*master);
}

std::vector<const Link*> LinkTree::lowers_of(const Link& link) const {
  std::vector<const Link*> lowers;
  if (link.lower_namespace < 0 && !is_one_of(pairs, link.kind)) {
    if (const Link* lower = find(link.lower)) {
      lowers.push_back(lower);
    }
  }
  for (const Link& one : links_) {
    const Link* master = find(one.master);
    // Which of Open vSwitch's bridges a port belongs to, the kernel does not know.
    const bool its = master == &link || (link.kind == open_switch && master != nullptr &&
                                         master->kind == open_switch && one.kind != open_switch);
    if (its && takes_packets(link)) {
      lowers.push_back(&one);
    }
  }
  return lowers;
}

LinkClass LinkTree::class_of(const Link& link, unsigned depth) const {
  if (depth == depth_max || is_one_of(hollow, link.kind)) {
    return link.loopback || link.kind == "dummy" ? LinkClass::routed : LinkClass::internal;
  }
  if (link.loopback) {
    return LinkClass::routed;
  }
  const std::vector<const Link*> lowers = lowers_of(link);
  if (is_one_of(pairs, link.kind)) {
    return link.lower_namespace < 0 && find(link.lower) != nullptr ? LinkClass::internal
                                                                   : LinkClass::pair;
  }
  if (is_one_of(stacked, link.kind)) {
    if (lowers.empty()) {
      return link.kind == "ipoib" ? LinkClass::nic : LinkClass::pair;
    }
    return class_of(*lowers.front(), depth + 1);
  }
  if (is_one_of(joined, link.kind)) {
    LinkClass best = LinkClass::internal;
    for (const Link* lower : lowers) {
      const LinkClass one = class_of(*lower, depth + 1);
      // Cables into containers make a bridge no way to other hosts.
      if (one == LinkClass::nic || link.kind == "bond" || link.kind == "team") {
        best = std::min(best, one);
      }
    }
    return best;
  }
  return link.kind.empty() ? LinkClass::nic : LinkClass::tunnel;
}

void LinkTree::collect(const Link& link, unsigned depth, std::vector<const Link*>& found) const {
  for (const Link* lower : lowers_of(link)) {
    if (depth < depth_max && std::find(found.begin(), found.end(), lower) == found.end()) {
      found.push_back(lower);
      collect(*lower, depth + 1, found);
    }
  }
}

std::vector<const Link*> LinkTree::beneath(const Link& link) const {
  std::vector<const Link*> found;
  collect(link, 0, found);
  return found;
}

std::vector<uint64_t> LinkTree::cables_of(const Link& link) const {
  const auto name = [](const Link& one) -> uint64_t {
    // What lies on a link of another namespace is known by that one.
    const bool elsewhere = one.lower_namespace >= 0 && is_one_of(stacked, one.kind);
    const auto space = static_cast<uint64_t>(elsewhere ? one.lower_namespace + 1 : 0);
    return space << 32U | static_cast<uint32_t>(elsewhere ? one.lower : one.index);
  };
  std::set<uint64_t> cables;
  std::vector<const Link*> all = beneath(link);
  all.push_back(&link);
  for (const Link* one : all) {
    if (lowers_of(*one).empty()) {
      cables.insert(name(*one));
    }
  }
  return {cables.begin(), cables.end()};
}

}  // namespace nccl_ha::fabric
