// The one engine of a process behind all ABI versions and communicators.
//
// Settings and devices are read at the first init and kept.  Threads exist only while something is
// listening or connected: the first listen or connect starts them, and they end with the last
// finalize, or when the library is unloaded (v6 to v10 know no finalize).
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "actors/door.h"
#include "actors/endpoint.h"
#include "actors/listen_channel.h"
#include "plugin/device_list.h"
#include "plugin/host.h"
#include "plugin/net.h"
#include "relay/process_mesh.h"
#include "runtime/base/config.h"
#include "runtime/engine/engine.h"
#include "runtime/fabric/provider.h"

namespace nccl_ha::plugin {

/// What NCCL holds as sendComm, recvComm and listenComm.  The kind comes first, so that a wrong
/// pointer kind is caught.
enum class CommKind : uint32_t { send = 0x73656e64, receive = 0x72656376, listen = 0x6c697374 };

struct Comm {
  Comm(CommKind k, uint64_t g) : kind(k), generation(g) {}
  CommKind kind;
  const uint64_t generation;  ///< of the engine it was made with
  std::mutex regions_mutex;
  /// Still registered; taken back at close.  NCCL's memory handles point at the elements.
  std::list<fabric::Registration> regions;
};

struct SendComm final : Comm {
  explicit SendComm(uint64_t g) : Comm(CommKind::send, g) {}
  std::shared_ptr<SendEndpoint> endpoint;
};

struct ReceiveComm final : Comm {
  explicit ReceiveComm(uint64_t g) : Comm(CommKind::receive, g) {}
  std::shared_ptr<ReceiveEndpoint> endpoint;
};

struct ListenComm final : Comm {
  explicit ListenComm(uint64_t g) : Comm(CommKind::listen, g) {}
  /// At the door of a worker that is chosen as for one more connection, whose load it has until it
  /// is closed.  The door's port.
  Result<uint16_t> open(Engine& of, fabric::Provider& provider, const fabric::RailDevices& devices,
                        const CablePorts& ports);
  std::shared_ptr<ListenChannel> channel;
  std::shared_ptr<Door> door;
  Worker* worker = nullptr;
  Engine* engine = nullptr;
};

class Process {
 public:
  explicit Process(Host& host) : host_(host) {}
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  /// The one whose thread calls.
  static Process& instance();

  /// Reads settings and devices, once; after a failure the next call tries again.  After the last
  /// context was removed it does so anew, where the devices are still the same: NCCL asks for their
  /// number once.
  /// `comm_id`: NCCL's random number of a communicator, the same for each of its ranks; 0: it tells
  /// none.  Where it succeeds there is one context more: before v11 for as long as the library is
  /// loaded.
  Result<void> initialize(abi::Logger logger, uint64_t comm_id);
  /// The last one stops the threads, whatever is open.
  void remove_context();
  /// Stops all threads whatever is open and gives back what the process held.  At unload.  In a
  /// fork nothing: what it has a copy of is left as it is.
  void shut_down();

  const Config& config() const { return config_; }
  /// What NCCL sees, of provider().devices().
  DeviceList& devices() { return devices_; }
  /// What control connections use, best first.
  std::shared_ptr<const fabric::InterfaceTable::List> interfaces() const {
    return provider_->interfaces();
  }
  size_t device_count() const { return provider_ ? devices_.count() : 0; }
  /// The same and, where this process is part of a mesh, those for management, which no data goes
  /// over: hosts without a cable between them meet there.
  std::vector<fabric::NetInterface> control_interfaces() const;
  relay::ProcessMesh& mesh() { return *mesh_; }
  /// The interface of interfaces() whose addresses come first for control connections.
  size_t control_interface(const fabric::NetDevice& device) const {
    return oob_interface_.value_or(device.control_interface);
  }

  /// HA_NCCL_OOB_IF: control connections begin at one interface, whatever device theirs are.
  bool streams_begin_elsewhere() const { return oob_interface_.has_value(); }

  /// Starts the engine if it is not running and counts one user.
  Result<Engine*> open();
  /// For who is one of its users already.
  Result<Engine*> engine();
  /// One user less.
  void close();
  /// Distinguishes engines that may have lived at the same address; 0 while none runs.
  uint64_t generation() const { return generation_.load(std::memory_order_acquire); }
  fabric::Provider& provider() { return *provider_; }
  const fabric::Provider& provider() const { return *provider_; }

  uint64_t next_domain() { return next_domain_.fetch_add(1, std::memory_order_relaxed); }

  // Pending connects, keyed by the number in the handle's scratch bytes.  Those that have failed,
  // and that nobody has asked for since for as long as a connect may take, end with the next one.
  uint64_t add_pending(std::shared_ptr<SendEndpoint> endpoint);
  std::shared_ptr<SendEndpoint> find_pending(uint64_t id);
  void remove_pending(uint64_t id);

  // Connects that wait until it is known which way leads to the peer, by numbers of the same kind.
  uint64_t add_waiting(Instant until);
  std::optional<Instant> find_waiting(uint64_t id);
  void remove_waiting(uint64_t id);

  Host& host() const { return host_; }

 private:
  Result<void> initialize_locked(abi::Logger logger);
  Result<void> begin_locked();
  void settle_owner_locked();
  void stop_locked();
  std::vector<std::shared_ptr<SendEndpoint>> take_abandoned_locked();
  uint64_t next_id();
  /// Of provider.interfaces(); nothing: none is named.
  static Result<std::optional<size_t>> choose_oob_interface(const Config& config,
                                                            const fabric::Provider& provider);

  Host& host_;
  std::mutex mutex_;
  bool initialized_ = false;
  Config config_;
  std::shared_ptr<relay::JobKeys> job_;       ///< null: of no communicator yet
  std::unique_ptr<relay::ProcessMesh> mesh_;  ///< outlives the provider and the engine
  std::unique_ptr<fabric::Provider> provider_;
  std::vector<fabric::NetInterface> management_;
  DeviceList devices_;
  std::optional<size_t> oob_interface_;  ///< HA_NCCL_OOB_IF
  std::unique_ptr<Engine> engine_;
  size_t users_ = 0;
  std::atomic<uint64_t> generation_{0};
  uint64_t last_generation_ = 0;
  size_t contexts_ = 0;
  std::atomic<uint64_t> next_domain_{1};
  uint64_t next_pending_ = 0;
  struct Pending {
    std::shared_ptr<SendEndpoint> endpoint;
    Instant asked{};  ///< the last time
  };
  std::unordered_map<uint64_t, Pending> pending_;
  std::unordered_map<uint64_t, Instant> waiting_;
};

}  // namespace nccl_ha::plugin
