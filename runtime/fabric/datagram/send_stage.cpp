#include "runtime/fabric/datagram/send_stage.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/fabric/datagram/datagram_path.h"

namespace nccl_ha::fabric {
namespace {

// A run of segments handed to the kernel at once: 64 segments (its UDP_MAX_SEGMENTS) and less than
// the largest UDP datagram.
constexpr size_t run_segments_max = 60;
constexpr size_t run_bytes_max = 65000;
constexpr size_t zeros_bytes = 65536;

}  // namespace

SendStage::SendStage(std::unique_ptr<PacketIo> io, bool offload, DatagramPortCounters& statistics)
    : io_(std::move(io)),
      statistics_(statistics),
      command_bytes_(std::min(io_->datagram_bytes_max(), SendBatch::datagram_bytes)),
      offload_(offload),
      zeros_(zeros_bytes) {}

void SendStage::command(const SocketAddress& to, const FrameHeader& header,
                        std::span<const std::byte> payload) {
  const size_t bytes = header_bytes + payload.size();
  NHA_DASSERT(bytes <= command_bytes_, "frame too large for the command channel");
  SendBatch& batch = command_;
  // Frames to the same peer share a datagram, whichever of its paths they belong to, and keep their
  // order.
  size_t slot = last_to(to);
  if (slot != batch.count && batch.message_bytes[slot] + bytes <= command_bytes_) {
    ++statistics_.frames_bundled;
  } else {
    slot = batch.count;
    if (slot == SendBatch::messages_max) {
      flush(Channel::command);
      slot = 0;
    }
    batch.message_bytes[slot] = 0;
    batch.messages[slot] = {&to, &batch.parts[slot], 1, 0, false};
    batch.count = slot + 1;
  }
  std::byte* out = batch.copies[slot].data() + batch.message_bytes[slot];
  encode(header, out);
  if (!payload.empty()) {
    std::memcpy(out + header_bytes, payload.data(), payload.size());
  }
  batch.message_bytes[slot] += bytes;
  batch.parts[slot] = {batch.copies[slot].data(), batch.message_bytes[slot]};
}

size_t SendStage::last_to(const SocketAddress& to) const {
  size_t slot = command_.count;
  while (slot != 0 && !(*command_.messages[slot - 1].to == to)) {
    --slot;
  }
  return slot == 0 ? command_.count : slot - 1;
}

void SendStage::data(const SocketAddress& to, Segment& segment, const FrameHeader& header,
                     std::span<const iovec> payload) {
  SendBatch& batch = data_;
  const size_t bytes = header_bytes + header.payload_length;
  if (batch.frame_count == SendBatch::frames_max || (batch.count == SendBatch::messages_max)) {
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
  if (run_takes(to, bytes)) {
    batch.messages[batch.count - 1].part_count += part_count;
    batch.message_bytes[batch.count - 1] += bytes;
    batch.message_of[frame] = static_cast<uint8_t>(batch.count - 1);
    return;
  }
  const bool may_grow = bytes * 2 <= run_bytes_max;
  batch.messages[batch.count] = {&to, parts, part_count,
                                 static_cast<uint16_t>(may_grow ? bytes : 0), false};
  batch.message_bytes[batch.count] = bytes;
  batch.message_of[frame] = static_cast<uint8_t>(batch.count);
  ++batch.count;
}

bool SendStage::run_takes(const SocketAddress& to, size_t bytes) const {
  if (data_.count == 0 || !offload_ || !io_->segmentation_offload()) {
    return false;
  }
  const OutDatagram& last = data_.messages[data_.count - 1];
  const size_t total = data_.message_bytes[data_.count - 1];
  return last.to == &to && last.segment_bytes != 0 && bytes <= last.segment_bytes &&
         total % last.segment_bytes == 0 && total / last.segment_bytes < run_segments_max &&
         total + bytes <= run_bytes_max;
}

bool SendStage::run_grows(const SocketAddress& to) const {
  return data_.count != 0 && run_takes(to, data_.messages[data_.count - 1].segment_bytes);
}

bool SendStage::probe(const SocketAddress& to, const FrameHeader& header, size_t payload_bytes) {
  flush(Channel::data);
  std::array<std::byte, header_bytes> bytes;
  encode(header, bytes.data());
  std::array<iovec, 2> parts{iovec{bytes.data(), header_bytes},
                             iovec{zeros_.data(), payload_bytes}};
  OutDatagram out{&to, parts.data(), parts.size(), 0, true};
  ++statistics_.datagrams_sent;
  return io_->send(Channel::data, std::span(&out, 1)) == 1;
}

void SendStage::flush(Channel channel) {
  SendBatch& batch = channel == Channel::command ? command_ : data_;
  if (batch.empty()) {
    return;
  }
  for (size_t i = 0; i < batch.count; ++i) {
    OutDatagram& message = batch.messages[i];
    if (message.segment_bytes != 0 && batch.message_bytes[i] <= message.segment_bytes) {
      message.segment_bytes = 0;  // a run of one
    }
  }
  const size_t sent = io_->send(channel, std::span(batch.messages.data(), batch.count));
  statistics_.datagrams_sent += sent;
  if (sent < batch.count) {
    statistics_.short_sends += batch.count - sent;
    // The kernel's queue is full.  Bulk segments go again in the next pass; what the command
    // channel lost is small and comes again by its timer.
    for (size_t i = 0; channel == Channel::data && i < batch.frame_count; ++i) {
      if (batch.message_of[i] >= sent && batch.segments[i]->state == Segment::State::in_flight) {
        batch.segments[i]->path->queue_resend(*batch.segments[i]);
      }
    }
  }
  batch.count = 0;
  batch.frame_count = 0;
  batch.part_count = 0;
}

}  // namespace nccl_ha::fabric
