#include "actors/listen_channel.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace nccl_ha {
namespace {

/// Takes the place of the newest where nothing is offered any more.
ReceiveEndpoint* closed_mark() {
  alignas(ReceiveEndpoint) static std::byte mark{};
  return reinterpret_cast<ReceiveEndpoint*>(&mark);
}

}  // namespace

ListenChannel::~ListenChannel() {
  while (take()) {
  }
}

bool ListenChannel::offer(const std::shared_ptr<ReceiveEndpoint>& endpoint) {
  ReceiveEndpoint* raw = endpoint.get();
  raw->self = endpoint;
  ReceiveEndpoint* head = ready_.load(std::memory_order_relaxed);
  while (head != closed_mark()) {
    raw->next_ready.store(head, std::memory_order_relaxed);
    if (ready_.compare_exchange_weak(head, raw, std::memory_order_release,
                                     std::memory_order_relaxed)) {
      return true;
    }
  }
  raw->self.reset();
  return false;
}

/// Puts what is ready into order, and leaves `left` behind for who offers next.
void ListenChannel::collect(ReceiveEndpoint* left) {
  const auto behind = static_cast<ptrdiff_t>(ordered_.size());
  ReceiveEndpoint* newest = ready_.exchange(left, std::memory_order_acquire);
  while (newest != nullptr) {  // reverse: accept() hands out the oldest first
    ReceiveEndpoint* next = newest->next_ready.load(std::memory_order_relaxed);
    ordered_.insert(ordered_.begin() + behind, std::exchange(newest->self, nullptr));
    newest = next;
  }
}

std::shared_ptr<ReceiveEndpoint> ListenChannel::take() {
  if (ordered_.empty() && ready_.load(std::memory_order_relaxed) != closed_mark()) {
    collect(nullptr);
  }
  if (ordered_.empty()) {
    return nullptr;
  }
  auto first = std::move(ordered_.front());
  ordered_.pop_front();
  return first;
}

void ListenChannel::close() {
  if (ready_.load(std::memory_order_relaxed) != closed_mark()) {
    collect(closed_mark());
  }
}

std::optional<ActorId> ListenChannel::begin(const Hello& hello, ActorId own) {
  const RejoinPoint& peer = hello.rejoin;
  const auto known = std::ranges::find_if(begun_, [&](const Begun& one) {
    return peer.token && one.peer.token == peer.token && one.peer.process == peer.process;
  });
  if (known == begun_.end()) {
    begun_.push_back({peer, hello.attempt, own});
    return std::nullopt;
  }
  if (hello.attempt <= known->attempt) {
    return own;
  }
  return std::exchange(*known, {peer, hello.attempt, own}).actor;
}

void ListenChannel::settle(ActorId own) {
  const auto one = std::ranges::find(begun_, own, &Begun::actor);
  if (one != begun_.end()) {
    one->attempt = UINT32_MAX;
  }
}

void ListenChannel::leave(ActorId own) {
  std::erase_if(begun_, [&](const Begun& one) { return one.actor == own; });
}

void ListenChannel::fail(const Error& error) {
  if (!failed()) {
    failure_ = error;
    failed_.store(true, std::memory_order_release);
  }
}

}  // namespace nccl_ha
