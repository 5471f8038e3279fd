// Relayed paths as a kind of fabric (Provider::Sources::kinds).  Hops are datagrams over UDP.
#pragma once

#include <memory>

#include "relay/hop_source.h"
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

  fabric::FabricKind kind() const override { return relay_kind; }
  const char* setting() const override { return "relay"; }
  const char* text() const override { return "paths over other hosts"; }
  /// The interfaces, where HA_NCCL_FABRIC asks for this kind.
  std::vector<fabric::NetDevice> devices() const override;
  fabric::PathTraits traits(const fabric::NetDevice& device) const override;
  void add_places(const fabric::Attachment& of, std::vector<fabric::Place>& places) const override;
  uint16_t place_number(const fabric::Attachment& at, const sockaddr* local) const override {
    return within_.place_number(at, local);
  }
  std::string nic_of(const fabric::NetDevice& device, const sockaddr* local) const override {
    return within_.nic_of(device, local);
  }
  /// `local` does not matter: the route decides by which cable the path begins.
  Result<fabric::OwnedPath> create_path(Context& context, const fabric::Attachment& at,
                                        const sockaddr* local, const fabric::PathOptions& options,
                                        fabric::PathOwner* owner) override;

 private:
  class Hops final : public HopSource {
   public:
    explicit Hops(RelayFactory& factory) : factory_(factory) {}
    Result<fabric::OwnedPath> make_hop(Context& context, const sockaddr* local,
                                       const fabric::PathOptions& options,
                                       fabric::PathOwner* owner) override;
    fabric::Memory& memory() override { return factory_.host_.memory; }

   private:
    RelayFactory& factory_;
  };

  fabric::FabricHost& host_;
  bool asked_for_;
  fabric::UdpFactory within_;
  Hops hops_{*this};
  std::shared_ptr<NextHops> next_;
  RelayPath::Options options_;
};

/// For Provider::Sources::kinds.  Empty `packets`: UDP sockets.
fabric::Provider::Kind relay_fabric(std::shared_ptr<NextHops> next,
                                    const RelayPath::Options& options,
                                    fabric::UdpFactory::PacketSource packets);

}  // namespace nccl_ha::relay
