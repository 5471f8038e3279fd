// Hops over what a provider has: the RDMA device beneath the cable, and datagrams, which every host
// has.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "relay/hop_source.h"
#include "runtime/fabric/provider.h"

namespace nccl_ha::relay {

class ProviderHops final : public HopSource {
 public:
  /// The provider outlives it, and so does the factory that makes hops of datagrams, if it is not
  /// one of the provider's own.
  explicit ProviderHops(fabric::Provider& provider, fabric::PathFactory* datagrams = nullptr)
      : provider_(provider), datagrams_(datagrams) {}

  std::vector<HopPlace> places(const sockaddr* local) const override;
  void avoid(const HopPlace& place, NodeId neighbour, Instant now, const std::string& why) override;
  bool avoids(const HopPlace& place, NodeId neighbour, Instant now) const override;
  Result<fabric::OwnedPath> make_hop(Context& context, const HopPlace& place, const sockaddr* local,
                                     const fabric::PathOptions& options,
                                     fabric::PathOwner* owner) override;
  Result<std::shared_ptr<fabric::OwnMemory>> own_memory(const HopPlace& place, uint64_t domain,
                                                        std::shared_ptr<void> bytes,
                                                        size_t length) override;
  Result<fabric::RegionKeys> keys_of(const HopPlace& place, uint64_t domain,
                                     uint32_t key) override {
    return provider_.keys_in_domain(place.at, domain, key);
  }
  bool has_gpu_memory(uint64_t domain) const override { return provider_.has_gpu_memory(domain); }
  fabric::Memory& memory() override { return provider_.memory(); }

 private:
  bool lies_above(const fabric::Attachment& at, const IpAddress& address) const;

  fabric::Provider& provider_;
  fabric::PathFactory* datagrams_;
  mutable std::mutex mutex_;
  std::map<std::pair<size_t, NodeId>, Instant> avoided_;  ///< devices and neighbours, until when
};

}  // namespace nccl_ha::relay
