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
constexpr size_t encrypted_bytes_max = 512 * 1024;

}  // namespace

SendStage::SendStage(std::unique_ptr<PacketIo> io, bool offload, DatagramPortCounters& statistics)
    : io_(std::move(io)),
      statistics_(statistics),
      command_bytes_(std::min(io_->datagram_bytes_max(), SendBatch::datagram_bytes)),
      offload_(offload) {}

void SendStage::command(const SocketAddress& to, FrameHeader header,
                        std::span<const std::byte> payload, FrameSeal* seal) {
  header.flags |= seal != nullptr ? flag_sealed : 0;
  const size_t bytes = header.frame_bytes();
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
  if (seal != nullptr) {
    seal->close(std::span(out, bytes));
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

void SendStage::data(const SocketAddress& to, Segment& segment, FrameHeader header,
                     std::span<const iovec> payload, FrameSeal* seal) {
  SendBatch& batch = data_;
  header.flags |= seal != nullptr ? flag_sealed : 0;
  const size_t bytes = header.frame_bytes();
  const bool encrypts = seal != nullptr && seal->encrypts();
  if (batch.frame_count == SendBatch::frames_max || batch.count == SendBatch::messages_max ||
      (encrypts && encrypted_bytes_ + bytes > encrypted_bytes_max)) {
    flush(Channel::data);
  }
  const size_t frame = batch.frame_count++;
  encode(header, batch.headers[frame].data());
  iovec* parts = batch.parts.data() + batch.part_count;
  size_t part_count = 1;
  if (encrypts) {
    parts[0] = encrypted(batch.headers[frame], payload, bytes, *seal);
  } else {
    parts[0] = {batch.headers[frame].data(), header_bytes};
    std::copy(payload.begin(), payload.end(), parts + 1);
    part_count += payload.size();
    if (seal != nullptr) {
      seal->close(std::span(parts, part_count), batch.seals[frame]);
      parts[part_count++] = {batch.seals[frame].data(), seal_bytes};
    }
  }
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

void SendStage::prepare_encryption() { encrypted_.resize(encrypted_bytes_max); }

/// The whole frame: what is encrypted cannot stay where it is the user's.
iovec SendStage::encrypted(std::span<const std::byte> header, std::span<const iovec> payload,
                           size_t bytes, FrameSeal& seal) {
  std::byte* const frame = encrypted_.data() + encrypted_bytes_;
  std::byte* end = std::ranges::copy(header, frame).out;
  for (const iovec& part : payload) {
    end = std::copy_n(static_cast<const std::byte*>(part.iov_base), part.iov_len, end);
  }
  seal.close(std::span(frame, bytes));
  encrypted_bytes_ += bytes;
  return {frame, bytes};
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

bool SendStage::probe(const SocketAddress& to, FrameHeader header, FrameSeal* seal) {
  flush(Channel::data);
  header.flags |= seal != nullptr ? flag_sealed : 0;
  probe_.assign(header.frame_bytes(), std::byte{0});
  encode(header, probe_.data());
  if (seal != nullptr) {
    seal->close(probe_);
  }
  std::array<iovec, 1> parts{iovec{probe_.data(), probe_.size()}};
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
  if (channel == Channel::data) {
    encrypted_bytes_ = 0;
  }
}

}  // namespace nccl_ha::fabric
