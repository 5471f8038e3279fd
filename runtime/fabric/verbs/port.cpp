#include "runtime/fabric/verbs/port.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "runtime/base/check.h"
#include "runtime/fabric/verbs/verbs_path.h"

namespace nccl_ha::fabric::verbs {
namespace {

// Entries of the first completion queue, which is enough for a few paths: the device goes round in
// it, and what it writes should still be in the caches.  Each further one has four times as many,
// so that there are never many to look at.  One less than a power of two: devices round up, some
// after adding one.
constexpr uint32_t queue_entries = 1023;
/// What the end of a port waits for queue pairs that use its completion queues.
constexpr Duration destroy_drain_limit = std::chrono::seconds(1);

}  // namespace

Port::Port(const std::shared_ptr<Device>& device, uint8_t number, const Options& options,
           const Environment& environment)
    : env_(environment, device, number, options, fmt::format("verbs {}:{}", device->name(), number),
           pending_work_, *this) {
  env_.progress_timer.bind([](void* self) { static_cast<Port*>(self)->check_progress(); }, this);
  pending_work_ = false;
}

std::string Port::name() const {
  return fmt::format("verbs {}:{}", env_.device->name(), env_.port_number);
}

Result<std::shared_ptr<Port>> Port::open(const std::shared_ptr<Device>& device, uint8_t number,
                                         const Options& options, const Environment& environment) {
  std::shared_ptr<Port> port(new Port(device, number, options, environment));
  auto channel = device->open_channel();
  if (!channel) {
    return channel.error();
  }
  port->channel_ = *channel;
  if (auto scratch = port->env_.scratch.open(device->pd()); !scratch) {
    return scratch.error();
  }
  return port;
}

Port::~Port() {
  static_cast<void>(env_.device->destroyer().drain(destroy_drain_limit));
  const CompletionCalls& calls = env_.device->library().completion;
  for (Queue& queue : queues_) {
    NHA_DASSERT(queue.used == 0, "paths give the room for their completions back");
    if (queue.events != 0) {
      calls.ack_events(queue.cq, queue.events);
    }
    static_cast<void>(calls.destroy_queue(queue.cq));
  }
  env_.device->close_channel(channel_);
}

/// A probe each way, a marker and the flushes come on top of what the owner posts.
uint32_t Port::entries_of(const PathOptions& path_options) {
  return path_options.writes_max + path_options.receives_max + path_options.flushes_max + 16;
}

Result<size_t> Port::find_queue(uint32_t entries) {
  for (size_t i = 0; i < queues_.size(); ++i) {
    if (!queues_[i].lost && queues_[i].room - queues_[i].used >= entries) {
      return i;
    }
  }
  const Device& device = *env_.device;
  const auto most = static_cast<uint32_t>(std::max(device.attributes().max_cqe, 1));
  uint32_t wanted = queue_entries;
  for (size_t i = 0; i < queues_.size() && wanted < queue_entries_max; ++i) {
    wanted = 4 * wanted + 3;
  }
  const uint32_t room = std::max(entries, std::min(wanted, most));
  ibv_cq* cq = device.library().completion.create_queue(device.context(), static_cast<int>(room),
                                                        this, channel_, 0);
  if (cq == nullptr) {
    const int error = errno;
    return fail(Errc::system,
                fmt::format("RDMA device {}: cannot create a completion queue of {} entries{}",
                            device.name(), room, memlock_hint(error)),
                error);
  }
  queues_.push_back({cq, room, 0, 0, false});
  return queues_.size() - 1;
}

Result<std::unique_ptr<Path>> Port::create_path(const PathOptions& path_options,
                                                const GidPreference& want, PathOwner* owner) {
  if (!env_.device->health.usable()) {
    return fail(Errc::system, fmt::format("RDMA device {} failed earlier: see the kernel's log; "
                                          "restart the job when it is back",
                                          env_.device->name()));
  }
  take_faults();  // what is told of so far has an address that new queues may get
  PathPlace place;
  if (free_slots_.empty()) {
    place.slot = static_cast<uint32_t>(slots_.size());
    slots_.emplace_back();
  } else {
    place.slot = free_slots_.back();
    free_slots_.pop_back();
  }
  place.entries = entries_of(path_options);
  auto queue = find_queue(place.entries);
  if (!queue) {
    free_slots_.push_back(place.slot);
    return queue.error();
  }
  place.queue = *queue;
  place.completions = queues_[*queue].cq;
  queues_[*queue].used += place.entries;
  Slot& slot = slots_[place.slot];
  place.generation = ++slot.generation;
  auto path = std::make_unique<VerbsPath>(env_, path_options, owner, place);
  slot.path = path.get();
  env_.refills.reserve(slots_.size());
  if (auto opened = path->open(want); !opened) {
    return opened.error();
  }
  return std::unique_ptr<Path>(std::move(path));
}

void Port::remove(VerbsPath& path) {
  const PathPlace& place = path.place();
  NHA_DASSERT(slots_[place.slot].path == &path, "another path has this one's slot");
  slots_[place.slot].path = nullptr;
  free_slots_.push_back(place.slot);
  queues_[place.queue].used -= place.entries;
  env_.posted.remove(path.links());
  env_.refills.remove(path.links());
  env_.states.remove(path);
  env_.fences.remove(path);
}

unsigned Port::post_waiting() {
  unsigned count = 0;
  for (; !env_.posted.empty(); ++count) {
    env_.posted.pop().path.post_waiting();
  }
  if (count != 0) {
    env_.watch_posts();
  }
  return count;
}

void Port::post_held_receives() {
  env_.refills.take_all([](VerbsPath& path) { path.post_held_receives(); });
}

void Port::take_events() {
  const CompletionCalls& calls = env_.device->library().completion;
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  while (calls.get_event(channel_, &cq, &context) == 0) {
    ++env_.statistics.events;
    for (Queue& queue : queues_) {
      // Acknowledging takes a lock, so it is done in bundles; destroying a queue needs all of them.
      if (queue.cq == cq && ++queue.events == 1024) {
        calls.ack_events(cq, queue.events);
        queue.events = 0;
      }
    }
  }
}

unsigned Port::do_pending_work(unsigned work) {
  if (!env_.states.empty()) [[unlikely]] {
    work += env_.report_states();
  }
  const bool posted = !env_.posted.empty();
  if (posted) {
    work += post_waiting();
  }
  // Whoever waits for what came goes first.  But what went out on one path may be answered on
  // another one.
  if (!env_.refills.empty() && (posted || work == 0)) {
    post_held_receives();
  }
  if (!env_.fences.empty()) [[unlikely]] {
    work += move_fences();
  }
  pending_work_ =
      !env_.refills.empty() || !env_.posted.empty() || !env_.states.empty() || !env_.fences.empty();
  return work;
}

unsigned Port::push(Clock& time) {
  static_cast<void>(time);
  const unsigned work = env_.posted.empty() ? 0 : post_waiting();
  if (!env_.refills.empty()) {
    post_held_receives();
  }
  return work;
}

template <class Is>
unsigned Port::fail_paths(const char* what, const Is& is) {
  unsigned count = 0;
  for (const Slot& slot : slots_) {
    if (slot.path != nullptr && is(*slot.path)) {
      slot.path->fail(nccl_ha::fail(
          Errc::remote, fmt::format("RDMA device {}{}, as its driver says: see the kernel's log",
                                    env_.device->name(), what)));
      ++count;
    }
  }
  return count;
}

unsigned Port::fail_all() {
  lost_ = true;
  return fail_paths(" failed", [](const VerbsPath&) { return true; });
}

unsigned Port::retire(Queue& queue) {
  queue.lost = true;
  return fail_paths(": a completion queue of it failed",
                    [&](const VerbsPath& path) { return path.place().completions == queue.cq; });
}

unsigned Port::take_faults() {
  unsigned count = 0;
  for (const void* object : env_.device->faults.since(&faults_seen_)) {
    for (Queue& queue : queues_) {
      count += queue.cq == object ? retire(queue) : 0;
    }
    count += fail_paths(": a queue pair of it failed",
                        [&](const VerbsPath& path) { return path.has_pair(object); });
  }
  return count;
}

void Port::check_progress() {
  const Moment now = env_.moment();
  bool busy = false;
  for (const Slot& slot : slots_) {
    busy |= slot.path != nullptr && slot.path->check_progress(now);
  }
  if (busy) {
    env_.arm_progress_timer();
  }
}

size_t Port::wait_fds(std::span<int> out) const {
  if (out.empty()) {
    return 0;
  }
  out[0] = channel_->fd;
  return 1;
}

}  // namespace nccl_ha::fabric::verbs
