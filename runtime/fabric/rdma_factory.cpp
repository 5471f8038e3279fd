#include "runtime/fabric/rdma_factory.h"

#include <utility>

namespace nccl_ha::fabric {

std::vector<NetDevice> RdmaFactory::devices() const {
  std::vector<NetDevice> devices;
  for (size_t i = 0; i < port_count() && offers_; ++i) {
    NetDevice device;
    static_cast<DeviceFacts&>(device) = ports_->at(i);
    device.kind = kind();
    device.index = i;
    const bool reaches = traits(device).reaches_gpu_memory;
    device.peer_memory = device.peer_memory && reaches;
    device.dmabuf = device.dmabuf && reaches;
    devices.push_back(std::move(device));
  }
  return devices;
}

void RdmaFactory::add_places(const Attachment& of, std::vector<Place>& places) const {
  for (size_t i = 0; of.kind == kind() && i < host_.devices.size(); ++i) {
    const NetDevice& device = host_.devices[i];
    if (device.kind == kind()) {
      const Attachment at{i, kind(), 0, incarnation(device)};
      places.push_back({at, place_number(at, nullptr),
                        with_prefix(*host_.interfaces.now(), ports_->address(device.index)),
                        device.pci_path});
    }
  }
}

uint16_t RdmaFactory::place_number(const Attachment& at, const sockaddr* local) const {
  (void)local;
  // Peers know these numbers (ha::Rail).  One comes again when its incarnation is long over.
  constexpr size_t first_returned = 30000;
  constexpr size_t devices_most = 256;
  constexpr size_t apart = 100;
  return static_cast<uint16_t>(
      at.incarnation == 0 ? at.device
                          : first_returned + at.incarnation % apart * devices_most + at.device);
}

}  // namespace nccl_ha::fabric
