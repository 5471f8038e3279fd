// Hops over the datagrams of a provider, which every host has.
#pragma once

#include "relay/hop_source.h"
#include "runtime/fabric/datagram/udp_factory.h"
#include "runtime/fabric/provider.h"

namespace nccl_ha::relay {

class ProviderHops final : public HopSource {
 public:
  /// The provider outlives it.
  explicit ProviderHops(fabric::Provider& provider) : provider_(provider) {}
  Result<fabric::OwnedPath> make_hop(Context& context, const sockaddr* local,
                                     const fabric::PathOptions& options,
                                     fabric::PathOwner* owner) override {
    return provider_.create_path(context, {0, fabric::datagram_kind}, local, options, owner);
  }
  fabric::Memory& memory() override { return provider_.memory(); }

 private:
  fabric::Provider& provider_;
};

}  // namespace nccl_ha::relay
