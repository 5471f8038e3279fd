#include "runtime/fabric/verbs/port.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/fabric/verbs/verbs_path.h"

namespace nccl_ha::fabric::verbs {
namespace {

// Entries of the first completion queue, which is enough for a few paths: the device goes round in
// it, and what it writes should still be in the caches.  Each further one has four times as many,
// so that there are never many to look at.  One less than a power of two: devices round up, some
// after adding one.
constexpr uint32_t queue_entries = 1023;

}  // namespace

Port::Port(const UsablePort& port, std::shared_ptr<PortObjects> objects,
           std::shared_ptr<DoneList> done, const Options& options, const Environment& environment)
    : env_(environment, port, std::move(done), options,
           fmt::format("verbs {}:{}", port.info.device, port.info.port), pending_work_, *this),
      objects_(std::move(objects)) {
  env_.progress_timer.bind([](void* self) { static_cast<Port*>(self)->check_progress(); }, this);
  pending_work_ = false;
}

std::string Port::name() const {
  return fmt::format("verbs {}:{}", env_.info.device, env_.info.port);
}

Result<std::shared_ptr<Port>> Port::open(const UsablePort& port, const Options& options,
                                         const Environment& environment) {
  auto done = DoneList::make();
  if (!done) {
    return done.error();
  }
  auto channel = port.device->open_channel();
  if (!channel) {
    return channel.error();
  }
  return std::shared_ptr<Port>(new Port(port, std::make_shared<PortObjects>(*port.device, *channel),
                                        std::move(*done), options, environment));
}

Port::~Port() {
  for (Queue& queue : queues_) {
    if (queue.events != 0) {
      env_.device->library().completion.ack_events(queue.cq, queue.events);
    }
  }
  // Queue pairs end before their completion queues, and those before the channel.
  try {
    env_.device->conductor().add(Conductor::Rank::end,
                                 [queues = std::move(queues_), objects = std::move(objects_)] {});
  } catch (const std::bad_alloc&) {
    return;  // by this thread then, or by a command that has them
  }
}

/// A probe each way, a marker and the flushes come on top of what the owner posts.
uint32_t Port::entries_of(const PathOptions& path_options) {
  return path_options.writes_max + path_options.receives_max + path_options.flushes_max + 16;
}

/// A new one is made by the command that first needs it.
size_t Port::find_queue(uint32_t entries) {
  for (size_t i = 0; i < queues_.size(); ++i) {
    if (!queues_[i].lost && queues_[i].shared->left() >= entries) {
      return i;
    }
  }
  const auto most = static_cast<uint32_t>(std::max(env_.device->attributes().max_cqe, 1));
  uint32_t wanted = queue_entries;
  for (size_t i = 0; i < queues_.size() && wanted < queue_entries_max; ++i) {
    wanted = 4 * wanted + 3;
  }
  const uint32_t room = std::max(entries, std::min(wanted, most));
  queues_.push_back({std::make_shared<CompletionQueue>(objects_, room, this)});
  return queues_.size() - 1;
}

Result<std::unique_ptr<Path>> Port::create_path(const PathOptions& path_options,
                                                const GidPreference& want, PathOwner* owner) {
  PathPlace place;
  if (free_slots_.empty()) {
    place.slot = static_cast<uint32_t>(slots_.size());
    slots_.emplace_back();
  } else {
    place.slot = free_slots_.back();
    free_slots_.pop_back();
  }
  place.entries = entries_of(path_options);
  place.queue = find_queue(place.entries);
  Slot& slot = slots_[place.slot];
  place.generation = ++slot.generation;
  env_.refills.reserve(slots_.size());
  auto path = std::make_unique<VerbsPath>(env_, path_options, owner, place, want,
                                          queues_[place.queue].shared);
  slot.path = path.get();
  return std::unique_ptr<Path>(std::move(path));
}

unsigned Port::take_done() {
  take_faults();  // what is told of so far has an address that new queues may get
  unsigned count = 0;
  for (const DoneList::Done& done : env_.done->take()) {
    VerbsPath* path = find(done.slot, done.generation);
    if (path == nullptr) {
      continue;
    }
    path->on_done(done.step);
    ++count;
    path = find(done.slot, done.generation);
    if (path != nullptr && path->completions() != nullptr) {
      queues_[path->place().queue].cq = path->completions();
    }
  }
  pending_work_ = true;  // fences may move
  return count;
}

void Port::remove(VerbsPath& path) {
  const PathPlace& place = path.place();
  NHA_DASSERT(slots_[place.slot].path == &path, "another path has this one's slot");
  slots_[place.slot].path = nullptr;
  free_slots_.push_back(place.slot);
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
  while (calls.get_event(objects_->channel(), &cq, &context) == 0) {
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
  waits_changed_ = true;
  return fail_paths(" failed", [](const VerbsPath&) { return true; });
}

unsigned Port::retire(Queue& queue) {
  queue.lost = true;
  return fail_paths(": a completion queue of it failed",
                    [&](const VerbsPath& path) { return path.completions() == queue.cq; });
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
  if (out.size() < 2) {
    return 0;
  }
  out[0] = env_.done->fd();
  if (lost_) {
    // Nothing comes there, and one that the kernel has closed would wake for ever who sleeps on it.
    return 1;
  }
  out[1] = objects_->channel()->fd;
  return 2;
}

}  // namespace nccl_ha::fabric::verbs
