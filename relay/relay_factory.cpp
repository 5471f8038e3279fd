#include "relay/relay_factory.h"

#include <utility>

namespace nccl_ha::relay {
namespace {

/// For the datagrams within, which are of another kind than the one that it may ask for.
Config for_hops(Config config) {
  config.fabric = "datagram";
  return config;
}

}  // namespace

RelayFactory::RelayFactory(const Config& config, fabric::FabricHost& host,
                           fabric::PortOpener opener, fabric::UdpFactory::PacketSource packets,
                           std::shared_ptr<NextHops> next, const RelayPath::Options& options)
    : host_(host),
      asked_for_(config.fabric == setting()),
      serves_all_(!fabric::fabric_is_forced(config)),
      backs_(config.enable_backup && serves_all_),
      splits_(config.mesh_ring_split),
      within_(for_hops(config), host, std::move(opener), std::move(packets)),
      next_(std::move(next)),
      options_(options) {}

std::vector<fabric::NetDevice> RelayFactory::devices() const {
  std::vector<fabric::NetDevice> devices;
  if (asked_for_) {
    devices = within_.devices();
  }
  for (fabric::NetDevice& device : devices) {
    device.kind = kind();
  }
  return devices;
}

fabric::PathTraits RelayFactory::traits(const fabric::NetDevice& device) const {
  fabric::PathTraits traits = within_.traits(device);
  traits.hops = 1;
  // By the devices that carry the first and the last hop (RelayPath): its bytes are theirs to put
  // in place, and no eager message comes, which the processor copies.
  traits.reaches_gpu_memory = device.peer_memory || device.dmabuf;
  traits.placed_by_nic = traits.reaches_gpu_memory;
  return traits;
}

void RelayFactory::add_places(const fabric::Attachment& of,
                              std::vector<fabric::Place>& places) const {
  const fabric::NetDevice& device = host_.devices[of.device];
  const bool own = of.kind == kind();
  if (!own && (!backs_ || !next_->any() || device.peer_memory || device.dmabuf)) {
    return;  // what lies in a GPU is out of their reach
  }
  const uint8_t first = own ? 1 : 0;
  const uint8_t end = own ? ways_max : 1;
  for (uint8_t way = first; way < end; ++way) {
    fabric::Place place;
    place.at = {of.device, kind(), way};
    place.number = place_number(place.at, nullptr);
    place.address.family = 0;
    places.push_back(place);
  }
}

Result<fabric::OwnedPath> RelayFactory::create_path(Context& context, const fabric::Attachment& at,
                                                    const sockaddr* local,
                                                    const fabric::PathOptions& options,
                                                    fabric::PathOwner* owner) {
  (void)local;
  RelayPath::Options own = options_;
  own.way = at.way;
  own.self = next_->self().value_or(own.self);
  own.traits = traits(host_.devices[at.device]);
  auto path = RelayPath::make(context, *hops_, *next_, own, options, owner);
  if (!path) {
    return path.error();
  }
  return fabric::OwnedPath{nullptr, std::move(*path)};
}

fabric::Provider::Kind relay_fabric(std::shared_ptr<NextHops> next,
                                    const RelayPath::Options& options,
                                    fabric::UdpFactory::PacketSource packets) {
  return
      [next = std::move(next), options, packets = std::move(packets)](
          const Config& config, fabric::FabricHost& host) -> std::unique_ptr<fabric::PathFactory> {
        auto opener = fabric::PortOpener::from(config, host.memory);
        if (!opener) {
          return nullptr;  // the standard kinds have said why
        }
        return std::make_unique<RelayFactory>(config, host, *opener, packets, next, options);
      };
}

}  // namespace nccl_ha::relay
