#include "relay/message_receiver.h"

#include <span>

namespace nccl_ha::relay {

MessageReceiver::MessageReceiver(fabric::Memory& memory, uint64_t domain, uint32_t receives_max)
    : memory_(memory), domain_(domain), receives_(receives_max) {
  memory_.attach(&guard_);
}

MessageReceiver::~MessageReceiver() { memory_.detach(&guard_); }

Errc MessageReceiver::post() {
  if (receives_.full()) {
    return Errc::again;
  }
  receives_.push();
  ++posted_;
  return Errc::ok;
}

std::optional<Frame> MessageReceiver::frame(uint32_t slot) const {
  const auto frame = hop_->frame(slot);
  const bool ours = frame && frame->session == line_.session && frame->origin == line_.origin &&
                    frame->destination == line_.destination && frame->hops == line_.hops &&
                    frame->hop == line_.hops;
  return ours ? frame : std::nullopt;
}

MessageReceiver::Outcome MessageReceiver::on_message(const Frame& frame, uint32_t slot) {
  if (frame.sequence != delivered_ + 1) {
    return {Outcome::Kind::wrong, {}};
  }
  switch (frame.kind) {
    case FrameKind::note:
      return on_note(frame);
    case FrameKind::write:
      return on_piece(frame, slot);
    case FrameKind::ack:
      break;
  }
  return {Outcome::Kind::wrong, {}};
}

MessageReceiver::Outcome MessageReceiver::on_note(const Frame& frame) {
  return arrived_bytes_ == 0 ? written(frame) : Outcome{Outcome::Kind::wrong, {}};
}

/// Its bytes are where they belong, all of them with the last piece.
MessageReceiver::Outcome MessageReceiver::on_piece(const Frame& frame, uint32_t slot) {
  const bool lacks_receive = frame.has_immediate() && receives_.empty();
  if (hop_->place().direct || frame.offset != arrived_bytes_ || lacks_receive) {
    return {Outcome::Kind::wrong, {}};
  }
  const std::span<const std::byte> bytes(hop_->slot(slot) + frame_header_bytes,
                                         frame.payload_bytes);
  if (!bytes.empty() && !memory_.write(guard_, frame.remote_key, domain_, frame.remote_address,
                                       bytes, (frame.flags & frame_exact) != 0)) {
    return {Outcome::Kind::refused, {}};
  }
  arrived_bytes_ += frame.payload_bytes;
  if (!frame.last()) {
    return {};
  }
  arrived_bytes_ = 0;
  return written(frame);
}

MessageReceiver::Outcome MessageReceiver::written(const Frame& frame) {
  if (!frame.has_immediate()) {
    ++delivered_;
    return {};
  }
  if (receives_.empty()) {
    return {Outcome::Kind::wrong, {}};
  }
  ++delivered_;
  take_receive();
  Outcome outcome;
  outcome.kind = Outcome::Kind::complete;
  outcome.completion.kind = fabric::CompletionKind::receive_immediate;
  outcome.completion.has_immediate = true;
  outcome.completion.immediate = frame.immediate;
  outcome.completion.bytes = frame.message_bytes;
  return outcome;
}

}  // namespace nccl_ha::relay
