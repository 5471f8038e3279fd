#include "runtime/fabric/datagram/ud_factory.h"

#include <utility>

#include "runtime/fabric/datagram/port.h"

namespace nccl_ha::fabric {

UdFactory::UdFactory(const Config& config, FabricHost& host, std::shared_ptr<RdmaPorts> ports,
                     PortOpener opener)
    : RdmaFactory(host, std::move(ports), config.fabric == "ud"),
      opener_(std::move(opener)),
      paths_wanted_(static_cast<size_t>(config.dgram_paths)),
      open_(host.workers, std::vector<std::weak_ptr<DatagramPort>>(port_count())) {}

PathTraits UdFactory::traits(const NetDevice& device) const {
  (void)device;
  return {};
}

Result<OwnedPath> UdFactory::create_path(Context& context, const Attachment& at,
                                         const sockaddr* local, const PathOptions& options,
                                         PathOwner* owner) {
  (void)local;
  const size_t index = port_of(at);
  return opener_.create_path(
      context, open_[context.worker_index()][index], 0,
      [&] { return ports().open_datagrams(context, index); }, options, owner);
}

}  // namespace nccl_ha::fabric
