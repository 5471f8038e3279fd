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
      places.push_back({{i, kind()},
                        static_cast<uint16_t>(i),
                        with_prefix(*host_.interfaces.now(), ports_->at(device.index).address),
                        device.pci_path});
    }
  }
}

}  // namespace nccl_ha::fabric
