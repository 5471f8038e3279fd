#include "actors/route.h"

#include <netinet/in.h>

#include "runtime/fabric/interfaces.h"

namespace nccl_ha {
namespace {

/// In network order; 0: of no family that is known.
uint16_t port_of(const sockaddr_storage& address) {
  return address.ss_family == AF_INET6  ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
         : address.ss_family == AF_INET ? reinterpret_cast<const sockaddr_in&>(address).sin_port
                                        : uint16_t{0};
}

bool same_end_of_route(const sockaddr_storage& one, const sockaddr_storage& other) {
  const auto ip = IpAddress::from_sockaddr(reinterpret_cast<const sockaddr*>(&one));
  const auto ip_other = IpAddress::from_sockaddr(reinterpret_cast<const sockaddr*>(&other));
  const bool same = ip && ip_other ? ip->same_as(*ip_other) && ip->scope_id == ip_other->scope_id
                                   : !ip && !ip_other;
  return same && port_of(one) == port_of(other);
}

}  // namespace

std::string address_text(const sockaddr_storage& address) {
  const auto ip = IpAddress::from_sockaddr(reinterpret_cast<const sockaddr*>(&address));
  return ip ? ip->text() : "?";
}

bool same_route(const Route& one, const Route& other) {
  return same_end_of_route(one.to, other.to) && same_end_of_route(one.from, other.from);
}

}  // namespace nccl_ha
