// The network links of this host as the kernel describes them, and what they lead to.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/ip_address.h"
#include "runtime/base/netlink.h"
#include "runtime/base/result.h"

namespace nccl_ha::fabric {

/// One link.  Plain data.
struct Link {
  int index = 0;
  std::string name;
  std::vector<std::string> other_names;  ///< altname of ip-link(8)
  std::string kind;                      ///< "vlan", "veth", ...; empty: a driver's own, as of NICs
  int lower = 0;                         ///< the link that carries its frames, or veth's other end
  int lower_namespace = -1;              ///< where `lower` is, if not here
  int master = 0;                        ///< the bridge, bond or VRF that it is a port of
  uint32_t mtu = 1500;                   ///< bytes
  std::array<uint8_t, 6> mac{};
  bool loopback = false;
  bool up = false;  ///< and has a carrier
};

/// An address of a link.  Plain data.
struct LinkAddress {
  int index = 0;  ///< of the link, whatever the address's label says
  IpAddress address;
  bool temporary = false;  ///< of IPv6, or deprecated: not for long
};

/// All of them, from rtnetlink(7).  Any thread; blocks while others hold the kernel's lock.
struct LinkList {
  std::vector<Link> links;
  std::vector<LinkAddress> addresses;
};
Result<LinkList> list_links();
/// One message of RTM_NEWLINK or RTM_NEWADDR, as far as it is sound.
std::optional<Link> read_link(const nlmsghdr& message);
std::optional<LinkAddress> read_address(const nlmsghdr& message);

/// What a link leads to, the best first.
enum class LinkClass : uint8_t {
  nic,       ///< a NIC, or what lies on NICs only: VLAN, bond, macvlan, a bridge with a NIC
  pair,      ///< the end of a cable of software into another network namespace, as containers have
  routed,    ///< the host itself: addresses that a routing protocol makes known
  tunnel,    ///< through a network that the host reaches otherwise
  internal,  ///< no other host: bridges of containers, cables within the host
};
const char* to_text(LinkClass leads);

/// How the links of a host lie on each other.  Pure.
class LinkTree {
 public:
  /// Keeps the span.
  explicit LinkTree(std::span<const Link> links) : links_(links) {}
  LinkClass class_of(const Link& link) const { return class_of(link, 0); }
  /// The links at the very bottom, which carry its frames: two links with a common one fail
  /// together.  Numbers that are equal for equal links of equal namespaces.
  std::vector<uint64_t> cables_of(const Link& link) const;
  /// Those beneath it, at any depth, ports of a bond or bridge included.
  std::vector<const Link*> beneath(const Link& link) const;
  /// A port of a bridge, bond or team, whose packets belong to that one.
  bool is_port(const Link& link) const;

 private:
  const Link* find(int index) const;
  std::vector<const Link*> lowers_of(const Link& link) const;
  LinkClass class_of(const Link& link, unsigned depth) const;
  void collect(const Link& link, unsigned depth, std::vector<const Link*>& found) const;
  std::span<const Link> links_;
};

}  // namespace nccl_ha::fabric
