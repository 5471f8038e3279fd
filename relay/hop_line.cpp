#include "relay/hop_line.h"

#include <algorithm>

#include "ha/error_class.h"

namespace nccl_ha::relay {
namespace {

/// In immediates: the rest counts slots that have become free.
constexpr uint32_t immediate_credit = 0x80000000;
constexpr uint32_t immediate_count = 0x7FFFFFFF;

/// For an answer from beyond the relays to take an acknowledgement along.  Slots are no reason for
/// hurry, there are others.
constexpr Duration ack_leisure = std::chrono::microseconds(250);

}  // namespace

void HopLine::size(fabric::PathOptions& options, uint32_t posts) const {
  // A note of free slots tells of one at least, which is then used again before the next.
  options.writes_max = posts + slots_ + theirs_most_;
  options.receives_max = uint32_t{slots_} + theirs_most_;
  options.receives_spare = 0;
  options.own_domain = true;
  options.ack_leisure = ack_leisure;
}

void HopLine::allocate(uint16_t slots, uint32_t chunk_bytes, uint16_t theirs_most) {
  slots_ = slots;
  theirs_most_ = theirs_most;
  chunk_bytes_ = chunk_bytes;
  memory_.allocate(slots, frame_header_bytes + chunk_bytes);
}

SlotWindow HopLine::window() const {
  return {reinterpret_cast<uint64_t>(memory_.place(0)), memory_.remote_key(place_),
          static_cast<uint32_t>(memory_.place_bytes()), slots_};
}

Result<void> HopLine::connect(std::span<const std::byte> address, const SlotWindow& theirs,
                              uint32_t chunk_bytes) {
  // No more than the hop was made for, so that either side has receives enough for what the other
  // one tells.
  if (theirs.slots < slots_min || theirs.slots > theirs_most_ ||
      theirs.slot_bytes < frame_header_bytes + chunk_bytes) {
    return fail(Errc::remote, "a neighbour on the route has slots of an impossible size");
  }
  theirs_ = theirs;
  chunk_bytes_ = chunk_bytes;
  // Before the first frame can come; both sides may use all slots and tell of as many.
  for (uint32_t i = 0; i < uint32_t{slots_} + theirs_.slots; ++i) {
    if (!post_receive()) {
      return fail(Errc::internal, "a hop takes fewer receives than it was made for");
    }
  }
  return hop_.path->connect(address);
}

bool HopLine::post_receive() {
  const bool posted = hop_.path->post_receive() == Errc::ok;
  counts_.receives_in_hop += posted ? 1 : 0;
  return posted;
}

bool HopLine::post(const fabric::Gather* gathers, uint32_t count, uint64_t id) {
  if (!room()) {
    return false;
  }
  if (counts_.freed - counts_.told >= std::max<uint32_t>(slots_ / 8U, 1)) {
    tell_free();  // travels along
  }
  fabric::WritePost write;
  write.id = id;
  write.gather_count = count;
  std::copy_n(gathers, count, std::begin(write.gathers));
  write.remote_address = theirs_.address + counts_.sent % theirs_.slots * theirs_.slot_bytes;
  write.remote_key = theirs_.key;
  write.has_immediate = true;
  write.immediate = static_cast<uint32_t>(counts_.sent & immediate_count);
  if (!post_beside(write)) {
    return false;
  }
  ++counts_.sent;
  return true;
}

bool HopLine::post_beside(const fabric::WritePost& post) {
  if (hop_.path->post_write(post) != Errc::ok) {
    return false;
  }
  ++counts_.posts_in_hop;
  return true;
}

Errc HopLine::post_flush(const fabric::FlushPost& post, uint64_t domain) {
  const auto keys = memory_.hops().keys_of(place_, domain, post.remote_key);
  if (!keys) {
    // What a device that failed has brought is not there because it cannot be asked any more.
    const bool later = ha::is_busy(keys.error()) || ha::is_absence(keys.error().sys);
    return later ? Errc::again : Errc::invalid_usage;
  }
  fabric::FlushPost there = post;
  there.remote_key = keys->remote_key;
  const Errc posted = hop_.path->post_flush(there);
  counts_.posts_in_hop += posted == Errc::ok ? 1 : 0;
  return posted;
}

HopLine::Arrival HopLine::on_receive(const fabric::Completion& completion) {
  --counts_.receives_in_hop;
  if (completion.status != fabric::CompletionStatus::ok) {
    return {};
  }
  post_receive();
  const uint32_t count = completion.immediate & immediate_count;
  if ((completion.immediate & immediate_credit) != 0) {
    // Counts go round after 2^31; what is meant is near what was told before.
    const uint32_t more = (count - static_cast<uint32_t>(counts_.peer_freed)) & immediate_count;
    if (more > counts_.sent - counts_.peer_freed) {
      return {std::nullopt, true};
    }
    counts_.peer_freed += more;
    return {};
  }
  if (count != (counts_.received & immediate_count) || held() >= slots_) {
    return {std::nullopt, true};
  }
  return {static_cast<uint32_t>(counts_.received++ % slots_), false};
}

bool HopLine::on_sent(const fabric::Completion& completion) {
  --counts_.posts_in_hop;
  return completion.id != credit_id;
}

std::optional<Frame> HopLine::frame(uint32_t slot) const {
  const auto frame = decode_frame(std::span(memory_.place(slot), memory_.place_bytes()));
  return frame && frame->payload_bytes <= chunk_bytes_ ? frame : std::nullopt;
}

void HopLine::release() {
  ++counts_.freed;
  // Seldom, as each costs a packet; but before the neighbour has to wait.
  if (counts_.freed - counts_.told >= std::max<uint32_t>(slots_ / 2U, 1)) {
    tell_free();
  }
}

void HopLine::tell_free() {
  fabric::WritePost write;
  write.id = credit_id;
  write.has_immediate = true;
  write.immediate = immediate_credit | static_cast<uint32_t>(counts_.freed & immediate_count);
  if (post_beside(write)) {
    counts_.told = counts_.freed;
  }
}

}  // namespace nccl_ha::relay
