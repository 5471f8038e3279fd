#include "runtime/fabric/verbs/port.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "runtime/base/log.h"
#include "runtime/fabric/verbs/verbs_path.h"

namespace nccl_ha::fabric::verbs {
namespace {

// Entries of the first completion queue, which is enough for a few paths: the device goes round in
// it, and what it writes should still be in the caches.  Each further one has four times as many,
// so that there are never many to look at.  One less than a power of two: devices round up, some
// after adding one.
constexpr uint32_t queue_entries = 1023;
constexpr uint32_t queue_entries_max = 16383;
constexpr int watch_divisor = 8;  // looks per time limit
constexpr size_t scratch_bytes = 16384;
/// What the end of a port waits for queue pairs that use its completion queues.
constexpr Duration destroy_drain_limit = std::chrono::seconds(1);

}  // namespace

Port::Port(std::shared_ptr<Device> device, uint8_t number, const Options& options,
           const Environment& environment)
    : device_(std::move(device)),
      library_(device_->library()),
      number_(number),
      options_(options),
      env_(environment),
      counters_(env_.counters, name()) {
  watch_.bind([](void* self) { static_cast<Port*>(self)->watch_progress(); }, this);
  pending_work_ = false;
}

std::string Port::name() const { return fmt::format("verbs {}:{}", device_->name(), number_); }

Result<std::shared_ptr<Port>> Port::open(std::shared_ptr<Device> device, uint8_t number,
                                         const Options& options, const Environment& environment) {
  std::shared_ptr<Port> port(new Port(std::move(device), number, options, environment));
  port->channel_ = port->library_.completion.create_channel(port->device_->context());
  if (port->channel_ == nullptr) {
    return fail(
        Errc::system,
        fmt::format("RDMA device {}: cannot create a completion channel", port->device_->name()),
        errno);
  }
  const int flags = fcntl(port->channel_->fd, F_GETFL);
  if (flags < 0 || fcntl(port->channel_->fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return fail(Errc::system, "cannot make a completion channel non-blocking", errno);
  }
  if (auto scratch = port->prepare_scratch(); !scratch) {
    return scratch.error();
  }
  return port;
}

Port::~Port() {
  env_.timers->cancel(watch_);
  static_cast<void>(device_->destroyer().drain(destroy_drain_limit));
  for (Queue& queue : queues_) {
    if (queue.events != 0) {
      library_.completion.ack_events(queue.cq, queue.events);
    }
    static_cast<void>(library_.completion.destroy_queue(queue.cq));
  }
  if (channel_ != nullptr) {
    static_cast<void>(library_.completion.destroy_channel(channel_));
  }
  if (scratch_region_.mr != nullptr) {
    device_->remove(scratch_region_);
  }
}

Result<void> Port::prepare_scratch() {
  scratch_.resize(scratch_bytes);
  auto region = device_->add(scratch_.data(), scratch_.size(), MemoryKind::host);
  if (!region) {
    return region.error();
  }
  scratch_region_ = *region;
  return {};
}

Result<size_t> Port::find_queue(uint32_t entries) {
  for (size_t i = 0; i < queues_.size(); ++i) {
    if (queues_[i].room - queues_[i].used >= entries) {
      return i;
    }
  }
  const auto most = static_cast<uint32_t>(std::max(device_->attributes().max_cqe, 1));
  uint32_t wanted = queue_entries;
  for (size_t i = 0; i < queues_.size() && wanted < queue_entries_max; ++i) {
    wanted = 4 * wanted + 3;
  }
  const uint32_t room = std::max(entries, std::min(wanted, most));
  ibv_cq* cq = library_.completion.create_queue(device_->context(), static_cast<int>(room), this,
                                                channel_, 0);
  if (cq == nullptr) {
    const int error = errno;
    return fail(Errc::system,
                fmt::format("RDMA device {}: cannot create a completion queue of {} entries{}",
                            device_->name(), room, memlock_hint(error)),
                error);
  }
  queues_.push_back({cq, room, 0, 0});
  return queues_.size() - 1;
}

Result<std::unique_ptr<Path>> Port::create_path(const PathOptions& path_options,
                                                const GidPreference& want, PathOwner* owner) {
  if (device_->fatal.load(std::memory_order_acquire)) {
    return fail(Errc::system, fmt::format("RDMA device {} failed earlier: see the kernel's log; "
                                          "restart the job when it is back",
                                          device_->name()));
  }
  uint32_t slot = 0;
  if (free_slots_.empty()) {
    slot = static_cast<uint32_t>(slots_.size());
    slots_.emplace_back();
  } else {
    slot = free_slots_.back();
    free_slots_.pop_back();
  }
  // A probe each way, a marker and the flushes come on top of what the owner posts.
  const uint32_t entries = path_options.writes_max + path_options.receives_max +
                           (path_options.flushes ? path_options.receives_max : 0) + 16;
  auto queue = find_queue(entries);
  if (!queue) {
    free_slots_.push_back(slot);
    return queue.error();
  }
  const auto generation = static_cast<uint16_t>(slots_[slot].generation + 1);
  slots_[slot].generation = generation;
  std::unique_ptr<VerbsPath> path(
      new VerbsPath(*this, path_options, owner, slot, generation, *queue));
  slots_[slot].path = path.get();
  needs_rx_refill_.reserve(slots_.size());
  queues_[*queue].used += entries;
  path->reserved_ = entries;
  if (auto opened = path->open(want); !opened) {
    return opened.error();
  }
  return std::unique_ptr<Path>(std::move(path));
}

void Port::remove(VerbsPath& path) {
  slots_[path.slot_].path = nullptr;
  free_slots_.push_back(path.slot_);
  queues_[path.queue_].used -= path.reserved_;
  unlist_dirty(path);
  std::erase(needs_rx_refill_, &path);
  for (auto* list : {&state_events_, &fences_}) {
    std::replace(list->begin(), list->end(), &path, static_cast<VerbsPath*>(nullptr));
  }
}

void Port::mark_dirty(VerbsPath& path) {
  if (!path.dirty_) {
    path.dirty_ = true;
    path.next_dirty_ = nullptr;
    (dirty_ == nullptr ? dirty_ : last_dirty_->next_dirty_) = &path;
    last_dirty_ = &path;
    pending_work_ = true;
  }
}

void Port::unlist_dirty(VerbsPath& path) {
  VerbsPath* before = nullptr;
  for (VerbsPath* one = dirty_; one != nullptr; before = one, one = one->next_dirty_) {
    if (one == &path) {
      (before == nullptr ? dirty_ : before->next_dirty_) = path.next_dirty_;
      last_dirty_ = last_dirty_ == &path ? before : last_dirty_;
      return;
    }
  }
}

unsigned Port::flush_posts() {
  unsigned count = 0;
  while (dirty_ != nullptr) {
    VerbsPath& path = *dirty_;
    dirty_ = path.next_dirty_;
    path.dirty_ = false;
    path.flush_posts();
    ++count;
  }
  if (count != 0) {
    watch_posts();
  }
  return count;
}

void Port::arm_watch() {
  env_.timers->arm(watch_, env_.clock->now() + options_.dead_after / watch_divisor);
}

void Port::be_thirsty(VerbsPath& path) {
  path.needs_rx_refill_ = true;
  needs_rx_refill_.push_back(&path);
  pending_work_ = true;
}

void Port::hand_over_receives() {
  for (VerbsPath* path : needs_rx_refill_) {
    path->needs_rx_refill_ = false;
    path->hand_over_receives();
  }
  needs_rx_refill_.clear();
}

void Port::take_events() {
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  while (library_.completion.get_event(channel_, &cq, &context) == 0) {
    ++statistics_.events;
    for (Queue& queue : queues_) {
      // Acknowledging takes a lock, so it is done in bundles; destroying a queue needs all of them.
      if (queue.cq == cq && ++queue.events == 1024) {
        library_.completion.ack_events(cq, queue.events);
        queue.events = 0;
      }
    }
  }
}

unsigned Port::do_chores(unsigned work) {
  if (!state_events_.empty()) [[unlikely]] {
    work += report_states();
  }
  const bool posted = dirty_ != nullptr;
  if (posted) {
    work += flush_posts();
  }
  // Whoever waits for what came goes first.  But what went out on one path may be answered on
  // another one.
  if (!needs_rx_refill_.empty() && (posted || work == 0)) {
    hand_over_receives();
  }
  if (!fences_.empty()) [[unlikely]] {
    work += look_at_fences();
  }
  pending_work_ =
      !needs_rx_refill_.empty() || dirty_ != nullptr || !state_events_.empty() || !fences_.empty();
  return work;
}

unsigned Port::push(Clock& time) {
  static_cast<void>(time);
  const unsigned work = dirty_ == nullptr ? 0 : flush_posts();
  if (!needs_rx_refill_.empty()) {
    hand_over_receives();
  }
  return work;
}

unsigned Port::fail_all() {
  lost_ = true;
  unsigned count = 0;
  for (const Slot& slot : slots_) {
    if (slot.path != nullptr) {
      slot.path->fail(nccl_ha::fail(
          Errc::remote, fmt::format("RDMA device {} failed, as its driver or its completion queue "
                                    "says: see the kernel's log",
                                    device_->name())));
      ++count;
    }
  }
  return count;
}

void Port::watch_progress() {
  const Instant now = env_.clock->now();
  const Duration lost = env_.lost == nullptr ? Duration(0) : env_.lost->total();
  bool busy = false;
  for (const Slot& slot : slots_) {
    busy |= slot.path != nullptr && slot.path->check_progress({now, lost});
  }
  if (busy) {
    env_.timers->arm(watch_, now + options_.dead_after / watch_divisor);
  }
}

size_t Port::wait_fds(std::span<int> out) const {
  if (out.empty()) {
    return 0;
  }
  out[0] = channel_->fd;
  return 1;
}

void Port::queue_state(VerbsPath& path) {
  path.state_event_ = true;
  state_events_.push_back(&path);
  pending_work_ = true;
}

void Port::add_fence(VerbsPath& path) {
  fences_.push_back(&path);
  pending_work_ = true;
}

unsigned Port::report_states() {
  unsigned count = 0;
  for (size_t i = 0; i < state_events_.size(); ++i) {
    VerbsPath* path = state_events_[i];
    if (path != nullptr && path->state_event_) {
      path->state_event_ = false;
      ++count;
      const Error error = path->error_;
      path->owner_->on_path_state(*path, path->state_, error);
    }
  }
  state_events_.clear();
  return count;
}

}  // namespace nccl_ha::fabric::verbs
