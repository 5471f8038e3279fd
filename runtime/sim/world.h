// A simulation: processes with real engines and actors on one network and one virtual clock.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "runtime/engine.h"
#include "runtime/fabric/provider.h"
#include "runtime/sim/network.h"
#include "runtime/sim/rdma.h"

namespace nccl_ha::sim {

/// A simulated process on a host.
struct Process {
  Ip address = 0;  ///< the first of them, from which its streams come
  std::vector<Ip> addresses;
  std::vector<RdmaNic*> nics;  ///< beneath the first addresses
  std::unique_ptr<fabric::Provider> provider;
  std::unique_ptr<Engine> engine;
};

class World {
 public:
  explicit World(uint64_t seed);
  ~World();

  Network& network() { return network_; }
  RdmaNic::Conditions& rdma() { return rdma_; }
  Random& random() { return random_; }
  Instant now() const { return network_.now(); }

  /// A process with an interface for each address; those of one interface number on all hosts are
  /// one subnet of 16 bits.  The first `rdma` of them are RDMA NICs, and then the process uses
  /// RDMA. The World owns it; the pointer stays valid.
  Result<Process*> add_process(const std::vector<Ip>& addresses, const Config& config,
                               size_t rdma = 0);
  Result<Process*> add_process(Ip address, const Config& config) {
    return add_process(std::vector{address}, config);
  }
  /// The process dies without a word and its host with it.
  void kill(Process& process);

  /// Turns all workers until `done` says so or `limit` of virtual time has passed; false then. When
  /// nobody has anything to do, time jumps to whatever comes next.
  bool run_until(const std::function<bool()>& done, Duration limit);

  /// Rounds of turns so far; with the network's trace, what two equal runs have in common.
  uint64_t rounds() const { return rounds_; }

 private:
  ManualClock clock_;
  Random random_;
  Network network_;
  RdmaNic::Conditions rdma_;
  std::vector<std::unique_ptr<RdmaNic>> nics_;  // processes use them
  std::vector<std::unique_ptr<Process>> processes_;
  uint64_t rounds_ = 0;
};

}  // namespace nccl_ha::sim
