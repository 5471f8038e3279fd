#include "runtime/fabric/datagram/path_ends.h"

#include <fmt/format.h>
#include <netinet/in.h>

#include <cstring>

#include "runtime/base/ip_address.h"

namespace nccl_ha::fabric {
namespace {

/// The address of the NIC alone.
std::string nic_text(const SocketAddress& address) {
  if (address.is_ud()) {
    const UdAddress& pair = address.ud();
    if (pair.lid != 0) {
      return fmt::format("LID {}", pair.lid);
    }
    sockaddr_in6 gid{};
    gid.sin6_family = AF_INET6;
    std::memcpy(&gid.sin6_addr, pair.gid.data(), pair.gid.size());
    return IpAddress::from_sockaddr(reinterpret_cast<const sockaddr*>(&gid))->text();
  }
  const auto ip = IpAddress::from_sockaddr(address.get());
  return ip ? ip->text() : std::string("?");
}

}  // namespace

bool PathEnds::set_peer(std::span<const std::byte> bytes) {
  const auto peer = decode_address(bytes);
  if (!peer || peer->command.storage.ss_family != local_.command.storage.ss_family) {
    return false;
  }
  peer_ = *peer;
  if (peer_.command.storage.ss_family == AF_INET6) {
    const uint32_t scope =
        reinterpret_cast<const sockaddr_in6*>(&local_.command.storage)->sin6_scope_id;
    reinterpret_cast<sockaddr_in6*>(&peer_.command.storage)->sin6_scope_id = scope;
    reinterpret_cast<sockaddr_in6*>(&peer_.data.storage)->sin6_scope_id = scope;
  }
  peer_known_ = true;
  return true;
}

void PathEnds::failure_domains(const std::string& local_nic, FailureDomains& domains) const {
  using Kind = FailureDomain::Kind;
  domains.push_back({Kind::local_nic, local_nic});
  if (peer_known_) {
    domains.push_back({Kind::remote_nic, nic_text(peer_.data)});
  }
}

std::string PathEnds::describe() const {
  if (!peer_known_) {
    return fmt::format("datagram {} to unknown", text(local_.command));
  }
  return fmt::format("datagram {} to {}", text(local_.command), text(peer_.command));
}

}  // namespace nccl_ha::fabric
