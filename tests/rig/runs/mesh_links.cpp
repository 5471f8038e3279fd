#include "tests/rig/runs/mesh_links.h"

#include <unistd.h>

#include <utility>

namespace nccl_ha::rig {

void SimMeshPlugs::add_cable(sim::Ip one, uint32_t one_interface, sim::Ip other,
                             uint32_t other_interface) {
  ends_[one] = {other, other_interface, nullptr, one_interface};
  ends_[other] = {one, one_interface, nullptr, other_interface};
}

void SimMeshPlugs::send(sim::Ip from, std::span<const std::byte> packet) {
  const sim::Ip to = ends_.at(from).peer;
  const sim::Link& way = world_.network().link(from, to);
  if (way.cut || random_.chance(way.drop)) {
    return;
  }
  world_.network().call_at(
      world_.now() + way.delay,
      [this, from, to, bytes = std::vector(packet.begin(), packet.end())]() mutable {
        const End& end = ends_.at(to);
        if (end.plugged != nullptr && !world_.network().link(from, to).cut) {
          end.plugged->arrive({end.interface, from, std::move(bytes)});
        }
      });
}

SimMeshLinks::SimMeshLinks(SimMeshPlugs& plugs, std::vector<sim::Ip> addresses,
                           sim::ProcessTiePtr tie)
    : plugs_(plugs),
      addresses_(std::move(addresses)),
      tie_(std::move(tie)),
      event_(sim::Network::make_event()) {
  for (const sim::Ip address : addresses_) {
    plugs_.ends_.at(address).plugged = this;
  }
}

SimMeshLinks::~SimMeshLinks() {
  for (const sim::Ip address : addresses_) {
    SimMeshLinks*& plugged = plugs_.ends_.at(address).plugged;
    plugged = plugged == this ? nullptr : plugged;
  }
  close(event_);
}

void SimMeshLinks::send(uint32_t interface, const fabric::SocketAddress* to,
                        std::span<const std::byte> packet) {
  (void)to;  // nobody else is at the other end
  if (!tie_->dead) {
    plugs_.send(addresses_.at(interface - 1), packet);
  }
}

void SimMeshLinks::arrive(Packet packet) {
  packets_.push_back(std::move(packet));
  plugs_.world_.network().readable(event_);
}

size_t SimMeshLinks::receive(Sink& sink, size_t limit) {
  size_t taken = 0;
  for (; taken < limit && !packets_.empty(); ++taken) {
    const Packet packet = std::move(packets_.front());
    packets_.pop_front();
    fabric::SocketAddress from;
    from.storage = sim::Endpoint{packet.from, 1}.to_sockaddr();
    from.length = sizeof(sockaddr_in);
    sink.on_packet(packet.interface, from, false, packet.bytes);
  }
  if (!packets_.empty()) {
    plugs_.world_.network().readable(event_);
  }
  return taken;
}

}  // namespace nccl_ha::rig
