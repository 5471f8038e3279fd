// Relayed paths as a kind of fabric (Provider::Sources::kinds), made over the other kinds.
#pragma once

#include <memory>
#include <optional>

#include "relay/provider_hops.h"
#include "relay/relay_path.h"
#include "runtime/fabric/datagram/udp_factory.h"
#include "runtime/fabric/provider.h"

namespace nccl_ha::relay {

inline constexpr fabric::FabricKind relay_kind{4};

class RelayFactory final : public fabric::PathFactory {
 public:
  RelayFactory(const Config& config, fabric::FabricHost& host, fabric::PortOpener opener,
               fabric::UdpFactory::PacketSource packets, std::shared_ptr<NextHops> next,
               const RelayPath::Options& options);

  void begin(fabric::Provider& provider) override { hops_.emplace(provider, &within_); }
  fabric::FabricKind kind() const override { return relay_kind; }
  const char* setting() const override { return "relay"; }
  const char* text() const override { return "paths over other hosts"; }
  /// The interfaces, where HA_NCCL_FABRIC asks for this kind.
  std::vector<fabric::NetDevice> devices() const override;
  /// A route begins at whatever cable leads there.
  bool serves(const fabric::NetDevice& device) const override {
    return device.kind == kind() || serves_all_;
  }
  fabric::PathTraits traits(const fabric::NetDevice& device) const override;
  /// Ways (Attachment::way), not ports: the further ones of a connection that lives here, one for a
  /// connection with a cable of its own.
  void add_places(const fabric::Attachment& of, std::vector<fabric::Place>& places) const override;
  uint16_t place_number(const fabric::Attachment& at, const sockaddr* local) const override {
    (void)local;
    return static_cast<uint16_t>(place_first + at.way);
  }
  size_t ways_at_once() const override { return splits_ ? ways_max : 1; }
  /// Of no NIC: which one it is, the route decides.
  std::string nic_of(const fabric::NetDevice& device, const sockaddr* local) const override {
    (void)device;
    (void)local;
    return {};
  }
  /// `local` does not matter: the route decides by which cable the path begins.
  Result<fabric::OwnedPath> create_path(Context& context, const fabric::Attachment& at,
                                        const sockaddr* local, const fabric::PathOptions& options,
                                        fabric::PathOwner* owner) override;

 private:
  /// Above the numbers of devices and interfaces.
  static constexpr uint16_t place_first = 60000;

  fabric::FabricHost& host_;
  bool asked_for_;
  bool serves_all_;  ///< HA_NCCL_FABRIC forces nothing
  bool backs_;       ///< relayed paths stand by for others
  bool splits_;      ///< HA_NCCL_MESH_RING_SPLIT
  fabric::UdpFactory within_;
  std::optional<ProviderHops> hops_;  ///< from begin() on
  std::shared_ptr<NextHops> next_;
  RelayPath::Options options_;
};

/// For Provider::Sources::kinds.  Empty `packets`: UDP sockets.
fabric::Provider::Kind relay_fabric(std::shared_ptr<NextHops> next,
                                    const RelayPath::Options& options,
                                    fabric::UdpFactory::PacketSource packets);

}  // namespace nccl_ha::relay
