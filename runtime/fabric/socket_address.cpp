#include "runtime/fabric/socket_address.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>

namespace nccl_ha::fabric {

std::string text(const SocketAddress& address) {
  if (address.is_ud()) {
    char gid[INET6_ADDRSTRLEN] = "?";
    inet_ntop(AF_INET6, address.ud().gid.data(), gid, sizeof gid);
    return fmt::format("{} lid {} qp {}", gid, address.ud().lid, address.ud().queue_pair);
  }
  char host[64] = "?";
  char port[16] = "?";
  getnameinfo(address.get(), address.length, host, sizeof host, port, sizeof port,
              NI_NUMERICHOST | NI_NUMERICSERV);
  return address.storage.ss_family == AF_INET6 ? fmt::format("[{}]:{}", host, port)
                                               : fmt::format("{}:{}", host, port);
}

}  // namespace nccl_ha::fabric
