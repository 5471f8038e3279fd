// A simulation: processes with real engines and actors on one network and one virtual clock.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/engine/engine.h"
#include "runtime/fabric/provider.h"
#include "tests/rig/sim/network.h"
#include "tests/rig/sim/rdma.h"
#include "tests/rig/sim/secrets.h"

namespace nccl_ha::sim {

/// What a simulated process has loaded, and what then has its engine and its provider.
class Program {
 public:
  /// Before those end that it has not taken.
  virtual ~Program() = default;
  /// The process ends, and so does its engine.
  virtual void end() = 0;
};

/// A simulated process on a host.
struct Process {
  Ip address = 0;  ///< the first of them, from which its streams come
  std::vector<Ip> addresses;
  std::vector<RdmaNic*> nics;   ///< beneath the first addresses, the same one for all its ports
  fabric::RailDevices devices;  ///< of its connections
  std::vector<std::weak_ptr<fabric::verbs::Device>> conducted;  ///< its RDMA devices
  Instant conductors_due{};                                     ///< when one of them is done next
  Ip management = 0;  ///< where its streams go first, if not 0; carries nothing else
  std::unique_ptr<SimSecrets> key_secrets;  ///< of the provider's memory
  Config config;
  std::vector<fabric::NetInterface> interfaces;
  std::unique_ptr<fabric::Provider> own_provider;  ///< null: the program has taken it
  fabric::Provider* provider = nullptr;
  std::unique_ptr<SimSecrets> secrets;
  std::unique_ptr<Engine> own_engine;       ///< null: the program has taken it, or it is dead
  Engine* engine = nullptr;                 ///< null: it is dead
  std::unique_ptr<Program> program;         ///< null: nothing was loaded
  std::shared_ptr<ProcessTie> tie;          ///< to what its kernel gave it
  Instant paused_until{};                   ///< none of its threads runs before
  std::vector<Instant> worker_waits_until;  ///< of each worker: gets no processor before
  Instant callers_away_until{};             ///< nobody calls its engine before
  Instant fallback_due{};  ///< inline mode: the fallback thread rests until then, or until woken
  bool fallback_sleeps = false;      ///< and what arrives wakes it
  std::vector<uint64_t> seen_turns;  ///< of each worker, after the last round
  std::vector<bool> called_at;       ///< callers turned that worker in this round
  bool called = false;               ///< any of them
  std::vector<Instant> thread_due;   ///< of each worker whose callers help: when its thread looks
  bool is_inline() const { return engine && engine->mode() == Engine::Mode::inline_turns; }
  bool is_helped() const { return engine && engine->mode() == Engine::Mode::threads; }
};

class World {
 public:
  explicit World(uint64_t seed);
  ~World();

  /// Kinds of fabric that processes made from now on have besides the standard ones; whether their
  /// devices are used is then for HA_NCCL_FABRIC to say.
  std::vector<fabric::Provider::Kind> kinds;
  /// In processes made from now on with progress threads callers turn the workers where a thread
  /// does not run, and at this part of its turns it is made to look so.  0: threads only.
  double callers_help = 0;

  Network& network() { return network_; }
  RdmaNic::Conditions& rdma() { return rdma_; }
  /// Of the rules of devices and their memory; empty: there was none.
  const std::string& violation() const {
    return rdma_.violation.empty() ? network_.gpu_memory().violation() : rdma_.violation;
  }
  Random& random() { return random_; }
  Instant now() const { return network_.now(); }

  /// A process with an interface for each address; those of one interface number on all hosts are
  /// one subnet of 16 bits.  The first `rdma` of them are ports of RDMA NICs with these traits, and
  /// then the process uses RDMA, as datagrams of those where HA_NCCL_FABRIC=ud says so.  The World
  /// owns it; the pointer stays valid.
  Result<Process*> add_process(const std::vector<Ip>& addresses, const Config& config,
                               size_t rdma = 0, const DeviceTraits& traits = {});
  Result<Process*> add_process(Ip address, const Config& config) {
    return add_process(std::vector{address}, config);
  }
  /// The process ends by itself: its connections say goodbye.
  static void end_process(Process& process);
  /// The process is killed: its kernel closes what it leaves behind, its ports refuse.  Its RDMA
  /// NICs are taken to be its own.
  void kill_process(Process& process);
  /// The host of the process loses power: it and all others there are gone without a word.
  void power_off(Process& process);
  /// The host can be reached again; nothing runs on it, and its kernel knows of no connection.
  void power_on(Process& process);
  /// The process hears that its interface of that address has got or lost its link.
  void tell_link(const Process& process, Ip address, bool up);
  /// The device beneath the process's address of that number comes back after
  /// RdmaNic::fail_for_good(), for who looks for it.
  void bring_back(Process& process, size_t number);
  /// The process gets no processor until then (SIGSTOP, a busy host): its workers make no turn,
  /// while its host's kernel and NICs go on.  A later call replaces an earlier one.
  void pause(Process& process, Instant until);
  /// One of its workers gets no processor for a while.
  void starve(Process& process, size_t worker, Duration time);
  /// Whoever calls its engine is busy elsewhere for a while.
  void pause_callers(Process& process, Duration time);
  bool runs(const Process& process) const {
    return process.engine != nullptr && now() >= process.paused_until;
  }
  /// Whether threads that call its engine do so now.
  bool calls(const Process& process) const {
    return runs(process) && now() >= process.callers_away_until;
  }

  /// Turns all workers until `done` says so or `limit` of virtual time has passed; false then. When
  /// nobody has anything to do, time jumps to whatever comes next.  Also false when the simulation
  /// goes round without getting anywhere: livelock() tells.
  bool run_until(const std::function<bool()>& done, Duration limit);
  /// Empty: there was none.
  const std::string& livelock() const { return livelock_; }

  /// Rounds of turns so far; with the network's trace, what two equal runs have in common.
  uint64_t rounds() const { return rounds_; }

 private:
  ManualClock clock_;
  Random random_;
  Network network_;
  RdmaNic::Conditions rdma_;
  std::vector<std::unique_ptr<RdmaNic>> nics_;  // processes use them
  std::vector<std::unique_ptr<Process>> processes_;
  Result<std::vector<fabric::verbs::UsablePort>> open_nic(Process& process, RdmaNic& nic,
                                                          const Config& config);
  std::vector<fabric::verbs::UsablePort> find_successor(Process& process, const std::string& name);
  bool awake(const Process& process, size_t worker) const {
    return runs(process) && now() >= process.worker_waits_until[worker];
  }
  /// Calls that take long keep the worker from its next turn.
  size_t turn(Process& process, size_t worker);
  bool turn_fallback(Process& process);
  void turn_conductors();
  size_t turn_workers();
  size_t turn_helped(Process& process, size_t worker);
  bool turns_soon(const Process& process, size_t worker) const;
  bool all_idle();
  Instant next_moment(Instant limit);
  void observe_callers();
  static void remember_turns(Process& process);
  bool goes_round(uint64_t rounds_here, bool fruitless);

  uint64_t rounds_ = 0;
  uint64_t fruitless_rounds_ = 0;  ///< in a row, in which nobody did what was due
  std::string livelock_;
};

}  // namespace nccl_ha::sim
