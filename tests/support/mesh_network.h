// Discovery on many hosts in virtual time, with cables that are cut, lossy or slow, and switches.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "relay/discovery.h"
#include "runtime/base/random.h"
#include "tests/rig/sim/event_queue.h"

namespace nccl_ha::test {

/// Hosts are numbered from 0; each has an interface for each cable.  Equal seeds, equal runs.
class MeshNetwork {
 public:
  explicit MeshNetwork(uint64_t seed) : random_(seed) {}
  MeshNetwork(const MeshNetwork&) = delete;
  MeshNetwork& operator=(const MeshNetwork&) = delete;

  relay::Discovery::Timing timing;
  Duration delay = std::chrono::microseconds(30);
  double loss = 0;
  /// Of hosts that start from now on: they take part by what they hear (MeshLook).
  bool looks = false;
  /// Of whom they hear, by host: who is in one of the same communicators.  Of no entry: everybody.
  std::map<size_t, std::vector<uint64_t>> communicators;

  /// Adds hosts that are not on yet; the number of the first.
  size_t add_hosts(size_t count);
  /// The number of the cable.
  size_t add_cable(size_t one, size_t other, uint32_t speed_mbps = 200000);
  /// All of them are on it, each with an interface of its own, and no cut has an effect there.
  void add_switch(const std::vector<size_t>& hosts);
  void start(size_t host);
  void start_all(Duration within);
  /// Without a word.
  void kill(size_t host);
  /// Says goodbye first.
  void stop(size_t host);
  void cut(size_t cable, bool cut = true) { cables_[cable].cut = cut; }
  /// One direction only, from `host`.
  void cut_from(size_t cable, size_t host, bool cut = true);

  /// False: `limit` of virtual time went by before.  `done` is asked about `apart` apart.
  bool run_until(const std::function<bool()>& done, Duration limit,
                 Duration apart = std::chrono::milliseconds(5));
  void run(Duration time);
  Instant now() const { return now_; }

  /// It learns of the cables that it has now.
  void plug_again(size_t host);
  /// Something was asked of it from outside.
  void wake(size_t host) { wake_later(hosts_[host]); }
  relay::Discovery& host(size_t host) { return *hosts_[host].discovery; }
  relay::NodeId id(size_t host) const { return hosts_[host].id; }
  bool on(size_t host) const { return hosts_[host].discovery != nullptr; }
  size_t size() const { return hosts_.size(); }
  /// From the address of host `from`; nullopt: of none.
  void inject(size_t host, uint32_t interface, std::span<const std::byte> bytes,
              std::optional<size_t> from = std::nullopt);

  /// Each host that is on knows exactly the hosts and cables that it can reach, and of others the
  /// same as all those.
  bool converged();
  struct Cost {
    uint64_t packets = 0;
    uint64_t bytes = 0;
    size_t memory_max = 0;  ///< of one host
  };
  Cost cost() const;

 private:
  struct End {
    size_t host = 0;
    uint32_t interface = 0;
    bool cut = false;  ///< what it sends
  };
  struct Cable {
    std::vector<End> ends;
    bool is_switch = false;
    uint32_t speed_mbps = 0;
    bool cut = false;
  };
  struct Host : relay::DiscoveryOutput {
    void send(uint32_t interface, const fabric::SocketAddress* to,
              std::span<const std::byte> packet) override;
    MeshNetwork* network = nullptr;
    size_t number = 0;
    relay::NodeId id{};
    std::vector<std::pair<size_t, size_t>> plugs;  ///< cable and end, by interface - 1
    std::unique_ptr<relay::Discovery> discovery;   ///< null: off
    Instant wakes = Instant::max();
    uint64_t lives = 0;
  };
  void plug(Cable& cable, size_t host);
  void deliver(size_t host, uint32_t interface, size_t from, std::vector<std::byte> bytes);
  void wake_later(Host& host);
  void tick(Host& host);
  bool works(const Cable& cable) const;
  std::vector<size_t> reachable(size_t host) const;

  Random random_;
  Instant now_{std::chrono::seconds(1)};
  sim::EventQueue events_;
  std::vector<Host> hosts_;
  std::vector<Cable> cables_;
};

}  // namespace nccl_ha::test
