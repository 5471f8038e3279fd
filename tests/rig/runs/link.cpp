#include "tests/rig/runs/link.h"

#include <sys/eventfd.h>

#include <atomic>
#include <utility>

#include "actors/connection/send_side.h"

namespace nccl_ha::rig {
namespace {

std::atomic<uint64_t> next_domain{1};

}  // namespace

SimLink::SimLink(sim::World& world, sim::Process& from, sim::Process& to, uint16_t port,
                 std::shared_ptr<ha::HintSource> hints)
    : world_(world), from_(from), to_(&to), hints_(std::move(hints)) {
  dial(to.address, port, listen(port));
}

SimLink::SimLink(sim::World& world, sim::Process& from, sim::Process& to, uint16_t port,
                 const Dialling& how)
    : world_(world), from_(from), to_(&to) {
  Dialling at_port = how;
  for (std::vector<Route>* routes : {&at_port.routes, &at_port.relays.routes}) {
    for (Route& route : *routes) {
      route.to =
          sim::Endpoint{sim::Endpoint::of(reinterpret_cast<const sockaddr*>(&route.to)).ip, port}
              .to_sockaddr();
    }
  }
  dial(at_port, listen(port, how.ports));
}

SimLink::SimLink(sim::World& world, sim::Process& from, sim::Ip to, uint16_t port)
    : world_(world), from_(from) {
  dial(to, port, 1);
}

SimLink::~SimLink() = default;

/// The nonce that a connector has to show.
uint64_t SimLink::listen(uint16_t port, CablePorts ports) {
  const uint64_t nonce = world_.random().next();
  listen_ = std::make_shared<ListenChannel>(nonce);
  auto listener = std::make_unique<Listener>(*to_->provider, *to_->engine,
                                             world_.network().listen(to_->address, port),
                                             to_->devices, listen_, std::move(ports));
  auto actor = to_->engine->worker(0).adopt(std::move(listener));
  if (actor) {
    listen_->attach(*actor);
  }
  if (to_->is_helped()) {
    // A kernel's socket listens at once, this network's when its actor was started.
    to_->engine->give_to_callers(0);
    to_->engine->assist(to_->engine->worker(0));
  }
  return nonce;
}

void SimLink::dial(sim::Ip to, uint16_t port, uint64_t nonce) {
  Dialling how;
  how.kind = from_.provider->devices()[0].kind;
  how.devices = from_.devices;
  const auto add_route = [&](sim::Ip own, sim::Ip there) {
    Route route;
    route.to = sim::Endpoint{there, port}.to_sockaddr();
    route.from = sim::Endpoint{own, 0}.to_sockaddr();
    how.routes.push_back(route);
  };
  if (to_ != nullptr && from_.management != 0 && to_->management != 0) {
    add_route(from_.management, to_->management);
  }
  for (size_t i = 0; i < from_.addresses.size(); ++i) {
    add_route(from_.addresses[i], to_ == nullptr ? to : to_->addresses[i]);
  }
  dial(how, nonce);
}

void SimLink::dial(const Dialling& how, uint64_t nonce) {
  SendOptions options;
  options.routes = how.routes;
  options.ports = how.ports;
  options.peer_kind = how.kind;
  options.relays = how.relays;
  options.nonce = nonce;
  options.hints = hints_;
  Engine& engine = *from_.engine;
  const size_t index = engine.assign_worker(-1, 1.0);
  Worker& worker = engine.worker(index);
  options.timeout = std::chrono::milliseconds(worker.context().config().connect_timeout_ms);
  send_ = std::make_shared<SendEndpoint>(next_domain.fetch_add(1),
                                         fabric::Attachment{how.devices.first(), how.kind}, worker,
                                         engine, how.devices);
  auto address = worker.open_address(4);
  auto actor =
      worker.adopt(make_send_connection(*from_.provider, engine, index, send_, std::move(options)));
  if (actor && address) {
    send_->driver.attach(*actor, std::move(*address));
  }
}

bool SimLink::step_connecting() {
  if (sender_calls() && send_->channel.phase() == Phase::connecting) {
    send_->driver.turn();
  }
  if (listen_ && to_->engine && world_.calls(*to_) && !receive_) {
    receive_ = listen_->take();
    if (!receive_) {
      to_->engine->assist_all();
      receive_ = listen_->take();
    }
  }
  send_was_ready_ = send_was_ready_ || send_->channel.phase() == Phase::ready;
  return receive_ && send_->channel.phase() != Phase::connecting;
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
         receive_ && send_->channel.phase() == Phase::ready;
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
  if (sender_lives()) {
    send_->driver.close();
    send_closed_ = true;
  }
}

void SimLink::close_receiver() {
  if (receiver_lives() && receive_) {
    receive_->driver.close();
    receive_closed_ = true;
  }
}

void SimLink::close_listener() {
  if (to_ != nullptr && to_->engine && listen_) {
    listen_->close();
    while (auto endpoint = listen_->take()) {
      endpoint->driver.close();
    }
    to_->engine->worker(0).post(
        {listen_->actor(), static_cast<uint32_t>(ListenerMessage::close), 0});
  }
}

fabric::Registration SimLink::register_memory(sim::Process& process, const Channel& channel,
                                              void* base, size_t bytes, bool gpu) {
  static const int stands_for_memory = eventfd(0, EFD_CLOEXEC);  // a simulated device wants one
  fabric::Provider& provider = *process.provider;
  fabric::Registration memory =
      gpu ? *provider.add_dmabuf(channel.attachment(), channel.domain(), base, bytes, 0,
                                 stands_for_memory)
          : *provider.add_memory(channel.attachment(), channel.domain(), base, bytes, false);
  provider.register_on_rails(channel.devices(), channel.domain(), memory);
  return memory;
}

fabric::Registration SimLink::register_send(void* base, size_t bytes, bool gpu) {
  return register_memory(from_, send_->channel, base, bytes, gpu);
}

fabric::Registration SimLink::register_receive(void* base, size_t bytes, bool gpu) {
  return register_memory(*to_, receive_->channel, base, bytes, gpu);
}

void SimLink::take_back_send(const fabric::Registration& memory) {
  if (from_.engine) {
    static_cast<void>(from_.provider->remove_memory(memory));
  }
}

void SimLink::take_back_receive(const fabric::Registration& memory) {
  if (to_->engine) {
    static_cast<void>(to_->provider->remove_memory(memory));
  }
}

}  // namespace nccl_ha::rig
