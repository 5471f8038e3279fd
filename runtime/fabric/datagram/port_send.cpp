// What a port sends in a pass: retransmissions first, ready paths in turn, then acknowledgements
// that nothing carried.  It pulls all of it out of its paths.
#include <algorithm>

#include "runtime/fabric/datagram/datagram_path.h"
#include "runtime/fabric/datagram/port.h"

namespace nccl_ha::fabric {
namespace {

// What one pass may send before the receive side gets its turn again.
constexpr size_t pass_bytes_max = 512 * 1024;
constexpr size_t piggyback_lookups_max = 16;
// A path whose turn is over may complete a run with so many segments: what a run costs beside its
// bytes is paid once for it, here and at the receiver.
constexpr unsigned run_rest_max = 64;

}  // namespace

unsigned DatagramPort::progress_resends() {
  unsigned count = 0;
  unsigned looked_at = 0;
  while (!env_.resends.empty() && count < env_.options.resend_batch &&
         looked_at < 4 * env_.options.resend_batch) {
    Segment& segment = env_.resends.first();
    ++looked_at;
    if (segment.state == Segment::State::resend && segment.path->congested()) {
      // Its turn comes when acknowledgements make room; others must not wait behind it.
      env_.resends.push(env_.resends.pop());
      ++env_.resends_passed;
      continue;
    }
    env_.resends.pop();
    // Else it was acknowledged meanwhile, or the path is gone.
    if (segment.state == Segment::State::resend && segment.path->transmit_again(segment)) {
      ++count;
    }
  }
  return count;
}

/// At most `room` bytes, or the rest of a run more.
unsigned DatagramPort::send_from(DatagramPath& path, size_t room, size_t* bytes) {
  const uint64_t before = path.statistics().bytes_sent;
  const unsigned burst_max = env_.options.burst;
  unsigned burst = 0;
  const auto has_turn = [&] {
    return burst < burst_max && path.statistics().bytes_sent - before < room;
  };
  const auto completes_run = [&] {
    return burst != 0 && burst < burst_max + run_rest_max && env_.stage.run_grows(path.peer_data());
  };
  while ((has_turn() || completes_run()) && path.sendable() && path.send_next()) {
    ++burst;
  }
  *bytes += static_cast<size_t>(path.statistics().bytes_sent - before);
  if (burst != 0 && path.sendable()) {
    env_.ready.push(path.ready_link());
    env_.wake();
  }
  return burst;
}

unsigned DatagramPort::progress_sends() {
  if (env_.ready.empty() && env_.resends.empty() && env_.acks.urgent().empty() &&
      !env_.acks.due(env_.now) && env_.stage.empty()) {
    return 0;
  }
  const GuardScope guard(env_.guard);
  unsigned work = progress_resends();
  size_t bytes = 0;
  const ReadyLink* last = env_.ready.last();
  while (!env_.ready.empty() && bytes < pass_bytes_max) {
    ReadyLink& next = env_.ready.pop();
    work += send_from(next.path, pass_bytes_max - bytes, &bytes);
    if (&next == last) {
      break;
    }
  }
  work += progress_acks();
  if (!env_.stage.empty()) {
    ++work;
    env_.stage.flush(Channel::command);
    env_.stage.flush(Channel::data);
  }
  return work;
}

unsigned DatagramPort::progress_acks() {
  unsigned count = 0;
  for (AckLink* one : env_.acks.urgent()) {
    if (one->urgent) {  // else a segment carried it meanwhile
      one->path.send_ack();
      ++count;
    }
  }
  env_.acks.clear_urgent();
  while (env_.acks.due(env_.now)) {
    env_.acks.first()->path.send_ack();  // takes itself off the list
    ++count;
  }
  // A datagram that leaves for the same peer anyway takes the others along for nothing, whichever
  // path they belong to: in a ping-pong the answer carries the acknowledgement of the question.
  AckLink* one = env_.stage.any_command() ? env_.acks.first() : nullptr;
  for (size_t looked_at = 0; one != nullptr && looked_at < piggyback_lookups_max; ++looked_at) {
    AckLink* next = one->next;
    if (env_.stage.any_command_goes_to(one->path.peer_command())) {
      one->path.send_ack();
      ++count;
    }
    one = next;
  }
  return count;
}

}  // namespace nccl_ha::fabric
