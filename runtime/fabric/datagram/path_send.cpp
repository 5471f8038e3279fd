// The sending half of a datagram path.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/fabric/datagram/datagram_path.h"

namespace nccl_ha::fabric {
namespace {

constexpr Duration probe_period = std::chrono::milliseconds(20);

/// Where a segment's payload lies in the user's memory.  False: some of that is not registered.
bool find_payload(const Memory& memory, uint64_t domain, const Segment& segment,
                  const WorkRequest& request, iovec (&parts)[gathers_max], size_t* count) {
  *count = 0;
  uint32_t skip = segment.offset;
  uint32_t left = segment.length;
  for (uint32_t i = 0; i < request.gather_count && left != 0; ++i) {
    const Gather& gather = request.gathers[i];
    if (skip >= gather.length) {
      skip -= gather.length;
      continue;
    }
    const uint32_t take = std::min(left, gather.length - skip);
    std::byte* from =
        memory.resolve(gather.key, domain, reinterpret_cast<uint64_t>(gather.address) + skip, take);
    if (from == nullptr) {
      return false;
    }
    parts[(*count)++] = {from, take};
    left -= take;
    skip = 0;
  }
  return true;
}

}  // namespace

Errc DatagramPath::post_write(const WritePost& post) {
  if (state_ == PathState::error) {
    return Errc::closed;
  }
  if (requests_.full()) {
    return Errc::again;
  }
  uint64_t length = 0;
  if (post.gather_count > gathers_max) {
    return Errc::invalid_argument;
  }
  for (uint32_t i = 0; i < post.gather_count; ++i) {
    length += post.gathers[i].length;
  }
  if (length > UINT32_MAX) {
    return Errc::invalid_argument;
  }
  WorkRequest request(post);
  request.length = static_cast<uint32_t>(length);
  const bool idle = !requests_.unsent();
  requests_.push(std::move(request));
  if (state_ != PathState::ready) {
    return Errc::ok;  // sent once the check is through
  }
  if (idle && sizes_.tiny(static_cast<uint32_t>(length)) && sendable()) {
    // Fast path: a tiny message with nothing before it goes into the next datagram at once.
    env_.refresh();
    const GuardScope guard(env_.guard);
    ++statistics_.fast_sends;
    static_cast<void>(send_next());
    return Errc::ok;
  }
  if (!timer_.armed() && starved()) {
    // No acknowledgement is under way that could say that there are credits again, and the one that
    // said so may have been lost.
    env_.refresh();
    arm_tail_probe();
  }
  make_ready();
  return Errc::ok;
}

bool DatagramPath::send_next() {
  WorkRequest& request = requests_.current();
  if (request.segment_bytes == 0) {
    request.segment_bytes = sizes_.plan(request.length);
  }
  Segment& segment = outgoing_.next_segment();
  segment.request = requests_.current_number();
  segment.offset = request.sent;
  segment.length =
      static_cast<uint16_t>(std::min(request.segment_bytes, request.length - request.sent));
  if (outgoing_.empty()) {
    silence_.end(env_.now);  // the budget starts with the first unacknowledged segment
  }
  const bool tiny = sizes_.tiny(request.length);
  if (!transmit(segment, tiny ? Channel::command : Channel::data)) {
    return false;
  }
  request.sent += segment.length;
  ++statistics_.segments_sent;
  statistics_.tiny_sends += tiny ? 1 : 0;
  statistics_.bytes_sent += segment.length;
  if (request.sent == request.length) {
    requests_.finish_current(outgoing_.next());
  }
  if (!timer_.armed()) {
    arm_tail_probe();
  }
  return true;
}

FrameHeader DatagramPath::header_for(const Segment& segment, const WorkRequest& request) {
  FrameHeader header = ends_.header(FrameType::put);
  header.flags = request.flags;
  if (segment.offset + segment.length == request.length) {
    header.flags |= flag_last;
  }
  header.sequence = segment.sequence;
  header.payload_length = segment.length;
  header.fragment = static_cast<uint16_t>(segment.request);
  header.fragment_length = request.length;
  header.fragment_offset = segment.offset;
  header.immediate = request.immediate;
  header.key = request.remote_key;
  header.address = request.remote_address;
  acks_.piggyback(header, incoming_);
  return header;
}

bool DatagramPath::transmit(Segment& segment, Channel channel) {
  const WorkRequest& request = requests_.numbered(segment.request);
  iovec parts[gathers_max];
  size_t count = 0;
  if (!find_payload(*env_.memory, options_.domain, segment, request, parts, &count)) {
    break_path(CompletionStatus::local_protection,
               nccl_ha::fail(Errc::invalid_usage,
                             "memory that is to be sent is not the processor's to read: taken back "
                             "while a transfer still used it, or a GPU's"));
    return false;
  }
  const FrameHeader header = header_for(segment, request);
  outgoing_.on_sent(segment, channel, env_.now + network_.rto());
  if (channel == Channel::command) {
    std::array<std::byte, SendBatch::datagram_bytes> copy;
    size_t bytes = 0;
    for (size_t i = 0; i < count; ++i) {
      std::memcpy(copy.data() + bytes, parts[i].iov_base, parts[i].iov_len);
      bytes += parts[i].iov_len;
    }
    send_command(header, std::span(copy.data(), bytes));
  } else {
    env_.stage.data(ends_.peer().data, segment, header, std::span(parts, count), seal_.get());
  }
  return true;
}

bool DatagramPath::transmit_again(Segment& segment) {
  NHA_DASSERT(state_ == PathState::ready, "a path that failed has nothing to send again");
  // Always on the data channel: in congestion the command channel is for acknowledgements.
  ++statistics_.segments_resent;
  env_.record(TraceEvent::segment_resent, id_, segment.sequence, segment.length);
  return transmit(segment, Channel::data);
}

/// Later ones have arrived: it is lost, or late.
void DatagramPath::replace(Segment& segment) {
  segment.late_until = env_.now + network_.least();
  queue_resend(segment);
}

void DatagramPath::queue_resend(Segment& segment) {
  outgoing_.take_back(segment, env_.now);
  env_.resends_passed = 0;
  if (env_.resends.push(segment)) {
    env_.wake();
  }
}

/// The newest round trip, of the packet that this one echoes; 0: it echoes none.
Duration DatagramPath::sample_of(const FrameHeader& header) const {
  constexpr uint32_t plausible_us = 60'000'000;
  const uint32_t elapsed = env_.now_us() - header.echo_us - header.ack_delay_us;
  return (header.flags & flag_echo) != 0 && elapsed < plausible_us
             ? std::chrono::microseconds(elapsed)
             : Duration(0);
}

void DatagramPath::handle_ack(const FrameHeader& header, std::span<const std::byte> selective) {
  if ((header.flags & flag_ack) == 0 || state_ == PathState::error) {
    return;
  }
  ++statistics_.acks_received;
  const uint32_t ack = header.acknowledge;
  if (!outgoing_.plausible(ack)) {
    return;
  }
  outgoing_.allow(ack + header.credits);
  const bool was_full = outgoing_.in_flight() + 1 >= network_.window();
  uint32_t newly = outgoing_.acknowledge(ack, env_.now);
  uint32_t selected = 0;
  if (!selective.empty()) {
    const uint32_t first = ack + 1;
    selected = outgoing_.acknowledge_selected(first, selective, env_.now);
    newly += selected;
  }
  if (newly != 0) {
    statistics_.segments_acked += newly;
    silence_.end(env_.now);
    env_.resends_passed = 0;
    // Of an acknowledgement that says nothing new, as one that the network delivers twice, the
    // round trip counts as little (RFC 7323, 4.1).
    network_.on_ack(env_.now, newly, sample_of(header), was_full);
    complete_requests();
  } else if (header.type == FrameType::ack && ack == outgoing_.oldest() && !outgoing_.empty()) {
    // Duplicate acknowledgement: the receiver got something that is not the oldest segment.
    ++statistics_.duplicate_acks;
    if (Segment* lost = outgoing_.on_duplicate()) {
      ++statistics_.fast_retransmits;
      replace(*lost);
    }
  }
  if (selected != 0) {
    detect_losses();
  }
  if (sendable()) {
    make_ready();
  }
  if (!timer_.armed()) {
    arm_tail_probe();
  } else if (outgoing_.empty() && !starved() && state_ == PathState::ready) {
    // Nothing is left that could be lost; an idle path wakes nobody.
    env_.timers->cancel(timer_);
  }
}

void DatagramPath::detect_losses() {
  const uint32_t lost = outgoing_.each_lost([this](Segment& segment) { replace(segment); });
  if (lost != 0) {
    statistics_.fast_retransmits += lost;
    network_.on_loss(env_.now, lost);
  }
}

void DatagramPath::complete_requests() {
  requests_.complete(outgoing_.oldest(), [this](const WorkRequest& request) {
    Completion completion;
    completion.id = request.id;
    completion.path = this;
    completion.bytes = request.length;
    env_.complete(completion);
  });
}

bool DatagramPath::starved() const {
  return requests_.unsent() && outgoing_.empty() && !outgoing_.has_credit();
}

void DatagramPath::on_evicted(Segment& segment) {
  if (state_ != PathState::ready || segment.state != Segment::State::in_flight) {
    return;
  }
  ++statistics_.timeouts;
  if (silence_.lasts(env_.moment(), env_.options.dead_after)) {
    break_path(CompletionStatus::retry_exceeded,
               nccl_ha::fail(Errc::remote,
                             fmt::format("no acknowledgement for {} ms from the peer: {}",
                                         env_.options.dead_after.count() / 1'000'000, describe())));
    return;
  }
  network_.on_timeout(env_.now);
  outgoing_.on_timeout();
  queue_resend(segment);
}

// The last segments of a burst have nobody behind them whose acknowledgement would show their loss;
// instead of waiting for the timeout, the newest one is sent again after two round trips (RFC
// 8985).  What is sent and what is acknowledged arm the timer; after such a probe the timeout of
// the segments takes over.
void DatagramPath::arm_tail_probe() {
  if (state_ != PathState::ready || (outgoing_.empty() && !starved())) {
    return;
  }
  env_.timers->arm(timer_, env_.now + network_.tail_wait(acks_.delay()));
}

void DatagramPath::send_tail_probe() {
  if (starved()) {
    // The news of credits may have been lost: ask.  No budget runs meanwhile, since the peer owes
    // nothing.
    FrameHeader probe = ends_.header(FrameType::probe);
    acks_.piggyback(probe, incoming_);
    send_command(probe);
    env_.timers->arm(timer_, env_.now + std::max<Duration>(network_.rto(), probe_period));
    return;
  }
  if (outgoing_.empty()) {
    return;
  }
  const Duration wait = network_.tail_wait(acks_.delay());
  if (env_.now - silence_.since() < wait) {
    env_.timers->arm(timer_, silence_.since() + wait);
    return;
  }
  Segment& newest = outgoing_.newest();
  if (newest.state == Segment::State::in_flight && !newest.resends.listed) {
    ++statistics_.tail_probes;
    queue_resend(newest);
  }
}

}  // namespace nccl_ha::fabric
