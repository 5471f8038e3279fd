// Hosts without a switch as a command of this host can know them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "relay/topology.h"
#include "runtime/base/config.h"
#include "runtime/base/instant.h"
#include "runtime/base/result.h"
#include "runtime/fabric/interfaces.h"

namespace nccl_ha::tools {

/// A neighbour that an interface of this host hears, and that does not hear this host.
struct OneWay {
  uint32_t interface = 0;
  relay::NodeId node{};
  uint32_t peer_interface = 0;
};

/// What is known, and how it came.
struct MeshSight {
  enum class Origin : uint8_t { file, relay_node, own };
  relay::Topology topology;
  relay::NodeId self{};
  Origin origin = Origin::own;
  std::string source;           ///< for people
  std::vector<OneWay> one_way;  ///< only if the origin is `own`
};

class ShortDiscovery;

/// A look at the mesh: reads the topology file, asks the relay node of this host, or discovers by
/// itself.  In the last case this host answers its neighbours until the object is destroyed, so
/// that they see it too.
class MeshLook {
 public:
  /// `all`: the interfaces of this host.
  static Result<MeshLook> begin(const Config& config, const std::vector<fabric::NetInterface>& all);
  ~MeshLook();
  MeshLook(MeshLook&&) noexcept;
  MeshLook& operator=(MeshLook&&) noexcept;

  /// Returns when what this host hears has not changed for two hellos, at most after `limit`.  An
  /// interface that hears no neighbour is given four.
  void settle(Duration limit);
  Result<MeshSight> sight();
  /// Answers neighbours for two more hellos: those that began at the same time settle meanwhile.
  void stay();

 private:
  MeshLook(const Config& config, const std::vector<fabric::NetInterface>& all);
  const Config* config_;
  const std::vector<fabric::NetInterface>* all_;
  std::unique_ptr<ShortDiscovery> own_;  ///< null: the file or the relay node knows
};

/// Begins, settles within `wait`, looks and stays.  Hosts on which this runs at the same time see
/// each other.
Result<MeshSight> look_at_mesh(const Config& config, const std::vector<fabric::NetInterface>& all,
                               Duration wait);
/// Only if the relay node of this host knows; nothing is begun.
Result<MeshSight> ask_for_mesh(const Config& config);

}  // namespace nccl_ha::tools
