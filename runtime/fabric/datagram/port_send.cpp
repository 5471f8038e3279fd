// The sending half of a port: batches, retransmissions first, ready paths in turn, then
// acknowledgements that nothing carried.
#include <algorithm>
#include <cstring>

#include "runtime/check.h"
#include "runtime/fabric/datagram/datagram_path.h"
#include "runtime/fabric/datagram/port.h"

namespace nccl_ha::fabric {
namespace {

// What one pass may send before the receive side gets its turn again.
constexpr size_t pass_bytes_max = 512 * 1024;
// A run of segments handed to the kernel at once: 64 segments (its UDP_MAX_SEGMENTS) and less than
// the largest UDP datagram.
constexpr size_t run_segments_max = 60;
constexpr size_t run_bytes_max = 65000;
constexpr size_t ride_along_max = 16;

}  // namespace

bool DatagramPort::stage_command(DatagramPath& path, const FrameHeader& header,
                                 std::span<const std::byte> payload) {
  const size_t bytes = header_bytes + payload.size();
  NHA_DASSERT(bytes <= command_bytes_, "frame too large for the command channel");
  SendBatch& batch = command_;
  size_t slot = batch.count_;
  // Frames to the same peer share a datagram, whichever of its paths they belong to.
  const bool shares = slot != 0 && batch.message_bytes[slot - 1] + bytes <= command_bytes_ &&
                      *batch.messages[slot - 1].to == path.peer_.command;
  if (shares) {
    --slot;
    ++statistics_.frames_bundled;
  } else {
    if (slot == SendBatch::messages_max) {
      flush(Channel::command);
      slot = 0;
    }
    batch.message_bytes[slot] = 0;
    batch.messages[slot] = {&path.peer_.command, &batch.parts[slot], 1, 0, false};
    batch.count_ = slot + 1;
  }
  std::byte* out = batch.copies[slot].data() + batch.message_bytes[slot];
  encode(header, out);
  if (!payload.empty()) {
    std::memcpy(out + header_bytes, payload.data(), payload.size());
  }
  batch.message_bytes[slot] += bytes;
  batch.parts[slot] = {batch.copies[slot].data(), batch.message_bytes[slot]};
  return true;
}

bool DatagramPort::stage_data(DatagramPath& path, Segment& segment, const FrameHeader& header,
                              std::span<const iovec> payload) {
  SendBatch& batch = data_;
  const size_t bytes = header_bytes + header.payload_length;
  if (batch.frame_count == SendBatch::frames_max || (batch.count_ == SendBatch::messages_max)) {
    flush(Channel::data);
  }
  const size_t frame = batch.frame_count++;
  encode(header, batch.headers[frame].data());
  iovec* parts = batch.parts.data() + batch.part_count;
  parts[0] = {batch.headers[frame].data(), header_bytes};
  std::copy(payload.begin(), payload.end(), parts + 1);
  const size_t part_count = payload.size() + 1;
  batch.part_count += part_count;
  batch.segments[frame] = &segment;

  // Segmentation offload: equal segments of one path follow each other in one call; a shorter one
  // ends the run.
  if (batch.count_ != 0 && io_->segmentation_offload() && options_.offload) {
    OutDatagram& last = batch.messages[batch.count_ - 1];
    const size_t total = batch.message_bytes[batch.count_ - 1];
    if (batch.message_path[batch.count_ - 1] == &path && last.segment_bytes != 0 &&
        bytes <= last.segment_bytes && total % last.segment_bytes == 0 &&
        total / last.segment_bytes < run_segments_max && total + bytes <= run_bytes_max) {
      last.part_count += part_count;
      batch.message_bytes[batch.count_ - 1] += bytes;
      batch.message_of[frame] = static_cast<uint8_t>(batch.count_ - 1);
      return true;
    }
  }
  const bool may_grow = bytes * 2 <= run_bytes_max;
  batch.messages[batch.count_] = {&path.peer_.data, parts, part_count,
                                  static_cast<uint16_t>(may_grow ? bytes : 0), false};
  batch.message_bytes[batch.count_] = bytes;
  batch.message_path[batch.count_] = &path;
  batch.message_of[frame] = static_cast<uint8_t>(batch.count_);
  ++batch.count_;
  return true;
}

bool DatagramPort::stage_probe(DatagramPath& path, const FrameHeader& header,
                               size_t payload_bytes) {
  flush(Channel::data);
  std::array<std::byte, header_bytes> bytes;
  encode(header, bytes.data());
  std::array<iovec, 2> parts{iovec{bytes.data(), header_bytes},
                             iovec{zeros_.data(), payload_bytes}};
  OutDatagram out{&path.peer_.data, parts.data(), parts.size(), 0, true};
  ++statistics_.datagrams_sent;
  return io_->send(Channel::data, std::span(&out, 1)) == 1;
}

void DatagramPort::flush(Channel channel) {
  SendBatch& batch = channel == Channel::command ? command_ : data_;
  if (batch.empty()) {
    return;
  }
  for (size_t i = 0; i < batch.count_; ++i) {
    OutDatagram& message = batch.messages[i];
    if (message.segment_bytes != 0 && batch.message_bytes[i] <= message.segment_bytes) {
      message.segment_bytes = 0;  // a run of one
    }
  }
  const size_t sent = io_->send(channel, std::span(batch.messages.data(), batch.count_));
  statistics_.datagrams_sent += sent;
  if (sent < batch.count_) {
    statistics_.short_sends += batch.count_ - sent;
    // The kernel's queue is full.  Bulk segments go again in the next pass; what the command
    // channel lost is small and comes again by its timer.
    for (size_t i = 0; channel == Channel::data && i < batch.frame_count; ++i) {
      if (batch.message_of[i] >= sent && batch.segments[i]->state == Segment::State::in_flight) {
        queue_resend(*batch.segments[i]);
      }
    }
  }
  batch.count_ = 0;
  batch.frame_count = 0;
  batch.part_count = 0;
}

void DatagramPort::flush_all() {
  GuardScope guard(*this);
  flush(Channel::command);
  flush(Channel::data);
}

void DatagramPort::make_ready(DatagramPath& path) {
  if (path.ready_listed_) {
    return;
  }
  wake();
  path.ready_listed_ = true;
  path.ready_next_ = nullptr;
  if (ready_tail_ != nullptr) {
    ready_tail_->ready_next_ = &path;
  } else {
    ready_head_ = &path;
  }
  ready_tail_ = &path;
}

void DatagramPort::queue_resend(Segment& segment) {
  NHA_DASSERT(segment.state == Segment::State::in_flight, "only a sent segment is sent again");
  hotel_.check_out(segment.room);
  segment.state = Segment::State::resend;
  --segment.path->in_flight_;
  segment.path->in_flight_bytes_ -= segment.length;
  on_landing(segment.length);
  if (segment.listed) {
    return;
  }
  wake();
  segment.listed = true;
  segment.resend_next = nullptr;
  if (resend_tail_ != nullptr) {
    resend_tail_->resend_next = &segment;
  } else {
    resend_head_ = &segment;
  }
  resend_tail_ = &segment;
}

unsigned DatagramPort::progress_resends() {
  unsigned count = 0;
  unsigned looked_at = 0;
  while (resend_head_ != nullptr && count < options_.resend_batch &&
         looked_at < 4 * options_.resend_batch) {
    Segment& segment = *resend_head_;
    DatagramPath& path = *segment.path;
    resend_head_ = segment.resend_next;
    if (resend_head_ == nullptr) {
      resend_tail_ = nullptr;
    }
    segment.listed = false;
    ++looked_at;
    if (segment.state != Segment::State::resend) {
      continue;  // acknowledged meanwhile, or the path is gone
    }
    if (path.in_flight_ >= path.congestion_.window()) {
      // Its turn comes when acknowledgements make room; others must not wait behind it.
      segment.listed = true;
      segment.resend_next = nullptr;
      if (resend_tail_ != nullptr) {
        resend_tail_->resend_next = &segment;
      } else {
        resend_head_ = &segment;
      }
      resend_tail_ = &segment;
      continue;
    }
    if (path.transmit_again(segment)) {
      ++count;
    }
  }
  resends_blocked_ = count == 0;
  return count;
}

unsigned DatagramPort::progress_sends() {
  if (ready_head_ == nullptr && resend_head_ == nullptr && urgent_acks_.empty() &&
      (ack_head_ == nullptr || ack_head_->ack_deadline_ > now_) && command_.empty() &&
      data_.empty()) {
    return 0;
  }
  GuardScope guard(*this);
  unsigned work = progress_resends();
  size_t bytes = 0;
  DatagramPath* last = ready_tail_;
  while (ready_head_ != nullptr && bytes < pass_bytes_max) {
    DatagramPath& path = *ready_head_;
    ready_head_ = path.ready_next_;
    if (ready_head_ == nullptr) {
      ready_tail_ = nullptr;
    }
    path.ready_listed_ = false;
    const uint64_t before = path.statistics_.bytes_sent;
    uint32_t burst = 0;
    while (burst < options_.burst &&
           bytes + (path.statistics_.bytes_sent - before) < pass_bytes_max && path.sendable() &&
           path.send_next()) {
      ++burst;
    }
    bytes += static_cast<size_t>(path.statistics_.bytes_sent - before);
    work += burst;
    if (burst != 0 && path.sendable()) {
      make_ready(path);
    }
    if (&path == last) {
      break;
    }
  }
  work += progress_acks();
  if (!command_.empty() || !data_.empty()) {
    ++work;
    flush(Channel::command);
    flush(Channel::data);
  }
  return work;
}

void DatagramPort::schedule_ack(DatagramPath& path, bool urgent) {
  wake();
  if (urgent) {
    if (!path.ack_urgent_) {
      path.ack_urgent_ = true;
      urgent_acks_.push_back(&path);
    }
    return;
  }
  if (path.ack_listed_) {
    return;
  }
  path.ack_listed_ = true;
  path.ack_deadline_ = now_ + options_.ack_delay;
  path.ack_next_ = nullptr;
  path.ack_previous_ = ack_tail_;
  if (ack_tail_ != nullptr) {
    ack_tail_->ack_next_ = &path;
  } else {
    ack_head_ = &path;
  }
  ack_tail_ = &path;
}

void DatagramPort::unlist_ack(DatagramPath& path) {
  if (!path.ack_listed_) {
    return;
  }
  path.ack_listed_ = false;
  (path.ack_previous_ != nullptr ? path.ack_previous_->ack_next_ : ack_head_) = path.ack_next_;
  (path.ack_next_ != nullptr ? path.ack_next_->ack_previous_ : ack_tail_) = path.ack_previous_;
}

unsigned DatagramPort::progress_acks() {
  unsigned count = 0;
  for (DatagramPath* path : urgent_acks_) {
    if (path->ack_urgent_) {  // else a segment carried it meanwhile
      path->send_ack();
      ++count;
    }
  }
  urgent_acks_.clear();
  while (ack_head_ != nullptr && ack_head_->ack_deadline_ <= now_) {
    ack_head_->send_ack();  // takes itself off the list
    ++count;
  }
  // A datagram that leaves for the same peer anyway takes the others along for nothing, whichever
  // path they belong to: in a ping-pong the answer carries the acknowledgement of the question.
  DatagramPath* path = ack_head_;
  for (size_t looked_at = 0; path != nullptr && !command_.empty() && looked_at < ride_along_max;
       ++looked_at) {
    DatagramPath* next = path->ack_next_;
    if (*command_.messages[command_.count_ - 1].to == path->peer_.command) {
      path->send_ack();
      ++count;
    }
    path = next;
  }
  return count;
}

}  // namespace nccl_ha::fabric
