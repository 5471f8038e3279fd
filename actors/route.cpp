#include "actors/route.h"

#include "runtime/fabric/interfaces.h"

namespace nccl_ha {

std::string address_text(const sockaddr_storage& address) {
  const auto ip = IpAddress::from_sockaddr(reinterpret_cast<const sockaddr*>(&address));
  return ip ? ip->text() : "?";
}

}  // namespace nccl_ha
