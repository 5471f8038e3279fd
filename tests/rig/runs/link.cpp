#include "tests/rig/runs/link.h"

#include <fmt/format.h>
#include <sys/eventfd.h>

#include <utility>

#include "runtime/base/check.h"

namespace nccl_ha::rig {
namespace {

using Table = SimPlugin::Table;

IpAddress address_of(sim::Ip ip) {
  const auto storage = sim::Endpoint{ip, 0}.to_sockaddr();
  return *IpAddress::from_sockaddr(reinterpret_cast<const sockaddr*>(&storage));
}

/// As NCCL numbers those of a process.
int number_of(const fabric::RailDevices& devices) { return static_cast<int>(devices.first()); }

}  // namespace

SimLink::SimLink(sim::World& world, sim::Process& from, sim::Process& to,
                 std::shared_ptr<ha::HintSource> hints)
    : world_(world), from_(from), to_(&to), from_plugin_(SimPlugin::of(world, from)) {
  listen();
  const bool managed = from.management != 0 && to.management != 0;
  if (hints == nullptr && !managed && from.devices.count == 1) {
    connect();
    return;
  }
  Dialling how = all_lines();
  how.hints = std::move(hints);
  dial(how);
}

SimLink::SimLink(sim::World& world, sim::Process& from, sim::Process& to, const Dialling& how)
    : world_(world), from_(from), to_(&to), from_plugin_(SimPlugin::of(world, from)) {
  listen(how.ports);
  dial(how);
}

SimLink::SimLink(sim::World& world, sim::Process& from, sim::Ip to, uint16_t port)
    : world_(world), from_(from), from_plugin_(SimPlugin::of(world, from)) {
  plugin::Handle handle;
  handle.port = port;
  handle.nonce = 1;
  handle.fabric = from.provider->devices()[from.devices.first()].kind;
  handle.addresses = {address_of(to)};
  plugin::write_handle(handle, handle_);
  connect();
}

SimLink::~SimLink() {
  if (send_comm_ != nullptr) {
    from_plugin_.close_at_end(&Table::close_send, send_comm_);
  }
  if (receive_comm_ != nullptr) {
    to_plugin_->close_at_end(&Table::close_recv, receive_comm_);
  }
  if (listen_comm_ != nullptr) {
    to_plugin_->close_at_end(&Table::close_listen, listen_comm_);
  }
}

void SimLink::listen(const CablePorts& ports) {
  to_plugin_ = &SimPlugin::of(world_, *to_);
  if (ports.devices.empty() && to_->devices.count == 1) {
    const auto result = to_plugin_->call(&Table::listen, to_plugin_->context(),
                                         number_of(to_->devices), handle_.data(), &listen_comm_);
    NHA_ASSERT(result == abi::NcclResult::success, "a simulated network has room");
  } else {
    make_listener(ports);
  }
  const auto& comm = *static_cast<plugin::ListenComm*>(listen_comm_);
  listen_ = comm.channel;
  if (to_->is_helped()) {
    // A kernel's socket listens at once, this network's when its actor was started.
    to_->engine->give_to_callers(comm.worker->context().worker_index());
    to_->engine->assist(*comm.worker);
  }
}

/// As listen(), at devices that the plugin does not know of.
void SimLink::make_listener(const CablePorts& ports) {
  plugin::Process& process = to_plugin_->process();
  Engine& engine = **process.open();
  plugin::Handle handle;
  handle.nonce = process.host().secrets().draw().told();
  handle.fabric = process.provider().devices()[to_->devices.first()].kind;
  handle.addresses = {address_of(to_->address)};
  auto comm = std::make_unique<plugin::ListenComm>(process.generation());
  comm->channel = std::make_shared<ListenChannel>(handle.nonce);
  const auto port = comm->open(engine, process.provider(), to_->devices, ports);
  NHA_ASSERT(port, "a simulated network has ports");
  handle.port = *port;
  plugin::write_handle(handle, handle_);
  listen_comm_ = comm.release();
}

SimLink::Dialling SimLink::all_lines() const {
  Dialling how;
  how.kind = from_.provider->devices()[0].kind;
  how.devices = from_.devices;
  const auto add_route = [&](sim::Ip own, sim::Ip there) {
    Route route;
    route.to = sim::Endpoint{there, 0}.to_sockaddr();
    route.from = sim::Endpoint{own, 0}.to_sockaddr();
    how.routes.push_back(route);
  };
  if (from_.management != 0 && to_->management != 0) {
    add_route(from_.management, to_->management);
  }
  for (size_t i = 0; i < from_.addresses.size(); ++i) {
    add_route(from_.addresses[i], to_->addresses[i]);
  }
  return how;
}

/// What connect() begins with where the plugin would choose otherwise; it is asked for the rest.
void SimLink::dial(const Dialling& how) {
  const plugin::Handle handle = *plugin::read_handle(handle_);
  plugin::Process& process = from_plugin_.process();
  SendOptions options;
  options.routes = how.routes;
  options.ports = how.ports;
  options.peer_kind = how.kind;
  options.relays = how.relays;
  options.nonce = handle.nonce;
  options.hints = how.hints;
  options.timeout = std::chrono::milliseconds(process.config().connect_timeout_ms);
  for (std::vector<Route>* routes : {&options.routes, &options.relays.routes}) {
    for (Route& route : *routes) {
      const auto to = sim::Endpoint::of(reinterpret_cast<const sockaddr*>(&route.to));
      route.to = sim::Endpoint{to.ip, handle.port}.to_sockaddr();
    }
  }
  Engine& engine = **process.open();
  const size_t index = engine.assign_worker(-1, 1.0);
  Worker& worker = engine.worker(index);
  send_ = std::make_shared<SendEndpoint>(process.next_domain(),
                                         process.provider().live_at(how.devices.first(), how.kind),
                                         worker, engine, how.devices);
  auto address = worker.open_address(4);
  auto actor = worker.adopt(
      make_send_connection(process.provider(), engine, index, send_, std::move(options)));
  NHA_ASSERT(actor && address, "a worker has room");
  send_->driver.attach(*actor, std::move(*address));
  plugin::set_handle_scratch(handle_, process.add_pending(send_));
}

/// NCCL's caller, who asks until there is a connection, or none to come.
void SimLink::connect() {
  const auto result =
      from_plugin_.call(&Table::connect, from_plugin_.context(), number_of(from_.devices),
                        handle_.data(), &send_comm_, nullptr);
  refused_ = result != abi::NcclResult::success;
  if (send_comm_ != nullptr) {
    send_ = static_cast<plugin::SendComm*>(send_comm_)->endpoint;
  } else if (send_ == nullptr) {
    send_ = from_plugin_.process().find_pending(plugin::handle_scratch(handle_));
  }
  if (send_ == nullptr) {
    send_ = std::make_shared<SendEndpoint>(0, fabric::Attachment{}, from_.engine->worker(0),
                                           *from_.engine);
    send_->channel.set_failed(
        fail(Errc::internal, fmt::format("connect() said {} at once", static_cast<int>(result))));
  }
}

void SimLink::accept() {
  static_cast<void>(to_plugin_->call(&Table::accept, listen_comm_, &receive_comm_, nullptr));
  if (receive_comm_ != nullptr) {
    receive_ = static_cast<plugin::ReceiveComm*>(receive_comm_)->endpoint;
  }
}

bool SimLink::step_connecting() {
  if (sender_calls() && send_comm_ == nullptr && !refused_) {
    connect();
  }
  if (accepts_ && listen_comm_ != nullptr && to_->engine && world_.calls(*to_) && !receive_) {
    accept();
  }
  send_was_ready_ = send_was_ready_ || send_->channel.phase() == Phase::ready;
  return receive_ && (send_comm_ != nullptr || refused_);
}

bool SimLink::wait_ready(const std::function<void()>& each_round) {
  return world_.run_until(
             [&] {
               if (each_round) {
                 each_round();
               }
               return step_connecting() || send_->channel.phase() == Phase::failed;
             },
             std::chrono::seconds(120)) &&
         connected() && send_->channel.phase() == Phase::ready;
}

bool SimLink::failed() const {
  return (sender_lives() && send_->channel.phase() == Phase::failed) ||
         (receive_ && receiver_lives() && receive_->channel.phase() == Phase::failed);
}

std::string SimLink::error() const {
  if (send_->channel.phase() == Phase::failed) {
    return send_->channel.failure().message();
  }
  return receive_ && receive_->channel.phase() == Phase::failed
             ? "receiver: " + receive_->channel.failure().message()
             : std::string("no error");
}

bool SimLink::sender_calls() const { return sender_lives() && world_.calls(from_); }
bool SimLink::receiver_calls() const { return receiver_lives() && world_.calls(*to_); }

void SimLink::close_sender() {
  if (sender_lives() && send_comm_ != nullptr) {
    static_cast<void>(from_plugin_.call(&Table::close_send, std::exchange(send_comm_, nullptr)));
    send_closed_ = true;
  }
}

void SimLink::close_receiver() {
  if (receiver_lives() && receive_comm_ != nullptr) {
    static_cast<void>(to_plugin_->call(&Table::close_recv, std::exchange(receive_comm_, nullptr)));
    receive_closed_ = true;
  }
}

void SimLink::close_listener() {
  if (to_ != nullptr && to_->engine && listen_comm_ != nullptr) {
    static_cast<void>(to_plugin_->call(&Table::close_listen, std::exchange(listen_comm_, nullptr)));
  }
}

const fabric::Registration* SimLink::register_memory(SimPlugin& plugin, void* comm, void* base,
                                                     size_t bytes, bool gpu) {
  static const int stands_for_memory = eventfd(0, EFD_CLOEXEC);  // a simulated device wants one
  void* memory = nullptr;
  const auto result = gpu ? plugin.call(&Table::reg_mr_dmabuf, comm, base, bytes, abi::ptr_cuda,
                                        uint64_t{0}, stands_for_memory, &memory)
                          : plugin.call(&Table::reg_mr, comm, base, bytes, abi::ptr_host, &memory);
  NHA_ASSERT(result == abi::NcclResult::success, "simulated devices take any memory");
  return static_cast<const fabric::Registration*>(memory);
}

bool SimLink::take_back(SimPlugin& plugin, void* comm, const fabric::Registration* memory) {
  return plugin.call(&Table::dereg_mr, comm, const_cast<fabric::Registration*>(memory)) ==
         abi::NcclResult::success;
}

const fabric::Registration* SimLink::register_send(void* base, size_t bytes, bool gpu) {
  return register_memory(from_plugin_, send_comm_, base, bytes, gpu);
}

const fabric::Registration* SimLink::register_receive(void* base, size_t bytes, bool gpu) {
  return register_memory(*to_plugin_, receive_comm_, base, bytes, gpu);
}

bool SimLink::take_back_send(const fabric::Registration* memory) {
  return !from_.engine || send_comm_ == nullptr || take_back(from_plugin_, send_comm_, memory);
}

bool SimLink::take_back_receive(const fabric::Registration* memory) {
  return !to_->engine || receive_comm_ == nullptr || take_back(*to_plugin_, receive_comm_, memory);
}

}  // namespace nccl_ha::rig
