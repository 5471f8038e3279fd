#include "relay/message_sender.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "ha/error_class.h"

namespace nccl_ha::relay {

MessageSender::MessageSender(HopSource& hops, uint64_t domain, uint32_t messages_max)
    : hops_(hops),
      memory_(hops.memory()),
      domain_(domain),
      headers_(hops),
      sequence_of_(headers),
      messages_max_(messages_max),
      messages_(std::bit_ceil(std::max(messages_max, 1U))),
      mask_(messages_.size() - 1) {
  memory_.attach(&guard_);
}

MessageSender::~MessageSender() { memory_.detach(&guard_); }

Result<void> MessageSender::enter(const HopPlace& place, uint32_t chunk_bytes,
                                  fabric::PathOptions& options) {
  const bool copies = !place.direct;
  headers_.allocate(headers, frame_header_bytes + (copies ? chunk_bytes : 0));
  return headers_.enter(place, options);
}

void MessageSender::open(HopLine& hop, const FrameLine& line) {
  free_.clear();
  for (uint32_t header = 0; header < headers; ++header) {
    free_.push_back(header);
  }
  hop_ = &hop;
  line_ = line;
}

Errc MessageSender::push(const fabric::WritePost& post) {
  if (post.gather_count > fabric::gathers_max) {
    return Errc::invalid_argument;
  }
  if (tail_ - head_ >= messages_max_) {
    return Errc::again;
  }
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < post.gather_count; ++i) {
    bytes += post.gathers[i].length;
  }
  if (bytes > UINT32_MAX) {
    return Errc::invalid_argument;
  }
  Message message;
  message.id = post.id;
  message.unsignaled = post.unsignaled;
  message.gather_count = post.gather_count;
  std::copy_n(std::begin(post.gathers), post.gather_count, std::begin(message.gathers));
  message.bytes = static_cast<uint32_t>(bytes);
  message.flags = (post.has_immediate ? frame_immediate : 0) |
                  (post.no_speculative_placement ? frame_exact : 0);
  message.immediate = post.immediate;
  message.remote_address = post.remote_address;
  message.remote_key = post.remote_key;
  at(tail_++) = message;
  return Errc::ok;
}

bool MessageSender::pump() {
  bool left = false;
  while (hop_ != nullptr && next_ < tail_ && lost_ == 0 && !busy_) {
    Message& message = at(next_);
    if (!message.begun) {
      if (message.needs_receive() && receives_used_ >= peer_receives_) {
        return left;
      }
      receives_used_ += message.needs_receive() ? 1 : 0;
      message.begun = true;
    }
    if (free_.size() <= ack_headers - acks_ || !post_piece(message)) {
      return left;
    }
    left = true;
  }
  return left;
}

bool MessageSender::post_piece(Message& message) {
  while (gather_ < message.gather_count && message.gathers[gather_].length == gather_offset_) {
    ++gather_;
    gather_offset_ = 0;
  }
  fabric::Gather piece{};
  if (gather_ < message.gather_count) {
    const fabric::Gather& from = message.gathers[gather_];
    piece = {from.address + gather_offset_,
             std::min(line_.chunk_bytes, from.length - gather_offset_), from.key};
  }
  const bool last = offset_ + piece.length == message.bytes;
  Frame frame;
  frame.payload_bytes = piece.length;
  frame.sequence = next_ + 1;
  frame.remote_address = message.remote_address + offset_;
  frame.remote_key = message.remote_key;
  frame.message_bytes = message.bytes;
  frame.offset = offset_;
  frame.immediate = message.immediate;
  frame.flags = message.flags | (last ? frame_last : 0);
  if (!post_frame(frame, piece.length > 0 ? &piece : nullptr)) {
    return false;
  }
  offset_ += piece.length;
  gather_offset_ += piece.length;
  if (last) {
    ++next_;
    gather_ = 0;
    gather_offset_ = 0;
    offset_ = 0;
  }
  return true;
}

bool MessageSender::post_frame(const Frame& made, const fabric::Gather* payload) {
  if (!hop_->room()) {
    return false;
  }
  Frame frame = made;
  frame.origin = line_.origin;
  frame.destination = line_.destination;
  frame.session = line_.session;
  frame.hops = line_.hops;
  const uint32_t header = free_.back();
  encode(frame, headers_.place(header));
  fabric::Gather gathers[2] = {headers_.gather(header, 0, frame_header_bytes, hop_->place()), {}};
  uint32_t count = 1;
  fabric::Gather piece = payload != nullptr ? *payload : fabric::Gather{};
  if (payload != nullptr && (hop_->place().direct || name_by_device(piece))) {
    gathers[count++] = piece;
  } else if (busy_) {
    return false;
  } else if (payload != nullptr) {
    if (!copy(*payload, headers_.place(header) + frame_header_bytes)) {
      lost_ = frame.sequence;
      return false;
    }
    gathers[0].length += payload->length;
  }
  if (!hop_->post(gathers, count, header)) {
    return false;
  }
  free_.pop_back();
  sequence_of_[header] = frame.kind == FrameKind::ack ? 0 : frame.sequence;
  return true;
}

/// By the key by which the hop's device knows it; false: by none, or it is busy with something.
bool MessageSender::name_by_device(fabric::Gather& piece) {
  const auto keys = hops_.keys_of(hop_->place(), domain_, piece.key);
  if (keys) {
    piece.key = keys->local_key;
  } else if (ha::is_busy(keys.error())) {
    busy_ = keys.error();
  }
  return bool(keys);
}

/// False: the memory is not registered any more.
bool MessageSender::copy(const fabric::Gather& piece, std::byte* to) {
  guard_.enter();
  const std::byte* from =
      memory_.resolve(piece.key, domain_, reinterpret_cast<uint64_t>(piece.address), piece.length);
  if (from != nullptr) {
    std::memcpy(to, from, piece.length);
  }
  guard_.exit();
  return from != nullptr;
}

bool MessageSender::send_ack(uint64_t delivered, uint64_t receives) {
  if (hop_ == nullptr || acks_ >= ack_headers || free_.empty()) {
    return false;
  }
  Frame frame;
  frame.kind = FrameKind::ack;
  frame.sequence = delivered;
  frame.remote_address = receives;
  if (!post_frame(frame, nullptr)) {
    return false;
  }
  ++acks_;
  return true;
}

uint64_t MessageSender::on_sent(uint64_t id) {
  const auto header = static_cast<uint32_t>(id);
  free_.push_back(header);
  const uint64_t sequence = sequence_of_[header];
  acks_ -= sequence == 0 ? 1 : 0;
  return sequence;
}

}  // namespace nccl_ha::relay
