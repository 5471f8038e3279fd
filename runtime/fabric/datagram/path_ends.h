// The two ends of a path: what it tells its peer, and what the peer told.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>

#include "runtime/fabric/datagram/wire.h"
#include "runtime/fabric/failure_domain.h"
#include "runtime/fabric/packet_io.h"

namespace nccl_ha::fabric {

class PathEnds {
 public:
  explicit PathEnds(const WireAddress& local) : local_(local) { encode(local_, local_bytes_); }

  const WireAddress& local() const { return local_; }
  std::span<const std::byte> local_bytes() const { return local_bytes_; }
  /// Until then nothing may be sent.
  bool peer_known() const { return peer_known_; }
  const WireAddress& peer() const { return peer_; }
  /// False: the bytes are malformed, or of another family of addresses.
  bool set_peer(std::span<const std::byte> bytes);
  /// How what is sent there leaves.
  void leave_by(const PacketIo::Egress& egress);
  /// The path came up: a wrong NIC is logged, once for each two addresses in this process.
  void tell_other_nic(const std::string& local_nic) const;

  /// Of a frame to the peer.
  FrameHeader header(FrameType type) const {
    FrameHeader header;
    header.type = type;
    header.path = peer_.path;
    header.token = peer_.token.told();
    return header;
  }

  /// The NICs at both ends, the peer's as soon as it is known, and the one that what is sent leaves
  /// by if it is another.
  void failure_domains(const std::string& local_nic, FailureDomains& domains) const;
  std::string describe() const;

 private:
  WireAddress local_;
  std::array<std::byte, wire_address_bytes> local_bytes_{};
  WireAddress peer_;
  std::string other_nic_;  ///< PacketIo::Egress::other_nic
  bool peer_known_ = false;
};

}  // namespace nccl_ha::fabric
