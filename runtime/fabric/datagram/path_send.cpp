// The sending half of a datagram path.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/mutation.h"
#include "runtime/fabric/datagram/datagram_path.h"

namespace nccl_ha::fabric {
namespace {

// An acknowledged later transmission on the same channel that is this many younger means that a
// segment is lost, not late (RFC 6675's DupThresh).
constexpr uint64_t reorder_threshold = 3;
constexpr Duration probe_period = std::chrono::milliseconds(20);

constexpr uint32_t round_up(uint32_t value, uint32_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

Errc DatagramPath::post_write(const WritePost& post) {
  WorkRequest request;
  request.id = post.id;
  request.kind = CompletionKind::write;
  request.flags = static_cast<uint8_t>((post.has_immediate ? flag_immediate : 0) |
                                       (post.no_speculative_placement ? flag_no_speculation : 0));
  request.gather_count = static_cast<uint8_t>(post.gather_count);
  std::copy_n(post.gathers, gathers_max, request.gathers);
  request.remote_address = post.remote_address;
  request.remote_key = post.remote_key;
  request.immediate = post.immediate;
  request.unsignaled = post.unsignaled;
  return push(std::move(request));
}

Errc DatagramPath::post_send(const SendPost& post) {
  WorkRequest request;
  request.id = post.id;
  request.kind = CompletionKind::send;
  request.flags = static_cast<uint8_t>(post.has_immediate ? flag_immediate : 0);
  request.gather_count = static_cast<uint8_t>(post.gather_count);
  std::copy_n(post.gathers, gathers_max, request.gathers);
  request.immediate = post.immediate;
  return push(std::move(request));
}

Errc DatagramPath::push(WorkRequest&& request) {
  if (state_ == PathState::error) {
    return Errc::closed;
  }
  if (request_tail_ - request_head_ >= options_.writes_max) {
    return Errc::again;
  }
  uint64_t length = 0;
  if (request.gather_count > gathers_max) {
    return Errc::invalid_argument;
  }
  for (uint32_t i = 0; i < request.gather_count; ++i) {
    length += request.gathers[i].length;
  }
  if (length > UINT32_MAX) {
    return Errc::invalid_argument;
  }
  request.length = static_cast<uint32_t>(length);
  const bool idle = request_next_ == request_tail_;
  requests_[request_tail_ & request_mask_] = std::move(request);
  ++request_tail_;
  if (state_ != PathState::ready) {
    return Errc::ok;  // sent once the check is through
  }
  if (idle && length <= tiny_max_ && sendable()) {
    // Fast path: a tiny message with nothing before it goes into the next datagram at once.
    env_.refresh();
    const GuardScope guard(env_.guard);
    ++statistics_.fast_sends;
    static_cast<void>(send_next());
    return Errc::ok;
  }
  if (starved() && timer_use_ != TimerUse::tail_probe && !mutated(Mutation::credits_not_asked)) {
    // No acknowledgement is under way that could say that there are credits again, and the one that
    // said so may have been lost.
    env_.refresh();
    arm_tail_probe();
  }
  make_ready();
  return Errc::ok;
}

bool DatagramPath::sendable() const {
  if (state_ != PathState::ready || request_next_ == request_tail_) {
    return false;
  }
  return sequence_distance(next_, limit_) < 0 && next_ - una_ <= segment_mask_ &&
         in_flight_ < congestion_.window() && (in_flight_ == 0 || in_flight_bytes_ < bytes_max_);
}

void DatagramPath::plan_segments(WorkRequest& request) const {
  const uint32_t max = request.length <= tiny_max_ ? tiny_max_ : segment_payload_max_;
  const uint32_t count = std::max<uint32_t>(1, (request.length + max - 1) / max);
  // Equal parts rather than full ones and a rest: the same number of packets, none of them tiny.
  // With offload full ones are better, since the kernel cuts runs of equal segments.
  const bool offloaded = count > 8;
  request.segment_bytes =
      offloaded && segment_payload_max_ < 32768
          ? max
          : std::min(max, round_up((request.length + count - 1) / count, line_bytes));
  request.segment_bytes = std::max(request.segment_bytes, line_bytes);
}

bool DatagramPath::send_next() {
  WorkRequest& request = requests_[request_next_ & request_mask_];
  if (request.segment_bytes == 0) {
    plan_segments(request);
    ++fragment_;
  }
  Segment& segment = segments_[next_ & segment_mask_];
  NHA_DASSERT(segment.state == Segment::State::free, "segment still in use");
  segment.sequence = next_;
  segment.request = request_next_;
  segment.offset = request.sent;
  segment.length =
      static_cast<uint16_t>(std::min(request.segment_bytes, request.length - request.sent));
  if (una_ == next_) {
    progress_ = env_.now;  // the budget starts with the first unacknowledged segment
  }
  const bool tiny = request.length <= tiny_max_;
  if (!transmit(segment, tiny ? Channel::command : Channel::data)) {
    return false;
  }
  ++next_;
  request.sent += segment.length;
  ++statistics_.segments_sent;
  statistics_.tiny_sends += tiny ? 1 : 0;
  statistics_.bytes_sent += segment.length;
  if (request.sent == request.length) {
    request.all_sent = true;
    request.end_sequence = next_;
    ++request_next_;
  }
  if (timer_use_ != TimerUse::tail_probe) {
    arm_tail_probe();
  }
  return true;
}

bool DatagramPath::payload_of(const Segment& segment, const WorkRequest& request,
                              iovec (&parts)[gathers_max], size_t* count) {
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
    std::byte* from = env_.memory->resolve(gather.key, options_.domain,
                                           reinterpret_cast<uint64_t>(gather.address) + skip, take);
    if (from == nullptr) {
      return false;
    }
    parts[(*count)++] = {from, take};
    left -= take;
    skip = 0;
  }
  return true;
}

FrameHeader DatagramPath::header_for(const Segment& segment, const WorkRequest& request) {
  FrameHeader header;
  header.type = request.kind == CompletionKind::write ? FrameType::put : FrameType::send;
  header.flags = request.flags;
  if (segment.offset + segment.length == request.length) {
    header.flags |= flag_last;
  }
  header.path = peer_.path;
  header.token = peer_.token;
  header.sequence = segment.sequence;
  header.payload_length = segment.length;
  header.fragment = static_cast<uint16_t>(segment.request);
  header.fragment_length = request.length;
  header.fragment_offset = segment.offset;
  header.immediate = request.immediate;
  header.key = request.remote_key;
  header.address = request.remote_address;
  stamp(header);
  return header;
}

void DatagramPath::stamp(FrameHeader& header) {
  header.sent_us = env_.now_us();
  header.flags |= flag_ack;
  header.acknowledge = window_.next();
  header.credits = static_cast<uint16_t>(std::min<uint32_t>(window_.credits(), UINT16_MAX));
  if (have_echo_) {
    const int64_t held =
        std::chrono::duration_cast<std::chrono::microseconds>(env_.now - echo_at_).count();
    if (held >= 0 && held < UINT16_MAX) {
      header.flags |= flag_echo;
      header.echo_us = echo_us_;
      header.ack_delay_us = static_cast<uint16_t>(held);
    }
    have_echo_ = false;
  }
  if (!window_.gap()) {
    // This frame says all there is to say; with a gap the bitmap has to follow.
    if (unacked_arrivals_ != 0 || links_.ack_urgent) {
      ++statistics_.acks_piggybacked;
    }
    unacked_arrivals_ = 0;
    links_.ack_urgent = false;
    env_.acks.remove(links_);
  }
}

bool DatagramPath::transmit(Segment& segment, Channel channel) {
  const WorkRequest& request = requests_[segment.request & request_mask_];
  iovec parts[gathers_max];
  size_t count = 0;
  if (!payload_of(segment, request, parts, &count)) {
    break_path(CompletionStatus::local_protection,
               nccl_ha::fail(Errc::invalid_usage,
                             "send buffer was deregistered while a transfer still used it"));
    return false;
  }
  const FrameHeader header = header_for(segment, request);
  segment.channel = channel;
  segment.order = ++order_[static_cast<size_t>(channel)];
  segment.state = Segment::State::in_flight;
  ++in_flight_;
  in_flight_bytes_ += segment.length;
  env_.on_flight(segment.length);
  env_.hotel.check_in(segment.room, env_.now + rtt_.rto());
  if (channel == Channel::command) {
    std::array<std::byte, SendBatch::datagram_bytes> copy;
    size_t bytes = 0;
    for (size_t i = 0; i < count; ++i) {
      std::memcpy(copy.data() + bytes, parts[i].iov_base, parts[i].iov_len);
      bytes += parts[i].iov_len;
    }
    env_.stage.command(peer_.command, header, std::span(copy.data(), bytes));
  } else {
    env_.stage.data(peer_.data, segment, header, std::span(parts, count));
  }
  return true;
}

bool DatagramPath::transmit_again(Segment& segment) {
  if (state_ != PathState::ready) {
    segment.state = Segment::State::free;
    return false;
  }
  // Always on the data channel: in congestion the command channel is for acknowledgements.
  ++statistics_.segments_resent;
  if (env_.recorder != nullptr) {
    env_.recorder->record(TraceEvent::segment_resent, id_, segment.sequence, segment.length,
                          env_.now);
  }
  return transmit(segment, Channel::data);
}

void DatagramPath::queue_resend(Segment& segment) {
  NHA_DASSERT(segment.state == Segment::State::in_flight, "only a sent segment is sent again");
  env_.hotel.check_out(segment.room);
  segment.state = Segment::State::resend;
  --in_flight_;
  in_flight_bytes_ -= segment.length;
  env_.on_landing(segment.length);
  if (env_.resends.push(segment)) {
    env_.wake();
  }
}

void DatagramPath::acknowledged(Segment& segment) {
  env_.hotel.check_out(segment.room);
  if (segment.state == Segment::State::in_flight) {
    --in_flight_;
    in_flight_bytes_ -= segment.length;
    env_.on_landing(segment.length);
  }
  if (segment.state == Segment::State::in_flight || segment.state == Segment::State::resend) {
    ++statistics_.segments_acked;
    uint64_t& newest = acked_order_[static_cast<size_t>(segment.channel)];
    newest = std::max(newest, segment.order);
  }
}

uint32_t DatagramPath::apply_selective(uint32_t from, std::span<const std::byte> bitmap) {
  uint32_t newly = 0;
  for (size_t i = 0; i < bitmap.size() * 8; ++i) {
    if ((std::to_integer<unsigned>(bitmap[i / 8]) >> (i % 8) & 1U) == 0) {
      continue;
    }
    const uint32_t sequence = from + static_cast<uint32_t>(i);
    if (sequence_distance(sequence, una_) < 0 || sequence_distance(sequence, next_) >= 0) {
      continue;
    }
    Segment& segment = segments_[sequence & segment_mask_];
    if (segment.state == Segment::State::in_flight || segment.state == Segment::State::resend) {
      acknowledged(segment);
      segment.state = Segment::State::acked;
      ++newly;
    }
  }
  return newly;
}

void DatagramPath::handle_ack(const FrameHeader& header, std::span<const std::byte> selective) {
  if ((header.flags & flag_ack) == 0 || state_ == PathState::error) {
    return;
  }
  ++statistics_.acks_received;
  const uint32_t ack = header.acknowledge;
  // Either it moves the window, or it is a late one.  What lies outside was never sent, and half
  // the number space away even the order of sequence numbers is undefined: not ours to trust.
  const bool in_window = ack - una_ <= next_ - una_;
  if (!in_window && una_ - ack > INT32_MAX) {
    return;
  }
  Duration sample{};
  if ((header.flags & flag_echo) != 0) {
    const uint32_t elapsed = env_.now_us() - header.echo_us - header.ack_delay_us;
    if (elapsed < 60'000'000U) {
      sample = std::chrono::microseconds(elapsed);
      rtt_.sample(sample);
    }
  }
  const uint32_t limit = ack + header.credits;
  if (sequence_distance(limit, limit_) > 0 || mutated(Mutation::credits_taken_back)) {
    limit_ = limit;
  }
  const bool was_full = in_flight_ + 1 >= congestion_.window();
  uint32_t newly = 0;
  while (sequence_distance(una_, ack) < 0) {
    Segment& segment = segments_[una_ & segment_mask_];
    newly += segment.state == Segment::State::acked ? 0 : 1;
    acknowledged(segment);
    segment.state = Segment::State::free;
    ++una_;
    duplicate_acks_ = 0;
  }
  const uint32_t selected =
      selective.empty()
          ? 0
          : apply_selective(ack + (mutated(Mutation::selective_one_off) ? 0 : 1), selective);
  newly += selected;
  if (newly != 0) {
    progress_ = env_.now;
    congestion_.on_ack(env_.now, newly, sample.count() != 0 ? sample : rtt_.srtt(), rtt_.min_rtt(),
                       was_full);
    complete_requests();
  } else if (header.type == FrameType::ack && ack == una_ && una_ != next_) {
    // Duplicate acknowledgement: the receiver got something that is not `una_`.
    ++statistics_.duplicate_acks;
    Segment& oldest = segments_[una_ & segment_mask_];
    if (++duplicate_acks_ == reorder_threshold && oldest.state == Segment::State::in_flight) {
      ++statistics_.fast_retransmits;
      queue_resend(oldest);
    }
  }
  if (selected != 0) {
    detect_losses();
  }
  if (sendable()) {
    make_ready();
  }
  if (timer_use_ != TimerUse::tail_probe) {
    arm_tail_probe();
  }
}

void DatagramPath::detect_losses() {
  uint32_t lost = 0;
  for (uint32_t sequence = una_; sequence != next_; ++sequence) {
    Segment& segment = segments_[sequence & segment_mask_];
    if (segment.state == Segment::State::in_flight &&
        segment.order + reorder_threshold <= acked_order_[static_cast<size_t>(segment.channel)]) {
      queue_resend(segment);
      ++lost;
    }
  }
  if (lost != 0) {
    statistics_.fast_retransmits += lost;
    congestion_.on_loss(env_.now, lost, rtt_.srtt());
  }
}

void DatagramPath::complete_requests() {
  while (request_head_ != request_next_) {
    WorkRequest& request = requests_[request_head_ & request_mask_];
    const int32_t missing = mutated(Mutation::done_a_segment_early) ? -1 : 0;
    if (!request.all_sent || sequence_distance(una_, request.end_sequence) < missing) {
      break;
    }
    ++request_head_;
    if (request.unsignaled) {
      continue;
    }
    Completion completion;
    completion.id = request.id;
    completion.path = this;
    completion.kind = request.kind;
    completion.bytes = request.length;
    env_.complete(completion);
  }
}

bool DatagramPath::starved() const {
  return request_next_ != request_tail_ && una_ == next_ && sequence_distance(next_, limit_) >= 0;
}

bool DatagramPath::budget_spent() {
  const LostTime* lost = env_.lost;
  const Moment now{env_.now, lost == nullptr ? Duration(0) : lost->total()};
  if (std::exchange(silent_after_, progress_) != progress_) {
    silent_since_ = now;
  }
  return now.ran_since(silent_since_) >= env_.options.dead_after;
}

void DatagramPath::on_evicted(Segment& segment) {
  if (state_ != PathState::ready || segment.state != Segment::State::in_flight) {
    return;
  }
  ++statistics_.timeouts;
  if (budget_spent()) {
    break_path(CompletionStatus::retry_exceeded,
               nccl_ha::fail(Errc::remote,
                             fmt::format("no acknowledgement for {} ms from the peer: {}",
                                         env_.options.dead_after.count() / 1'000'000, describe())));
    return;
  }
  // All segments of a lost burst are evicted together; that is one timeout, not many.
  if (env_.now - last_backoff_ >= rtt_.rto() / 2) {
    last_backoff_ = env_.now;
    rtt_.back_off();
    congestion_.on_timeout();
  }
  queue_resend(segment);
}

// The last segments of a burst have nobody behind them whose acknowledgement would show their loss;
// instead of waiting for the timeout, the newest one is sent again after two round trips (RFC
// 8985).
void DatagramPath::arm_tail_probe() {
  if (state_ != PathState::ready || (una_ == next_ && !starved())) {
    return;
  }
  const Duration wait =
      std::max<Duration>(2 * rtt_.srtt() + env_.options.ack_delay, std::chrono::microseconds(500));
  timer_use_ = TimerUse::tail_probe;
  if (!timer_.armed()) {
    env_.timers->arm(timer_, env_.now + wait);
  }
}

void DatagramPath::send_tail_probe() {
  timer_use_ = TimerUse::none;
  if (starved()) {
    // The credits that would let us go on may have been lost: ask. No budget runs meanwhile,
    // since the peer owes us nothing.
    FrameHeader probe;
    probe.type = FrameType::probe;
    probe.path = peer_.path;
    probe.token = peer_.token;
    stamp(probe);
    env_.stage.command(peer_.command, probe, {});
    timer_use_ = TimerUse::tail_probe;
    env_.timers->arm(timer_, env_.now + std::max<Duration>(rtt_.rto(), probe_period));
    return;
  }
  if (una_ == next_) {
    return;
  }
  const Duration wait =
      std::max<Duration>(2 * rtt_.srtt() + env_.options.ack_delay, std::chrono::microseconds(500));
  if (env_.now - progress_ < wait) {
    timer_use_ = TimerUse::tail_probe;
    env_.timers->arm(timer_, progress_ + wait);
    return;
  }
  Segment& newest = segments_[(next_ - 1) & segment_mask_];
  if (newest.state == Segment::State::in_flight && !newest.listed) {
    ++statistics_.tail_probes;
    queue_resend(newest);
  }
}

}  // namespace nccl_ha::fabric
