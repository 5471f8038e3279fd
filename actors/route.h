// Where a connector may reach its peer.
#pragma once

#include <sys/socket.h>

#include <string>

namespace nccl_ha {

/// An address without its port, for messages.
std::string address_text(const sockaddr_storage& address);

/// Tried in order.
struct Route {
  sockaddr_storage to{};
  sockaddr_storage from{};  ///< ss_family 0: any
  bool for_rejoin = false;  ///< only once there are paths
};

/// They lead from the same address to the same address and port.
bool same_route(const Route& one, const Route& other);

}  // namespace nccl_ha
