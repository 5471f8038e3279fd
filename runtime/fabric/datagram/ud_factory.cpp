#include "runtime/fabric/datagram/ud_factory.h"

#include <utility>

#include "runtime/fabric/datagram/port.h"

namespace nccl_ha::fabric {

UdFactory::UdFactory(const Config& config, FabricHost& host, std::shared_ptr<RdmaPorts> ports,
                     PortOpener opener)
    : RdmaFactory(host, std::move(ports), config.fabric == "ud"),
      opener_(std::move(opener)),
      paths_wanted_(static_cast<size_t>(config.dgram_paths)),
      open_(host.workers, std::vector<OpenEnd>(port_count())) {}

PathTraits UdFactory::traits(const NetDevice& device) const {
  (void)device;
  return {};
}

Result<OwnedPath> UdFactory::create_path(Context& context, const Attachment& at,
                                         const sockaddr* local, const PathOptions& options,
                                         PathOwner* owner) {
  (void)local;
  // Memory has no keys of the device's, so that paths go on over what comes in its place.
  const size_t index = port_of(at);
  const RdmaEnd end{index, ports().incarnation(index)};
  OpenEnd& open = open_[context.worker_index()][index];
  if (std::exchange(open.incarnation, end.incarnation) != end.incarnation) {
    open.port.reset();
  }
  return opener_.create_path(
      context, open.port, 0, [&] { return ports().open_datagrams(context, end); }, options, owner);
}

}  // namespace nccl_ha::fabric
