#include "runtime/fabric/datagram/path_ends.h"

#include <fmt/format.h>
#include <netinet/in.h>

#include <cstring>
#include <mutex>
#include <set>
#include <utility>

#include "runtime/base/ip_address.h"
#include "runtime/base/log.h"

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

void PathEnds::leave_by(const PacketIo::Egress& egress) {
  peer_.command.by_own_nic = peer_.data.by_own_nic = egress.by_own_nic;
  other_nic_ = egress.other_nic;
}

void PathEnds::tell_other_nic(const std::string& local_nic) const {
  if (other_nic_.empty()) {
    return;
  }
  const std::string from = nic_text(local_.data);
  const std::string to = nic_text(peer_.data);
  static std::mutex mutex;
  static std::set<std::pair<std::string, std::string>> told;
  std::lock_guard lock(mutex);
  if (told.emplace(from, to).second) {
    NHA_LOG_WARN(
        "what {} ({}) sends to {} leaves by {}, as the routes say: paths from that address and "
        "from {} fail together. Give each NIC a subnet of its own, or a route to {} that is as "
        "good as the other's (for IPv6 also its metric), or a rule for its address (ip rule)",
        from, local_nic, to, other_nic_, other_nic_, to);
  }
}

void PathEnds::failure_domains(const std::string& local_nic, FailureDomains& domains) const {
  using Kind = FailureDomain::Kind;
  domains.push_back({Kind::local_nic, local_nic});
  if (!other_nic_.empty()) {
    domains.push_back({Kind::local_nic, other_nic_});
  }
  if (peer_known_) {
    domains.push_back({Kind::remote_nic, nic_text(peer_.data)});
  }
}

std::string PathEnds::describe() const {
  if (!peer_known_) {
    return fmt::format("datagram {} to unknown", text(local_.command));
  }
  return fmt::format("datagram {} to {}{}{}", text(local_.command), text(peer_.command),
                     other_nic_.empty() ? "" : " by another NIC, ", other_nic_);
}

}  // namespace nccl_ha::fabric
