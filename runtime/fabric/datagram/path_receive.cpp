// The receiving half of a datagram path.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "runtime/base/check.h"
#include "runtime/base/mutation.h"
#include "runtime/fabric/datagram/datagram_path.h"

namespace nccl_ha::fabric {
namespace {

// Sends that overtook others wait in copies; a bound keeps a peer from filling our memory.
constexpr uint32_t stash_max = 64;
constexpr size_t selective_bytes_max = 128;

}  // namespace

void DatagramPath::on_frame(const FrameHeader& header, std::span<const std::byte> payload) {
  if (state_ == PathState::error) {
    return;
  }
  switch (header.type) {
    case FrameType::put:
    case FrameType::send:
      on_segment(header, payload, false);
      handle_ack(header, {});
      return;
    case FrameType::ack:
      handle_ack(header, payload);
      return;
    case FrameType::probe:
      handle_ack(header, {});
      if (!mutated(Mutation::probe_not_answered)) {
        schedule_ack(true);
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

std::byte* DatagramPath::destination(const FrameHeader& header) {
  return env_.memory->resolve(header.key, options_.domain, header.address + header.fragment_offset,
                              header.payload_length);
}

void DatagramPath::on_segment(const FrameHeader& header, std::span<const std::byte> payload,
                              bool in_place) {
  if (state_ == PathState::error || stale_peer_) {
    return;  // before connect() we could not even acknowledge
  }
  switch (window_.check(header.sequence)) {
    case ReceiveWindow::Verdict::duplicate:
      ++statistics_.duplicates;
      if (!mutated(Mutation::duplicate_not_answered)) {
        schedule_ack(true);  // our acknowledgement got lost
      }
      return;
    case ReceiveWindow::Verdict::beyond:
      ++statistics_.beyond_window;
      schedule_ack(true);
      return;
    case ReceiveWindow::Verdict::fresh:
      break;
  }
  arrived(header, payload, in_place);
}

void DatagramPath::arrived(const FrameHeader& header, std::span<const std::byte> payload,
                           bool in_place) {
  ArrivedSegment segment;
  segment.type = header.type;
  segment.flags = header.flags;
  segment.payload_length = header.payload_length;
  segment.immediate = header.immediate;
  segment.fragment_length = header.fragment_length;
  segment.fragment_offset = header.fragment_offset;
  if (header.type == FrameType::put) {
    if (!in_place && header.payload_length != 0) {
      std::byte* to = destination(header);
      if (to == nullptr) {
        refuse(header);
        return;
      }
      if ((header.flags & flag_no_speculation) != 0) {
        copy_lines(to, payload.data(), payload.size());
      } else {
        std::memcpy(to, payload.data(), payload.size());
      }
    }
  } else if (header.payload_length != 0) {
    if (stashed_ >= stash_max) {
      ++statistics_.stash_full;
      return;  // not acknowledged: it comes again when there is room
    }
    segment.stash = std::make_unique<std::byte[]>(payload.size());
    std::memcpy(segment.stash.get(), payload.data(), payload.size());
    ++stashed_;
  }
  if (header.payload_length != 0) {
    env_.mark_active();
  }
  ++statistics_.segments_received;
  statistics_.bytes_received += header.payload_length;
  (in_place ? statistics_.bytes_direct : statistics_.bytes_copied) += header.payload_length;
  echo_us_ = header.sent_us;
  echo_at_ = env_.now;
  have_echo_ = true;
  ++unacked_arrivals_;
  const bool had_gap = window_.gap();
  const bool in_order = window_.arrive(header.sequence, std::move(segment));
  if (in_order) {
    deliver();
  } else {
    ++statistics_.out_of_order;
  }
  const bool urgent = had_gap || !in_order || unacked_arrivals_ >= env_.options.ack_every;
  schedule_ack(urgent);
}

void DatagramPath::refuse(const FrameHeader& header) {
  ++statistics_.refused_writes;
  FrameHeader answer;
  answer.type = FrameType::refuse;
  answer.path = peer_.path;
  answer.token = peer_.token;
  answer.key = header.key;
  answer.address = header.address;
  answer.sent_us = env_.now_us();
  env_.stage.command(peer_.command, answer, {});
}

void DatagramPath::deliver() {
  while (window_.front() != nullptr && deliver_front()) {
  }
  if (window_.credits() == 0) {
    credits_closed_ = true;
  } else if (credits_closed_) {
    credits_closed_ = false;
    schedule_ack(true);  // the sender waits for this news
  }
}

bool DatagramPath::deliver_front() {
  ArrivedSegment& segment = *window_.front();
  const bool last = (segment.flags & flag_last) != 0;
  if (segment.type == FrameType::put && !(last && (segment.flags & flag_immediate) != 0)) {
    window_.pop();
    return true;
  }
  if (receive_head_ == receive_tail_) {
    return false;  // waits for post_receive
  }
  Receive& receive = receives_[receive_head_ & receive_mask_];
  Completion completion;
  completion.id = receive.id;
  completion.path = this;
  completion.has_immediate = (segment.flags & flag_immediate) != 0;
  completion.immediate = segment.immediate;
  completion.bytes = segment.fragment_length;
  completion.kind =
      segment.type == FrameType::put ? CompletionKind::receive_immediate : CompletionKind::receive;
  if (segment.type == FrameType::send && segment.payload_length != 0) {
    if (segment.fragment_length > receive.length) {
      break_path(CompletionStatus::length_error,
                 nccl_ha::fail(Errc::invalid_usage,
                               fmt::format("a message of {} bytes met a receive of {}: {}",
                                           segment.fragment_length, receive.length, describe())));
      return false;
    }
    std::byte* to =
        env_.memory->resolve(receive.key, options_.domain,
                             reinterpret_cast<uint64_t>(receive.address) + segment.fragment_offset,
                             segment.payload_length);
    if (to == nullptr) {
      break_path(CompletionStatus::local_protection,
                 nccl_ha::fail(Errc::invalid_usage,
                               "a receive buffer was deregistered while it was still posted"));
      return false;
    }
    std::memcpy(to, segment.stash.get(), segment.payload_length);
    --stashed_;
  }
  window_.pop();
  if (last) {
    ++receive_head_;
    env_.complete(completion);
  }
  return true;
}

Errc DatagramPath::post_receive(const ReceivePost& post) {
  if (state_ == PathState::error) {
    return Errc::closed;
  }
  if (receive_tail_ - receive_head_ >= options_.receives_max) {
    return Errc::again;
  }
  receives_[receive_tail_ & receive_mask_] = {post.id, post.address, post.length, post.key};
  ++receive_tail_;
  if (window_.front() != nullptr) {
    const GuardScope guard(env_.guard);
    deliver();
  }
  return Errc::ok;
}

void DatagramPath::flush_acks() {
  if (unacked_arrivals_ != 0) {
    schedule_ack(true);
    env_.acks_due = true;
  }
}

void DatagramPath::schedule_ack(bool urgent) {
  env_.wake();
  if (urgent) {
    env_.acks.urge(links_);
  } else {
    env_.acks.delay(links_, env_.now + env_.options.ack_delay);
  }
}

void DatagramPath::send_ack() {
  FrameHeader header;
  header.type = FrameType::ack;
  header.path = peer_.path;
  header.token = peer_.token;
  std::array<std::byte, selective_bytes_max> bitmap;
  const size_t bytes = window_.selective(bitmap);
  header.payload_length = static_cast<uint16_t>(bytes);
  const uint64_t piggybacked = statistics_.acks_piggybacked;
  stamp(header);
  statistics_.acks_piggybacked.set(piggybacked);
  ++statistics_.acks_sent;
  unacked_arrivals_ = 0;
  links_.ack_urgent = false;
  env_.acks.remove(links_);
  env_.stage.command(peer_.command, header, std::span(bitmap.data(), bytes));
}

}  // namespace nccl_ha::fabric
