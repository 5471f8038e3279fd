// The receiving half of a datagram path.
#include <fmt/format.h>

#include <array>
#include <cstring>

#include "runtime/base/check.h"
#include "runtime/fabric/copy_lines.h"
#include "runtime/fabric/datagram/datagram_path.h"

namespace nccl_ha::fabric {
namespace {

constexpr size_t selective_bytes_max = 128;

}  // namespace

std::optional<std::span<const std::byte>> DatagramPath::open(const FrameHeader& header,
                                                             std::span<const std::byte> frame) {
  if (!seal_) {
    return std::nullopt;  // a peer's early ping, which it sends again
  }
  if (seal_->encrypts()) {
    env_.opened.resize(std::max<size_t>(env_.opened.size(), header.payload_length));
  }
  const auto payload = (header.flags & flag_sealed) != 0
                           ? seal_->open(frame, env_.opened)
                           : std::optional<std::span<const std::byte>>();
  env_.statistics.forged += payload ? 0 : 1;
  return payload;
}

void DatagramPath::on_frame(const FrameHeader& header, std::span<const std::byte> payload) {
  if (state_ == PathState::error) {
    return;
  }
  switch (header.type) {
    case FrameType::put:
      on_segment(header, payload, false);
      handle_ack(header, {});
      return;
    case FrameType::ack:
      handle_ack(header, payload);
      return;
    case FrameType::probe:
      handle_ack(header, {});
      if (ends_.peer_known()) {
        acks_.owe(true);
      }
      return;
    case FrameType::ping:
      on_ping(header);
      return;
    case FrameType::pong:
      on_pong(header);
      return;
    case FrameType::refuse:
      break_path(CompletionStatus::remote_access,
                 nccl_ha::fail(Errc::remote,
                               fmt::format("the peer refused a write to address {:#x}, key {:#x} "
                                           "(memory deregistered there?): {}",
                                           header.address, header.key, describe())));
      return;
  }
}

void DatagramPath::on_segment(const FrameHeader& header, std::span<const std::byte> payload,
                              bool in_place) {
  if (state_ == PathState::error || !ends_.peer_known()) {
    return;  // before connect() we could not even acknowledge
  }
  switch (incoming_.check(header.sequence)) {
    case ReceiveWindow::Verdict::duplicate:
      ++statistics_.duplicates;
      acks_.owe(true);  // our acknowledgement got lost
      return;
    case ReceiveWindow::Verdict::beyond:
      ++statistics_.beyond_window;
      acks_.owe(true);
      return;
    case ReceiveWindow::Verdict::fresh:
      break;
  }
  arrived(header, payload, in_place);
}

/// Puts a write's payload where it belongs.  False: that is not the peer's to write.
bool DatagramPath::put(const FrameHeader& header, std::span<const std::byte> payload) {
  if (payload.empty()) {
    return true;
  }
  std::byte* to = env_.memory->resolve(header.key, options_.domain,
                                       header.address + header.fragment_offset, payload.size());
  if (to == nullptr) {
    refuse(header);
    return false;
  }
  if ((header.flags & flag_no_speculation) != 0) {
    copy_lines(to, payload.data(), payload.size());
  } else {
    std::memcpy(to, payload.data(), payload.size());
  }
  return true;
}

void DatagramPath::arrived(const FrameHeader& header, std::span<const std::byte> payload,
                           bool in_place) {
  if (!in_place && !put(header, payload)) {
    return;
  }
  if (header.payload_length != 0) {
    env_.activity.mark(env_.now);
  }
  ++statistics_.segments_received;
  statistics_.bytes_received += header.payload_length;
  (in_place ? statistics_.bytes_direct : statistics_.bytes_copied) += header.payload_length;
  acks_.on_arrival(header.sent_us, (header.flags & flag_last) != 0);
  const bool had_gap = incoming_.gap();
  const bool in_order =
      incoming_.arrive(header.sequence, {header.flags, header.immediate, header.fragment_length});
  if (in_order) {
    deliver();
  } else {
    ++statistics_.out_of_order;
  }
  acks_.owe(had_gap || !in_order || acks_.many());
}

void DatagramPath::refuse(const FrameHeader& header) {
  ++statistics_.refused_writes;
  FrameHeader answer = ends_.header(FrameType::refuse);
  answer.key = header.key;
  answer.address = header.address;
  answer.sent_us = env_.now_us();
  send_command(answer);
}

void DatagramPath::deliver() {
  while (incoming_.front() != nullptr && deliver_front()) {
  }
  acks_.on_credits(incoming_.credits());
}

bool DatagramPath::deliver_front() {
  const ArrivedSegment& segment = *incoming_.front();
  if ((segment.flags & flag_last) == 0 || (segment.flags & flag_immediate) == 0) {
    incoming_.pop();
    return true;
  }
  if (receives_.empty()) {
    return false;  // waits for post_receive
  }
  Completion completion;
  completion.path = this;
  completion.kind = CompletionKind::receive_immediate;
  completion.has_immediate = true;
  completion.immediate = segment.immediate;
  completion.bytes = segment.fragment_length;
  incoming_.pop();
  receives_.pop();
  env_.complete(completion);
  return true;
}

Errc DatagramPath::post_receive() {
  if (state_ == PathState::error) {
    return Errc::closed;
  }
  if (receives_.full()) {
    return Errc::again;
  }
  receives_.push();
  if (incoming_.front() != nullptr) {
    const GuardScope guard(env_.guard);
    deliver();
  }
  return Errc::ok;
}

void DatagramPath::send_ack() {
  std::array<std::byte, selective_bytes_max> bitmap;
  const size_t bytes = incoming_.selective(bitmap);
  FrameHeader header = ends_.header(FrameType::ack);
  header.payload_length = static_cast<uint16_t>(bytes);
  acks_.acknowledge(header, incoming_);
  send_command(header, std::span(bitmap.data(), bytes));
}

}  // namespace nccl_ha::fabric
