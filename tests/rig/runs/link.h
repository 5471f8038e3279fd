// One connection between simulated processes, over the plugin that they have loaded.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>

#include "actors/cable_ports.h"
#include "actors/connection/send_side.h"
#include "actors/endpoint.h"
#include "actors/listen_channel.h"
#include "actors/route.h"
#include "ha/rail_policy.h"
#include "plugin/handle.h"
#include "tests/rig/runs/plugin.h"
#include "tests/rig/sim/world.h"

namespace nccl_ha::rig {

/// A listen at `to`, a connector at `from`, and the callers of both.
class SimLink {
 public:
  SimLink(sim::World& world, sim::Process& from, sim::Process& to,
          std::shared_ptr<ha::HintSource> hints = nullptr);
  /// Whatever is open then is closed when its process has ended.
  ~SimLink();
  SimLink(const SimLink&) = delete;
  SimLink& operator=(const SimLink&) = delete;
  /// How a connector dials where the plugin would choose otherwise, as it knows nothing of what is
  /// simulated: meshes, networks for management, agents, several rails of one device.
  struct Dialling {
    fabric::FabricKind kind{};
    fabric::RailDevices devices;
    std::vector<Route> routes;  ///< without the port
    CablePorts ports{};         ///< the listen's too
    SendOptions::Relays relays{};
    std::shared_ptr<ha::HintSource> hints{};
  };
  SimLink(sim::World& world, sim::Process& from, sim::Process& to, const Dialling& how);
  /// Makes the connector only, towards any address.
  SimLink(sim::World& world, sim::Process& from, sim::Ip to, uint16_t port);

  /// Nobody calls accept().
  void leave_unaccepted() { accepts_ = false; }
  bool wait_ready(const std::function<void()>& each_round = {});
  /// What callers of connect() and accept() do; whether both have been answered.
  bool step_connecting();
  /// connect() has.
  bool answered() const { return send_comm_ != nullptr || send_closed_ || refused_; }
  /// Both have a connection.
  bool connected() const { return send_comm_ != nullptr && receive_ != nullptr; }
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
  /// Of the worker that listens.
  const Door& door() const { return *static_cast<plugin::ListenComm*>(listen_comm_)->door; }
  /// What connect() is given.
  plugin::Handle handle() const { return *plugin::read_handle(handle_); }
  sim::World& world() { return world_; }
  sim::Process& from() { return from_; }
  sim::Process& to() { return *to_; }
  /// The plugins of both, and what their callers have; null comms: not yet, or closed.
  SimPlugin& from_plugin() { return from_plugin_; }
  SimPlugin& to_plugin() { return *to_plugin_; }
  void* send_comm() const { return send_comm_; }
  void* receive_comm() const { return receive_comm_; }
  /// The caller of that side can call: its process runs, and it has not closed.
  bool sender_calls() const;
  bool receiver_calls() const;
  bool sender_lives() const { return from_.engine && !send_closed_; }
  bool receiver_lives() const { return to_->engine && !receive_closed_; }
  /// closeSend, closeRecv and closeListen: nothing is called any more.
  void close_sender();
  void close_receiver();
  void close_listener();
  /// regMr, or regMrDmaBuf where it is as the memory of a GPU would be.
  const fabric::Registration* register_send(void* base, size_t bytes, bool gpu = false);
  const fabric::Registration* register_receive(void* base, size_t bytes, bool gpu = false);
  /// deregMr; nothing where the process is dead, or the connection was closed.  False: it failed.
  [[nodiscard]] bool take_back_send(const fabric::Registration* memory);
  [[nodiscard]] bool take_back_receive(const fabric::Registration* memory);

 private:
  static const fabric::Registration* register_memory(SimPlugin& plugin, void* comm, void* base,
                                                     size_t bytes, bool gpu);
  static bool take_back(SimPlugin& plugin, void* comm, const fabric::Registration* memory);
  void listen(const CablePorts& ports = {});
  void make_listener(const CablePorts& ports);
  void dial(const Dialling& how);
  Dialling all_lines() const;
  void connect();
  void accept();

  sim::World& world_;
  sim::Process& from_;
  sim::Process* to_ = nullptr;
  SimPlugin& from_plugin_;
  SimPlugin* to_plugin_ = nullptr;
  /// What the caller of connect() has of the listen.
  alignas(8) std::array<std::byte, plugin::handle_bytes> handle_{};
  void* listen_comm_ = nullptr;
  void* send_comm_ = nullptr;
  void* receive_comm_ = nullptr;
  // What is behind them, which is looked at.
  std::shared_ptr<ListenChannel> listen_;
  std::shared_ptr<SendEndpoint> send_;
  std::shared_ptr<ReceiveEndpoint> receive_;
  bool accepts_ = true;
  bool refused_ = false;  ///< connect() has failed
  bool send_was_ready_ = false;
  bool send_closed_ = false;
  bool receive_closed_ = false;
};

}  // namespace nccl_ha::rig
