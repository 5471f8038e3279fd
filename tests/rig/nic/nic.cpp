#include "tests/rig/nic/nic.h"

#include <poll.h>
#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace nccl_ha::emulated {
namespace {

// Less than usual timeouts of queue pairs: most posts need not wake the thread to have it look.
constexpr uint64_t idle_ns = 50'000'000;
constexpr int packets_per_turn = 64;

}  // namespace

/// Never destroyed: its thread is there until the process ends.
Nic& Nic::instance() {
  static Nic* only = new Nic;
  return *only;
}

Nic::Nic()
    : settings_(Settings::parse(std::getenv("NHA_NIC"))),
      control_(settings_.state),
      wire_(control_) {
  const auto host = static_cast<unsigned>(settings_.host != 0 ? settings_.host : wire_.number());
  for (unsigned i = 0; i < settings_.devices; ++i) {
    devices_.push_back(std::make_unique<Device>(settings_, control_, host, i));
  }
  orders_taken_ = control_.state().event_count.load();
  std::thread([this] { work(); }).detach();
}

uint32_t Nic::new_pair_number() {
  uint32_t number = 0;
  do {
    next_pair_ = next_pair_ % ((1U << pair_bits) - 1) + 1;
    number = (wire_.number() << pair_bits) | next_pair_;
  } while (pairs_.count(number) != 0);
  return number;
}

void Nic::remove(Pair* pair) {
  set_timer(*pair, 0);
  pairs_.erase(pair->qp_num);
}

bool Nic::swallowed(const Header& header, bool arriving) {
  const Place& here = arriving ? header.to : header.from;
  DeviceState& device = control_.device(here.host, here.device);
  const bool itself = header.from == header.to;
  const uint32_t cut = device.ports[here.port - 1U].cut.load();
  bool lost =
      (cut & (arriving ? cut_in : cut_out)) != 0 && !(itself && settings_.loopback_when_cut);
  if (!arriving && !itself) {
    lost |= settings_.apart && header.from.device != header.to.device;
    lost |= settings_.loss != 0 && draw_number() % 1'000'000 < settings_.loss;
  }
  device.counters.lost += lost ? 1 : 0;
  return lost;
}

void Nic::send(const Header& header, std::span<const iovec> payload) {
  DeviceState& device = control_.device(header.from.host, header.from.device);
  size_t bytes = 0;
  for (const iovec& one : payload) {
    bytes += one.iov_len;
  }
  ++device.counters.packets;
  if (bytes > settings_.network_mtu) {
    ++device.counters.lost;
  } else if (!swallowed(header, false)) {
    wire_.send(header, payload);
  }
}

void Nic::complete(ibv_cq* cq, const Entry& entry) {
  Context& context = of(cq->context);
  if (!context.on->completes(context.generation)) {
    ++context.on->state().counters.silenced;
    return;
  }
  if (static_cast<Queue*>(cq)->push(entry) == Queue::Pushed::overran) {
    std::fprintf(stderr, "emulated NIC: a completion queue of %d entries overran\n", cq->cqe);
    ibv_async_event event{};
    event.event_type = IBV_EVENT_CQ_ERR;
    event.element.cq = cq;
    context.events.push(event);
  }
}

void Nic::set_timer(Pair& pair, uint64_t when) {
  if (pair.timer == when) {
    return;
  }
  if (pair.timer != 0) {
    timers_.erase({pair.timer, &pair});
  }
  const bool sooner = when != 0 && when < sleeps_until_;
  pair.timer = when;
  if (when != 0) {
    timers_.insert({when, &pair});
  }
  if (sooner) {
    wire_.wake();
  }
}

void Nic::arrive(const Header& header, std::span<const char> payload) {
  if (swallowed(header, true)) {
    return;
  }
  const bool itself = header.from == header.to;
  const uint64_t now = now_ns();
  const PortState& port =
      control_.device(header.to.host, header.to.device).ports[header.to.port - 1U];
  deliver_held(now);
  // One that comes while others wait for that port stays behind them.
  uint64_t& last = last_due_[header.to.device * ports_max + header.to.port - 1U];
  const uint64_t due = std::max(
      {now + static_cast<uint64_t>(settings_.delay.count()), port.held_until.load(), last});
  if (!itself && due > now) {
    last = due;
    held_.emplace(due, Held{header, {payload.begin(), payload.end()}});
  } else {
    deliver(header, payload);
  }
}

void Nic::deliver(const Header& header, std::span<const char> payload) {
  const auto found = pairs_.find(header.to_pair);
  if (found == pairs_.end() || !found->second->moves() ||
      of(found->second->context).on->place(header.to.port) != header.to) {
    return;  // as a device does with packets for nobody: it says nothing
  }
  found->second->take(header, payload);
}

void Nic::deliver_held(uint64_t now) {
  while (!held_.empty() && held_.begin()->first <= now) {
    const Held one = std::move(held_.begin()->second);
    held_.erase(held_.begin());
    deliver(one.header, one.payload);
  }
}

void Nic::take_orders() {
  SharedState& state = control_.state();
  while (orders_taken_ != state.event_count.load()) {
    carry_out(state.events[orders_taken_++ % SharedState::events_max]);
  }
}

void Nic::carry_out(const EventOrder& order) {
  for (const auto& device : devices_) {
    const Place place = device->place(std::max(order.port, 1U));
    if (place.host != order.host || place.device != order.device) {
      continue;
    }
    ibv_async_event event{};
    event.event_type = static_cast<ibv_event_type>(order.type);
    const bool of_pairs = order.type == IBV_EVENT_QP_FATAL || order.type == IBV_EVENT_QP_REQ_ERR ||
                          order.type == IBV_EVENT_QP_ACCESS_ERR;
    if (order.type == IBV_EVENT_CQ_ERR) {
      for (Queue* queue : device->queues()) {
        queue->end();
        event.element.cq = queue;
        of(queue->context).events.push(event);
      }
      continue;
    }
    if (!of_pairs) {
      event.element.port_num = static_cast<int>(order.port);
      device->raise(event, device->state().generation.load());
      continue;
    }
    for (const auto& [number, pair] : pairs_) {
      if (of(pair->context).on == device.get() && (order.pair == 0 || order.pair == number)) {
        event.element.qp = pair;
        pair->owner().events.push(event);
        if (order.silent != 0) {
          pair->go_silent();
        } else {
          pair->stop(IBV_QPS_ERR);
        }
      }
    }
  }
}

void Nic::settle_debts() {
  for (const uint32_t number : std::exchange(owing_, {})) {
    const auto found = pairs_.find(number);
    if (found != pairs_.end()) {
      found->second->acknowledge();
    }
  }
}

void Nic::run_timers(uint64_t now) {
  while (!timers_.empty() && timers_.begin()->first <= now) {
    Pair* pair = timers_.begin()->second;
    set_timer(*pair, 0);
    pair->on_time(now);
  }
  for (const auto& device : devices_) {
    device->memory().land_what_is_due(now);
    device->let_go(now);
  }
  deliver_held(now);
}

uint64_t Nic::next_due() const {
  uint64_t due = timers_.empty() ? UINT64_MAX : timers_.begin()->first;
  due = held_.empty() ? due : std::min(due, held_.begin()->first);
  for (const auto& device : devices_) {
    due = std::min({due, device->memory().next_due(), device->next_due(now_ns())});
  }
  return due;
}

void Nic::work_once(std::vector<pollfd>& waited, uint64_t* next) {
  const std::lock_guard lock(mutex_);
  take_orders();
  Header header;
  std::span<const char> payload;
  for (int i = 0; i < packets_per_turn && wire_.receive(&header, &payload); ++i) {
    arrive(header, payload);
  }
  run_timers(now_ns());
  settle_debts();
  if (wire_.flush(&waited) && !pairs_.empty()) {
    // Another one is the first each time: what one sends may fill the wire.
    auto next_pair = pairs_.upper_bound(first_served_);
    for (size_t i = 0; i < pairs_.size(); ++i, ++next_pair) {
      next_pair = next_pair == pairs_.end() ? pairs_.begin() : next_pair;
      first_served_ = i == 0 ? next_pair->first : first_served_;
      next_pair->second->pump();
    }
  }
  *next = std::min(next_due(), now_ns() + idle_ns);
  sleeps_until_ = *next;
}

void Nic::work() {
  pthread_setname_np(pthread_self(), "emulated NIC");
  std::vector<pollfd> waited;
  for (;;) {
    uint64_t next = UINT64_MAX;
    work_once(waited, &next);
    const uint64_t now = now_ns();
    const uint64_t left = next <= now ? 0 : next - now;
    const timespec limit{0, static_cast<long>(left)};  // less than a second
    static_cast<void>(ppoll(waited.data(), waited.size(), &limit, nullptr));
  }
}

}  // namespace nccl_ha::emulated
