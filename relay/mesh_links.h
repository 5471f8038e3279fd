// The interfaces with cables to neighbours, and how packets of discovery come and go there.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "relay/discovery.h"
#include "runtime/base/result.h"
#include "runtime/fabric/interfaces.h"

namespace nccl_ha::relay {

/// HA_NCCL_MESH_IFNAME: those with cables to neighbours.  Pure.  None is no error.
std::vector<fabric::NetInterface> select_mesh_interfaces(
    const std::vector<fabric::NetInterface>& all, std::string_view spec);

/// The same of those that this host has now; an error: it cannot tell.
Result<std::vector<fabric::NetInterface>> list_mesh_interfaces(std::string_view spec);

/// As discovery knows them.
std::vector<MeshInterface> as_mesh_interfaces(const std::vector<fabric::NetInterface>& own);

class MeshLinks : public DiscoveryOutput {
 public:
  class Sink {
   public:
    /// `asked_here`: it came from a process of this host that is not on any cable.
    virtual void on_packet(uint32_t interface, const fabric::SocketAddress& from, bool asked_here,
                           std::span<const std::byte> packet) = 0;

   protected:
    ~Sink() = default;
  };
  virtual ~MeshLinks() = default;

  /// Neighbours are greeted and heard there from now on.
  virtual void use(const std::vector<fabric::NetInterface>& interfaces) = 0;
  /// At most `limit` packets; how many there were.
  virtual size_t receive(Sink& sink, size_t limit) = 0;
  /// To a process of this host that asked.
  virtual void answer(const fabric::SocketAddress& to, std::span<const std::byte> packet) = 0;
  /// Readable when packets wait; -1 where there is none.
  virtual std::array<int, 2> wait_fds() const = 0;
};

}  // namespace nccl_ha::relay
