// What the kinds over RDMA ports have in common: the ports are their devices and their places.
#pragma once

#include <memory>
#include <vector>

#include "runtime/fabric/path_factory.h"
#include "runtime/fabric/rdma.h"

namespace nccl_ha::fabric {

class RdmaFactory : public PathFactory {
 public:
  std::vector<NetDevice> devices() const override;
  void add_places(const Attachment& of, std::vector<Place>& places) const override;
  /// That of a device which has come back is no number that a device, an interface or a way of
  /// another kind has.
  uint16_t place_number(const Attachment& at, const sockaddr* local) const override;

 protected:
  /// `ports` is null where there are none.  `offers`: the settings ask for this kind.
  RdmaFactory(FabricHost& host, std::shared_ptr<RdmaPorts> ports, bool offers)
      : host_(host), ports_(std::move(ports)), offers_(offers) {}
  RdmaPorts& ports() const { return *ports_; }
  size_t port_count() const { return ports_ ? ports_->count() : 0; }
  size_t port_of(const Attachment& at) const { return host_.devices[at.device].index; }

 private:
  FabricHost& host_;
  std::shared_ptr<RdmaPorts> ports_;
  bool offers_;
};

}  // namespace nccl_ha::fabric
