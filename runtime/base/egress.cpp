#include "runtime/base/egress.h"

#include <net/if.h>

#include <cstring>
#include <optional>

#include "runtime/base/netlink.h"

namespace nccl_ha {
namespace {

constexpr int loopback_interface = 1;  // in each network namespace

/// The kernel's answer to a question for a route.
struct Route {
  bool local = false;
  int interface = 0;
  uint8_t prefix_len = 0;  ///< of the route that was found, where that was asked for
  uint32_t table = 0;
};

/// A route that is written down, or what the kernel makes of it: with an output interface it takes
/// an IPv4 host for a neighbour there where no route says so.
enum class Wanted : uint8_t { written, taken };

/// `interface` 0: any.  Nothing: there is none, or it is not told.
std::optional<Route> find_route(const IpAddress* from, const IpAddress& to, int interface,
                                Wanted wanted) {
  const size_t bytes = to.family == 6 ? 16 : 4;
  rtmsg header{};
  header.rtm_family = to.family == 6 ? AF_INET6 : AF_INET;
  header.rtm_dst_len = static_cast<uint8_t>(bytes * 8);
  header.rtm_src_len = from == nullptr ? uint8_t{0} : header.rtm_dst_len;
  header.rtm_flags = RTM_F_LOOKUP_TABLE | (wanted == Wanted::written ? RTM_F_FIB_MATCH : 0U);
  netlink::Request request(RTM_GETROUTE, 0, header);
  request.add(RTA_DST, std::as_bytes(std::span(to.bytes)).first(bytes));
  if (from != nullptr) {
    request.add(RTA_SRC, std::as_bytes(std::span(from->bytes)).first(bytes));
  }
  if (interface != 0) {
    request.add(RTA_OIF, static_cast<uint32_t>(interface));
  }
  std::optional<Route> found;
  const auto asked = netlink::ask(request, [&](const nlmsghdr& answer) {
    const auto* route = netlink::header_of<rtmsg>(answer);
    if (answer.nlmsg_type != RTM_NEWROUTE || route == nullptr) {
      return;
    }
    const auto attributes = netlink::Attributes::after(answer, sizeof *route);
    found = Route{route->rtm_type == RTN_LOCAL,
                  static_cast<int>(attributes.number(RTA_OIF).value_or(0)), route->rtm_dst_len,
                  attributes.number(RTA_TABLE).value_or(route->rtm_table)};
  });
  return asked ? found : std::nullopt;
}

/// The own interface leads there too, and no worse.
bool own_route_is_as_good(const IpAddress& from, const IpAddress& to, int own) {
  const auto first = find_route(&from, to, 0, Wanted::written);
  const auto by_own = find_route(&from, to, own, Wanted::written);
  const auto taken = find_route(&from, to, own, Wanted::taken);
  return first && by_own && taken && taken->interface == own && by_own->table == first->table &&
         by_own->prefix_len >= first->prefix_len;
}

}  // namespace

Egress find_egress(const IpAddress& from, const IpAddress& to) {
  using Kind = Egress::Kind;
  Egress egress;
  const auto owner = find_route(nullptr, from, 0, Wanted::written);
  const auto first = owner && owner->local ? find_route(&from, to, 0, Wanted::taken) : std::nullopt;
  // What the loopback interface has belongs to the host: its packets leave as the routes say.
  if (!first || (owner->interface == loopback_interface && !first->local)) {
    return egress;
  }
  egress.own = owner->interface;
  egress.interface = first->interface;
  if (first->local) {
    egress.kind = Kind::local;
  } else if (first->interface == egress.own) {
    egress.kind = Kind::own;
  } else if (own_route_is_as_good(from, to, egress.own)) {
    egress.kind = Kind::chosen;
    egress.interface = egress.own;
  } else {
    egress.kind = Kind::other;
  }
  return egress;
}

void choose_own_nic(int fd, const sockaddr* from, const sockaddr* to) {
  const auto source = IpAddress::from_sockaddr(from);
  const auto destination = IpAddress::from_sockaddr(to);
  if (!source || !destination || source->family != destination->family || source->link_local()) {
    return;
  }
  const Egress egress = find_egress(*source, *destination);
  char name[IF_NAMESIZE] = "";
  if (egress.kind == Egress::Kind::chosen &&
      if_indextoname(static_cast<unsigned>(egress.own), name) != nullptr) {
    static_cast<void>(
        setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, static_cast<socklen_t>(strlen(name))));
  }
}

size_t PacketInfo::write(void* at, int interface, const IpAddress& from) {
  auto* head = static_cast<cmsghdr*>(at);
  std::memset(at, 0, bytes_max);
  if (from.family == 6) {
    in6_pktinfo info{};
    info.ipi6_ifindex = static_cast<unsigned>(interface);
    std::memcpy(&info.ipi6_addr, from.bytes.data(), sizeof info.ipi6_addr);
    head->cmsg_level = IPPROTO_IPV6;
    head->cmsg_type = IPV6_PKTINFO;
    head->cmsg_len = CMSG_LEN(sizeof info);
    std::memcpy(CMSG_DATA(head), &info, sizeof info);
    return CMSG_SPACE(sizeof info);
  }
  in_pktinfo info{};
  info.ipi_ifindex = interface;
  std::memcpy(&info.ipi_spec_dst, from.bytes.data(), sizeof info.ipi_spec_dst);
  head->cmsg_level = IPPROTO_IP;
  head->cmsg_type = IP_PKTINFO;
  head->cmsg_len = CMSG_LEN(sizeof info);
  std::memcpy(CMSG_DATA(head), &info, sizeof info);
  return CMSG_SPACE(sizeof info);
}

int PacketInfo::interface_in(const cmsghdr& part) {
  const void* data = CMSG_DATA(&part);
  if (part.cmsg_level == IPPROTO_IPV6 && part.cmsg_type == IPV6_PKTINFO) {
    in6_pktinfo info{};
    std::memcpy(&info, data, sizeof info);
    return static_cast<int>(info.ipi6_ifindex);
  }
  if (part.cmsg_level == IPPROTO_IP && part.cmsg_type == IP_PKTINFO) {
    in_pktinfo info{};
    std::memcpy(&info, data, sizeof info);
    return info.ipi_ifindex;
  }
  return 0;
}

}  // namespace nccl_ha
