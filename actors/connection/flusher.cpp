#include "actors/connection/flusher.h"

#include <algorithm>
#include <utility>

namespace nccl_ha {
namespace {

/// Writes that a NIC posted before it reported them may still be on the PCIe fabric, and a NIC that
/// failed cannot be asked to push them.  They take microseconds; this is a thousand times as long.
constexpr Duration pcie_limit = std::chrono::milliseconds(10);

}  // namespace

Flusher::Flusher(const ConnectionParts& parts, ReceiveChannel& channel, Announcer& announcer)
    : state_(parts.state), paths_(parts.paths), channel_(channel), announcer_(announcer) {
  timer_.bind([](void* self) { static_cast<Flusher*>(self)->flush_waiting(); }, this);
}

void Flusher::stop() {
  if (state_.context != nullptr) {
    state_.context->timers().cancel(timer_);
  }
}

void Flusher::stay_alone() {
  alone_ = true;
  flush_waiting();
}

void Flusher::on_lane_down() { drained_at_ = state_.context->now() + pcie_limit; }

void Flusher::wait(ReceiveRequest& request) {
  waiting_.push_back(request.index);
  if ((paths_.any_usable() || by_time()) && !timer_.armed()) {
    state_.context->timers().arm(timer_, std::max(drained_at_, state_.context->now()));
  }
}

void Flusher::flush(ReceiveRequest& request) {
  request.missing = 0;
  request.flush_lost = false;
  if (state_.context->now() < drained_at_) {
    wait(request);
    return;
  }
  const bool own = ask_primaries(request);
  const bool others = ask_others(request);
  if (!state_.live()) {
    return;
  }
  if (!own && !others && !request.flush_lost && !by_time()) {
    waiting_.push_back(request.index);  // for a path
  } else if (request.missing == 0) {
    end(request);
  }
}

/// All that were asked have answered, or none was.
void Flusher::end(ReceiveRequest& request) {
  if (request.flush_lost) {
    wait(request);  // what other NICs brought still has to be pushed
  } else {
    request.state.store(RequestState::done, std::memory_order_release);
  }
}

/// They are on one NIC: the first one that is usable.
bool Flusher::ask_primaries(ReceiveRequest& request) {
  for (size_t lane = 0; lane < paths_.primaries(); ++lane) {
    if (paths_.lane(lane).usable) {
      return ask(lane, request);
    }
  }
  return false;
}

/// Each rail and each shadow is a NIC of its own.
bool Flusher::ask_others(ReceiveRequest& request) {
  bool any = false;
  size_t asked_rail = 0;
  for (size_t at = paths_.primaries(); at < paths_.size(); ++at) {
    const Lane& lane = paths_.lane(at);
    if (!lane.usable || (lane.on_other_rail() && lane.rail == asked_rail) || !ask(at, request)) {
      continue;
    }
    asked_rail = lane.on_other_rail() ? lane.rail : asked_rail;
    any = true;
  }
  return any;
}

bool Flusher::ask(size_t lane, ReceiveRequest& request) {
  // What the processor has put in place needs nothing.
  return !paths_.lane(lane).traits.placed_by_nic || post(lane, request);
}

bool Flusher::post(size_t at, ReceiveRequest& request) {
  Lane& lane = paths_.lane(at);
  fabric::FlushPost post;
  post.id = request.index;
  post.address = reinterpret_cast<uint64_t>(request.buffers[0].data);
  post.remote_key = request.buffers[0].key;
  if (lane.foreign_keys) {
    if (!announcer_.names(lane)) {
      return false;  // nothing can have come that way
    }
    post.remote_key = announcer_.shadow_key(at, request.buffers[0]);
    if (lane.rejected) {
      return false;
    }
  }
  const Errc posted = state_.live() ? lane.path().post_flush(post) : Errc::closed;
  if (posted == Errc::invalid_usage && lane.traits.hops != 0) {
    return true;  // by its last hop the processor puts in place what comes
  }
  if (posted == Errc::ok) {
    ++lane.writes_open;
    ++request.missing;
  } else if (posted == Errc::closed || (posted == Errc::again && lane.traits.hops != 0)) {
    on_lane_down();  // it is about to be, or the device of its hop takes long with something
    request.flush_lost = true;
  } else {
    state_.fail(fail(Errc::internal, "a path refused a flush it has room for"));
  }
  return posted == Errc::ok;
}

void Flusher::on_completion(const fabric::Completion& completion, Lane& lane) {
  if (!state_.holds(completion.id < ReceiveChannel::slot_count && lane.writes_open != 0,
                    "a flush that completes is one that was posted")) {
    return;
  }
  ReceiveRequest& request = channel_.slot(static_cast<uint16_t>(completion.id));
  if (!state_.holds(request.is_flush && request.missing != 0,
                    "no more flushes complete than were posted")) {
    return;
  }
  --lane.writes_open;
  request.flush_lost = request.flush_lost || completion.status != fabric::CompletionStatus::ok;
  if (--request.missing == 0) {
    end(request);
  }
}

void Flusher::flush_waiting() {
  if (waiting_.empty() || !(paths_.any_usable() || by_time()) || !state_.live()) {
    return;
  }
  for (const uint16_t index : std::exchange(waiting_, {})) {
    flush(channel_.slot(index));
  }
}

}  // namespace nccl_ha
