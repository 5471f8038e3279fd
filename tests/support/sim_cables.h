// Cables between processes of a simulation, for actors that find each other over them.
#pragma once

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "relay/mesh_links.h"
#include "tests/rig/sim/network.h"

namespace nccl_ha::test {

/// Outlives the links.  Hosts are numbered from 0; the interfaces of each from 1.
class SimCables {
 public:
  SimCables(sim::Network& network, size_t hosts) : network_(network), hosts_(hosts) {}
  SimCables(const SimCables&) = delete;
  SimCables& operator=(const SimCables&) = delete;

  Duration delay = std::chrono::microseconds(20);

  size_t add_cable(size_t one, size_t other);
  void cut(size_t cable, bool cut = true) { cables_[cable].cut = cut; }
  /// What it sends comes from another address from now on.
  void move(size_t host) { hosts_[host].moved = true; }
  /// Each host's links are made once.
  std::unique_ptr<relay::MeshLinks> links(size_t host);
  /// Those that are up: an interface is down while its cable is cut, if `seen`.
  std::vector<fabric::NetInterface> interfaces(size_t host, bool seen = true) const;
  /// A process of that host asks.
  void ask(size_t host, std::vector<std::byte> packet);
  const std::vector<std::vector<std::byte>>& answers() const { return answers_; }

 private:
  class Links;
  struct End {
    size_t host = 0;
    uint32_t interface = 0;
  };
  struct Cable {
    End ends[2];
    bool cut = false;
  };
  struct Arrived {
    uint32_t interface = 0;  ///< 0: of this host
    size_t from = 0;
    std::vector<std::byte> bytes;
  };
  struct Host {
    std::vector<std::pair<size_t, size_t>> plugs;  ///< cable and end, by interface - 1
    std::deque<Arrived> arrived;
    int fd = -1;
    bool moved = false;
  };
  void deliver(size_t host, Arrived arrived);

  sim::Network& network_;
  std::vector<Host> hosts_;
  std::vector<Cable> cables_;
  std::vector<std::vector<std::byte>> answers_;
};

}  // namespace nccl_ha::test
