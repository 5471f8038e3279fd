#include "relay/forwarder.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace nccl_ha::relay {
namespace {

/// Of the receiver's that a relay remembers, for each direction of a session.
constexpr size_t keys_max = 1024;

}  // namespace

void Forwarder::open(const Options& options, std::shared_ptr<Egress> egress) {
  options_ = options;
  places_.resize(from_.slots());
  egress_ = std::move(egress);
  member_ = egress_ ? egress_->enter(this) : 0;
}

void Forwarder::close() {
  released_ = 0;
  waiting_.clear();
  if (const auto egress = std::exchange(egress_, nullptr)) {
    egress->leave(member_);
  }
}

Result<void> Forwarder::on_frame(uint32_t slot) {
  const auto frame = from_.frame(slot);
  const bool ours = frame && frame->session == options_.session &&
                    frame->origin == options_.origin &&
                    frame->destination == options_.destination && frame->hop == options_.hop &&
                    frame->hops == options_.hops && frame->kind != FrameKind::note;
  if (!ours) {
    return fail(Errc::remote, "a frame that does not belong to this session");
  }
  Place& place = places_[slot];
  place = {};
  place.frame = *frame;
  place.frame.hop = static_cast<uint16_t>(frame->hop + 1);
  ++counts_.frames;
  counts_.bytes += frame->payload_bytes;
  if (egress_) {
    ++egress_->counters().frames;
    egress_->counters().bytes += frame->payload_bytes;
    egress_->recorder().note(TraceEvent::relay_chunk, member_, frame->payload_bytes,
                             frame->session);
  }
  waiting_.push_back(slot);
  const bool whole = frame->last() || frame->kind == FrameKind::ack;
  if (!options_.store || whole || from_.full()) {
    released_ = waiting_.size();
  }
  pump();
  return {};
}

void Forwarder::pump() {
  if (released_ == 0 || !to_.ready()) {
    return;
  }
  if (egress_) {
    egress_->want(member_);
  } else {
    pass_on(std::numeric_limits<uint64_t>::max());
  }
}

FairShares::Taken Forwarder::pass_on(uint64_t bytes) {
  FairShares::Taken taken;
  while (released_ > 0 && to_.ready()) {
    Place& place = places_[waiting_.front()];
    if (!place.counted && place.bytes() > bytes - taken.bytes) {
      taken.more = true;
      return taken;
    }
    const bool posted = post(waiting_.front());
    if (!place.counted && (posted || place.posts > 0)) {
      place.counted = true;
      taken.bytes += place.bytes();
    }
    if (!posted) {
      ++counts_.waits;
      if (egress_) {
        ++egress_->counters().waits;
      }
      return taken;
    }
    waiting_.pop_front();
    --released_;
  }
  return taken;
}

bool Forwarder::post(uint32_t slot) {
  Place& place = places_[slot];
  if (place.frame.kind == FrameKind::write && options_.last()) {
    const bool direct = to_.place().direct;
    const auto key = direct ? place.frame.remote_key : key_at_receiver(place.frame);
    if (direct || !key || *key != 0) {
      return key && write_through(slot, *key);
    }
  }
  encode(place.frame, from_.slot(slot));
  const fabric::Gather whole =
      from_.gather(slot, 0, frame_header_bytes + place.frame.payload_bytes, to_);
  if (!to_.post(&whole, 1, slot)) {
    return false;
  }
  ++place.posts;
  place.leaving = true;
  return true;
}

/// 0: the receiver takes it out of a slot; nullopt: that is not known yet.
std::optional<uint32_t> Forwarder::key_at_receiver(const Frame& frame) {
  if (frame.payload_bytes == 0 || !options_.ask_key) {
    return 0;
  }
  if (const auto known = keys_.find(frame.remote_key); known != keys_.end()) {
    return known->second;
  }
  if (!asked_) {
    asked_ = frame.remote_key;
    options_.ask_key(frame.remote_key);
  }
  return std::nullopt;
}

bool Forwarder::on_key(uint32_t key, uint32_t remote_key) {
  if (asked_ != key) {
    return false;
  }
  asked_.reset();
  if (keys_.size() >= keys_max) {
    keys_.clear();  // it is asked again
  }
  keys_[key] = remote_key;
  pump();
  return true;
}

bool Forwarder::write_through(uint32_t slot, uint32_t remote_key) {
  Place& place = places_[slot];
  const Frame& frame = place.frame;
  if (frame.payload_bytes > 0 && !place.written) {
    fabric::WritePost post;
    post.id = slot;
    post.gather_count = 1;
    post.gathers[0] = from_.gather(slot, frame_header_bytes, frame.payload_bytes, to_);
    post.remote_address = frame.remote_address;
    post.remote_key = remote_key;
    post.no_speculative_placement = (frame.flags & frame_exact) != 0;
    if (!to_.post_beside(post)) {
      return false;
    }
    ++place.posts;
    place.written = true;
  }
  if (frame.last() && !post_note(slot)) {
    return false;
  }
  place.leaving = true;
  return true;
}

bool Forwarder::post_note(uint32_t slot) {
  Place& place = places_[slot];
  Frame note = place.frame;
  note.kind = FrameKind::note;
  note.payload_bytes = 0;
  encode(note, from_.slot(slot));
  const fabric::Gather header = from_.gather(slot, 0, frame_header_bytes, to_);
  if (!to_.post(&header, 1, slot)) {
    return false;
  }
  ++place.posts;
  return true;
}

void Forwarder::on_sent(uint64_t id) {
  Place& place = places_[id];
  if (--place.posts == 0) {
    if (place.leaving) {
      from_.release();
    }
    // Also of what has a part left that its hop does not take now: nothing of it is on the cable.
    if (egress_ && std::exchange(place.counted, false)) {
      egress_->done(member_, place.bytes());
    }
  }
  pump();
}

}  // namespace nccl_ha::relay
