// The hosts of a simulated mesh: on each one process with discovery, a relay node and connections.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "relay/discovery_actor.h"
#include "relay/mesh_routes.h"
#include "relay/provider_hops.h"
#include "relay/relay_node.h"
#include "tests/rig/runs/link.h"
#include "tests/rig/runs/mesh_links.h"
#include "tests/rig/runs/mesh_scenario.h"
#include "tests/rig/runs/traffic.h"

namespace nccl_ha::rig {

class MeshStage {
 public:
  MeshStage(const MeshScenario& scenario, std::function<void(const std::string&)> trace);
  ~MeshStage();
  MeshStage(const MeshStage&) = delete;
  MeshStage& operator=(const MeshStage&) = delete;

  const MeshScenario& scenario() const { return scenario_; }
  sim::World& world() { return world_; }
  Instant now() const { return world_.now(); }
  void tell(const std::string& what) const {
    if (trace_) {
      trace_(what);
    }
  }
  void later(Duration in, std::function<void()> what) {
    world_.network().call_at(now() + in, std::move(what));
  }

  // hosts and cables
  static relay::NodeId id(size_t host) { return relay::NodeId{host + 1}; }
  sim::Process* process(size_t host) { return hosts_[host].process; }  ///< null: off
  /// Null: it is off.  Of that life of its process.
  const relay::RelayNode* node(size_t host) const { return hosts_[host].node; }
  const relay::MeshRoutes& routes(size_t host) const { return *hosts_[host].routes; }
  void start(size_t host);
  void kill(size_t host);
  /// SIGTERM: its sessions end within that time, and then its process.
  void drain(size_t host, Duration within);
  /// In one direction or both.
  void set_cable(size_t cable, bool there, bool back);
  /// The hosts at its ends hear that it has got or lost its link.
  void tell_link(size_t cable, bool up);
  /// Both directions take that much longer.
  void slow_cable(size_t cable, Duration delay);
  bool is_on(size_t host) const { return hosts_[host].process != nullptr; }

  // connections
  /// Begins those whose way is known by now.  True when all are ready, or have failed.
  bool step_connecting();
  /// It has begun, and over a cable.
  bool is_over_cable(size_t link) const { return over_cable_[link]; }
  std::vector<std::unique_ptr<SimLink>>& links() { return links_; }
  std::vector<std::unique_ptr<Traffic>>& traffic() { return traffic_; }
  void make_traffic(const std::function<double()>& released);
  /// They are closed and gone; relays know nothing of them soon.
  void end_links();
  /// What each host knows of the mesh.
  void tell_views() const;
  /// Both ends of each cable that works are neighbours, where both take part.
  bool neighbours_know();

  struct Seen {
    uint64_t sessions = 0;  ///< that relays have opened
    uint64_t refused = 0;
    uint64_t bytes = 0;         ///< that relays have passed on
    uint64_t held_back = 0;     ///< times that a relay's limit of what is under way was reached
    uint64_t stalls = 0;        ///< times that what a path had under way was set aside
    uint64_t ways_refused = 0;  ///< by paths that did not come about
    uint64_t over_relays = 0;   ///< connections
    uint64_t both_ways = 0;     ///< of them, those with load on two ways at once
  };
  /// Of all relay nodes that there were.
  Seen seen() const;

 private:
  class Hops;
  struct Host {
    std::vector<size_t> cables;
    std::vector<sim::Ip> addresses;
    std::shared_ptr<relay::TopologyBoard> board;
    std::shared_ptr<relay::MeshRoutes> routes;
    std::shared_ptr<Hops> next;
    std::vector<std::unique_ptr<relay::ProviderHops>> hops;  ///< of each life of its process
    sim::Process* process = nullptr;
    relay::RelayNode* node = nullptr;                  ///< its engine's
    const relay::DiscoveryActor* discovery = nullptr;  ///< its engine's
    ActorId node_actor;
    ActorId discovery_actor;
    std::shared_ptr<relay::JobKeys> job;  ///< null: anybody is heard
    bool seeks = false;                   ///< somebody out of reach, in this life
    uint32_t lives = 0;
    bool ending = false;  ///< it drains
  };
  static sim::Ip address(size_t cable, size_t host) {
    return sim::ip(10, static_cast<uint8_t>(cable), 0, static_cast<uint8_t>(host + 1));
  }
  static sim::Ip management(size_t host) {
    return sim::ip(11, 0, 0, static_cast<uint8_t>(host + 1));
  }
  std::vector<IpAddress> addresses_of(size_t host) const;
  bool begin_link(size_t number);
  SimLink::Dialling dialling(size_t from, size_t to, bool relayed);
  void note_end(Host& host);
  Result<ActorId> make_node(size_t number,
                            const std::function<Result<ActorId>(std::unique_ptr<Actor>)>& adopt);

  const MeshScenario scenario_;
  const std::function<void(const std::string&)> trace_;
  const std::shared_ptr<KeyFile> key_;  ///< the cluster's; null: there is none
  std::vector<Host> hosts_;             // actors use what is in it
  Seen ended_;                          ///< of processes that are gone
  SimMeshPlugs plugs_;
  sim::World world_;
  std::vector<std::unique_ptr<SimLink>> links_;
  std::vector<std::unique_ptr<Traffic>> traffic_;
  std::vector<bool> over_cable_;  ///< of each connection
};

}  // namespace nccl_ha::rig
