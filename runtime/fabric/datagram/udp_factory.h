// Datagrams over UDP: the kind that every host has.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "runtime/fabric/datagram/port_opener.h"
#include "runtime/fabric/path_factory.h"
#include "runtime/fabric/socket_address.h"

namespace nccl_ha::fabric {

inline constexpr FabricKind datagram_kind{1};

/// Its devices are the interfaces.  Devices of other kinds get fallback paths over the interfaces
/// that are not beneath them.
class UdpFactory final : public PathFactory {
 public:
  /// Ports run over what it gives for a local address; empty: over UDP sockets.
  using PacketSource = std::function<Result<std::unique_ptr<PacketIo>>(const SocketAddress& local)>;
  UdpFactory(const Config& config, FabricHost& host, PortOpener opener, PacketSource packets);

  FabricKind kind() const override { return datagram_kind; }
  const char* setting() const override { return "datagram"; }
  const char* text() const override { return "datagrams over UDP"; }
  bool universal() const override { return true; }
  std::vector<NetDevice> devices() const override;
  bool serves(const NetDevice& device) const override;
  PathTraits traits(const NetDevice& device) const override;
  size_t paths_wanted() const override { return paths_wanted_; }
  void add_places(const Attachment& of, std::vector<Place>& places) const override;
  uint16_t place_number(const Attachment& at, const sockaddr* local) const override;
  std::string nic_of(const NetDevice& device, const sockaddr* local) const override;
  Result<OwnedPath> create_path(Context& context, const Attachment& at, const sockaddr* local,
                                const PathOptions& options, PathOwner* owner) override;

 private:
  struct Slot {
    SocketAddress address;
    std::weak_ptr<DatagramPort> port;
  };
  Result<std::unique_ptr<PacketIo>> open(const SocketAddress& local) const;

  FabricHost& host_;
  PortOpener opener_;
  PacketSource packets_;
  bool forced_;   ///< HA_NCCL_FABRIC asks for another kind: none of these
  bool backs_;    ///< devices of other kinds get fallback paths
  bool offload_;  ///< HA_NCCL_DGRAM_GSO
  int socket_bytes_;
  size_t paths_wanted_;
  std::vector<std::vector<Slot>> ports_;  // per worker, touched by that worker only
};

}  // namespace nccl_ha::fabric
