// One connection between simulated processes, and what the plugin's entry points do with it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "actors/cable_ports.h"
#include "actors/connection/send_side.h"
#include "actors/endpoint.h"
#include "actors/listener.h"
#include "actors/route.h"
#include "ha/rail_policy.h"
#include "tests/rig/sim/world.h"

namespace nccl_ha::rig {

/// A listener at `to`, a connector at `from`.
class SimLink {
 public:
  SimLink(sim::World& world, sim::Process& from, sim::Process& to, uint16_t port,
          std::shared_ptr<ha::HintSource> hints = nullptr);
  ~SimLink();
  /// How a connector dials that is not to try one address after the other.
  struct Dialling {
    fabric::FabricKind kind{};
    fabric::RailDevices devices;
    std::vector<Route> routes;  ///< without the port
    CablePorts ports{};         ///< the listener's too
    SendOptions::Relays relays{};
  };
  SimLink(sim::World& world, sim::Process& from, sim::Process& to, uint16_t port,
          const Dialling& how);
  /// Makes the connector only, towards any address.
  SimLink(sim::World& world, sim::Process& from, sim::Ip to, uint16_t port);

  bool wait_ready(const std::function<void()>& each_round = {});
  /// What callers of connect() and accept() do; whether both have a connection.
  bool step_connecting();
  /// A side that lives has failed.
  bool failed() const;
  std::string error() const;
  SendChannel& sender() { return send_->channel; }
  ReceiveChannel& receiver() { return receive_->channel; }
  Driver& sender_driver() { return send_->driver; }
  Driver& receiver_driver() { return receive_->driver; }
  /// They carried traffic once.
  bool sender_was_ready() const { return send_was_ready_; }
  bool receiver_was_ready() const { return receive_ != nullptr; }
  bool accepted() const { return receive_ != nullptr; }
  ListenChannel& listener() const { return *listen_; }
  sim::World& world() { return world_; }
  sim::Process& from() { return from_; }
  sim::Process& to() { return *to_; }
  /// The caller of that side can call: its process runs, and it has not closed.
  bool sender_calls() const;
  bool receiver_calls() const;
  bool sender_lives() const { return from_.engine && !send_closed_; }
  bool receiver_lives() const { return to_->engine && !receive_closed_; }
  /// closeSend and closeRecv: nothing is called any more.
  void close_sender();
  void close_receiver();
  /// closeListen; what nobody has accepted ends.
  void close_listener();
  /// `gpu`: as the memory of a GPU would be.
  fabric::Registration register_send(void* base, size_t bytes, bool gpu = false);
  fabric::Registration register_receive(void* base, size_t bytes, bool gpu = false);
  /// deregMr; nothing where the process is dead.
  void take_back_send(const fabric::Registration& memory);
  void take_back_receive(const fabric::Registration& memory);

 private:
  static fabric::Registration register_memory(sim::Process& process, const Channel& channel,
                                              void* base, size_t bytes, bool gpu);
  uint64_t listen(uint16_t port, CablePorts ports = {});
  void dial(sim::Ip to, uint16_t port, uint64_t nonce);
  void dial(const Dialling& how, uint64_t nonce);
  sim::World& world_;
  sim::Process& from_;
  sim::Process* to_ = nullptr;
  std::shared_ptr<ha::HintSource> hints_;
  std::shared_ptr<ListenChannel> listen_;
  std::shared_ptr<SendEndpoint> send_;
  std::shared_ptr<ReceiveEndpoint> receive_;
  bool send_was_ready_ = false;
  bool send_closed_ = false;
  bool receive_closed_ = false;
};

}  // namespace nccl_ha::rig
