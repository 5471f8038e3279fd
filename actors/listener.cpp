#include "actors/listener.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "actors/connection/rails.h"
#include "actors/connection/receive_side.h"
#include "actors/connection_message.h"
#include "runtime/base/log.h"
#include "runtime/base/own_fd.h"
#include "runtime/engine/engine.h"

namespace nccl_ha {

ListenChannel::~ListenChannel() {
  while (take()) {
  }
}

bool ListenChannel::offer(std::shared_ptr<ReceiveEndpoint> endpoint) {
  std::lock_guard lock(waiting_mutex_);
  if (closed()) {
    return false;
  }
  ReceiveEndpoint* raw = endpoint.get();
  raw->self = std::move(endpoint);
  ReceiveEndpoint* head = ready_.load(std::memory_order_relaxed);
  do {
    raw->next_ready.store(head, std::memory_order_relaxed);
  } while (!ready_.compare_exchange_weak(head, raw, std::memory_order_release,
                                         std::memory_order_relaxed));
  return true;
}

std::shared_ptr<ReceiveEndpoint> ListenChannel::take() {
  if (ordered_ == nullptr) {
    ReceiveEndpoint* newest = ready_.exchange(nullptr, std::memory_order_acquire);
    while (newest != nullptr) {  // reverse: accept() hands out the oldest first
      ReceiveEndpoint* next = newest->next_ready.load(std::memory_order_relaxed);
      newest->next_ready.store(ordered_, std::memory_order_relaxed);
      ordered_ = newest;
      newest = next;
    }
  }
  if (ordered_ == nullptr) {
    return nullptr;
  }
  ReceiveEndpoint* first = ordered_;
  ordered_ = first->next_ready.load(std::memory_order_relaxed);
  return std::exchange(first->self, nullptr);
}

std::optional<ListenChannel::Guest> ListenChannel::enter(const Origin& origin, uint64_t* place) {
  std::lock_guard lock(waiting_mutex_);
  std::optional<Guest> out;
  if (waiting_.size() >= waiting_max) {
    const auto one = waiting_.begin() + static_cast<ptrdiff_t>(who_gives_way(waiting_, origin));
    out = one->guest;
    waiting_.erase(one);
  }
  *place = ++places_;
  waiting_.push_back({origin, *place, {}});
  return out;
}

void ListenChannel::attach(uint64_t place, const Guest& guest) {
  std::lock_guard lock(waiting_mutex_);
  const auto one = std::ranges::find(waiting_, place, &Waiting::place);
  if (one != waiting_.end()) {
    one->guest = guest;
  }
}

void ListenChannel::leave(uint64_t place) {
  std::lock_guard lock(waiting_mutex_);
  std::erase_if(waiting_, [&](const Waiting& one) { return one.place == place; });
  std::erase_if(begun_, [&](const Begun& one) { return one.place == place; });
}

std::optional<ListenChannel::Guest> ListenChannel::begin(uint64_t place, const Hello& hello,
                                                         const Guest& guest) {
  leave(place);
  std::lock_guard lock(waiting_mutex_);
  const RejoinPoint& peer = hello.rejoin;
  const auto known = std::ranges::find_if(begun_, [&](const Begun& one) {
    return peer.token && one.peer.token == peer.token && one.peer.process == peer.process;
  });
  if (known == begun_.end()) {
    begun_.push_back({peer, hello.attempt, place, guest});
    return std::nullopt;
  }
  if (hello.attempt <= known->attempt) {
    return guest;
  }
  return std::exchange(*known, {peer, hello.attempt, place, guest}).guest;
}

void ListenChannel::settle(uint64_t place) {
  std::lock_guard lock(waiting_mutex_);
  const auto one = std::ranges::find(begun_, place, &Begun::place);
  if (one != begun_.end()) {
    one->attempt = UINT32_MAX;
  }
}

void tell(Engine& engine, const ListenChannel::Guest& guest, ConnectionMessage what) {
  Message message{};
  message.to = guest.actor;
  message.kind = static_cast<uint32_t>(what);
  engine.worker(guest.worker).post(message);
}

void ListenChannel::fail(const Error& error) {
  if (!failing_.exchange(true, std::memory_order_acq_rel)) {
    failure_ = error;
    failed_.store(true, std::memory_order_release);
  }
}

Listener::Listener(fabric::Provider& provider, Engine& engine, int fd,
                   const fabric::RailDevices& devices, std::shared_ptr<ListenChannel> channel,
                   CablePorts ports)
    : provider_(provider),
      engine_(engine),
      fd_(fd),
      devices_(devices),
      ports_(std::move(ports)),
      channel_(std::move(channel)) {}

Listener::~Listener() { close_fd(fd_); }

void Listener::start(Context& context) {
  context_ = &context;
  auto acceptor = context.streams().adopt_listener(std::exchange(fd_, -1), this);
  if (!acceptor) {
    channel_->fail(acceptor.error());
    context.remove_actor(id());
    return;
  }
  acceptor_ = std::move(*acceptor);
}

void Listener::on(const Message& message) {
  if (message.kind == static_cast<uint32_t>(ListenerMessage::close)) {
    acceptor_.reset();
    context_->remove_actor(id());
  }
}

void Listener::stop() { acceptor_.reset(); }

Origin Listener::origin_of(int fd) {
  sockaddr_storage peer{};
  socklen_t length = sizeof peer;
  return getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) == 0 ? Origin::of(peer)
                                                                           : Origin{};
}

fabric::RailDevices Listener::devices_of(int fd) const {
  sockaddr_storage local{};
  socklen_t length = sizeof local;
  return getsockname(fd, reinterpret_cast<sockaddr*>(&local), &length) == 0
             ? ports_.of_stream(provider_, devices_, local)
             : devices_;
}

void Listener::on_accept(int fd) {
  uint64_t place = 0;
  if (const auto out = channel_->enter(origin_of(fd), &place)) {
    NHA_LOG_WARN_LIMITED("listener: too many unfinished connections, turning one out");
    tell(engine_, *out, ConnectionMessage::turned_out);
  }
  const fabric::RailDevices devices = devices_of(fd);
  const size_t worker = engine_.assign_worker(provider_.devices()[devices.first()].numa_node, 1.0);
  auto actor = make_receive_connection(provider_, engine_, worker, fd, devices, channel_, place);
  if (auto adopted = engine_.worker(worker).adopt(std::move(actor)); adopted) {
    channel_->attach(place, {worker, *adopted});
  } else {
    channel_->fail(adopted.error());
  }
}

void Listener::on_acceptor_error(const Error& error) {
  NHA_LOG_WARN_LIMITED("listener: accepting connections fails: {}", error.message());
}

}  // namespace nccl_ha
