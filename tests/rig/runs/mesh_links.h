// The cables of a simulated mesh as discovery uses them: a packet goes to whoever is at the other
// end.
#pragma once

#include <deque>
#include <map>
#include <vector>

#include "relay/mesh_links.h"
#include "runtime/base/random.h"
#include "tests/rig/sim/world.h"

namespace nccl_ha::rig {

class SimMeshLinks;

/// Who is plugged in where.  It outlives the links.
class SimMeshPlugs {
 public:
  SimMeshPlugs(sim::World& world, uint64_t seed) : world_(world), random_(seed) {}
  SimMeshPlugs(const SimMeshPlugs&) = delete;
  SimMeshPlugs& operator=(const SimMeshPlugs&) = delete;

  /// A cable between two addresses, each of an interface with that number on its host.
  void add_cable(sim::Ip one, uint32_t one_interface, sim::Ip other, uint32_t other_interface);

 private:
  friend class SimMeshLinks;
  struct End {
    sim::Ip peer = 0;
    uint32_t peer_interface = 0;
    SimMeshLinks* plugged = nullptr;
    uint32_t interface = 0;
  };
  void send(sim::Ip from, std::span<const std::byte> packet);

  sim::World& world_;
  Random random_;
  std::map<sim::Ip, End> ends_;  ///< by address
};

/// Of one host in one life of its process.
class SimMeshLinks final : public relay::MeshLinks {
 public:
  /// `addresses` in the order of the host's interfaces, which are numbered from 1.  A process that
  /// is dead says nothing any more.
  SimMeshLinks(SimMeshPlugs& plugs, std::vector<sim::Ip> addresses, sim::ProcessTiePtr tie);
  ~SimMeshLinks() override;

  void send(uint32_t interface, const fabric::SocketAddress* to,
            std::span<const std::byte> packet) override;
  void use(const std::vector<fabric::NetInterface>& interfaces) override { (void)interfaces; }
  size_t receive(Sink& sink, size_t limit) override;
  void answer(const fabric::SocketAddress& to, std::span<const std::byte> packet) override {
    (void)to;
    (void)packet;
  }
  std::array<int, 2> wait_fds() const override { return {event_, -1}; }

 private:
  friend class SimMeshPlugs;
  struct Packet {
    uint32_t interface = 0;
    sim::Ip from = 0;
    std::vector<std::byte> bytes;
  };
  void arrive(Packet packet);

  SimMeshPlugs& plugs_;
  std::vector<sim::Ip> addresses_;
  sim::ProcessTiePtr tie_;
  int event_ = -1;
  std::deque<Packet> packets_;
};

}  // namespace nccl_ha::rig
