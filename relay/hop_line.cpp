#include "relay/hop_line.h"

#include <algorithm>

#include "runtime/base/mutation.h"

namespace nccl_ha::relay {
namespace {

/// In immediates: the rest counts slots that have become free.
constexpr uint32_t immediate_credit = 0x80000000;
constexpr uint32_t immediate_count = 0x7FFFFFFF;

}  // namespace

void HopLine::size(fabric::PathOptions& options, uint32_t posts) const {
  // A note of free slots tells of one at least, which is then used again before the next.
  options.writes_max = posts + slots_ + theirs_most_;
  options.receives_max = uint32_t{slots_} + theirs_most_;
  options.receives_spare = 0;
}

Result<void> HopLine::allocate(uint64_t domain, uint16_t slots, uint32_t chunk_bytes,
                               uint16_t theirs_most) {
  slots_ = slots;
  theirs_most_ = theirs_most;
  chunk_bytes_ = chunk_bytes;
  return memory_.allocate(domain, slots, frame_header_bytes + chunk_bytes);
}

SlotWindow HopLine::window() const {
  return {reinterpret_cast<uint64_t>(memory_.place(0)), memory_.key(),
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
  const bool posted = hop_.path->post_receive({}) == Errc::ok;
  receives_in_hop_ += posted ? 1 : 0;
  return posted;
}

bool HopLine::post(const fabric::Gather* gathers, uint32_t count, uint64_t id) {
  if (!room()) {
    return false;
  }
  fabric::WritePost write;
  write.id = id;
  write.gather_count = count;
  std::copy_n(gathers, count, std::begin(write.gathers));
  write.remote_address = theirs_.address + sent_ % theirs_.slots * theirs_.slot_bytes;
  write.remote_key = theirs_.key;
  write.has_immediate = true;
  write.immediate = static_cast<uint32_t>(sent_ & immediate_count);
  if (!post_beside(write)) {
    return false;
  }
  ++sent_;
  return true;
}

bool HopLine::post_beside(const fabric::WritePost& post) {
  if (hop_.path->post_write(post) != Errc::ok) {
    return false;
  }
  ++posts_in_hop_;
  return true;
}

HopLine::Arrival HopLine::on_receive(const fabric::Completion& completion) {
  --receives_in_hop_;
  if (completion.status != fabric::CompletionStatus::ok) {
    return {};
  }
  post_receive();
  const uint32_t count = completion.immediate & immediate_count;
  if ((completion.immediate & immediate_credit) != 0) {
    // Counts go round after 2^31; what is meant is near what was told before.
    const uint32_t more = (count - static_cast<uint32_t>(peer_freed_)) & immediate_count;
    if (more > sent_ - peer_freed_) {
      return {std::nullopt, true};
    }
    peer_freed_ += more;
    return {};
  }
  if (count != (received_ & immediate_count) || held() >= slots_) {
    return {std::nullopt, true};
  }
  return {static_cast<uint32_t>(received_++ % slots_), false};
}

bool HopLine::on_sent(const fabric::Completion& completion) {
  --posts_in_hop_;
  return completion.id != credit_id;
}

std::optional<Frame> HopLine::frame(uint32_t slot) const {
  const auto frame = decode_frame(std::span(memory_.place(slot), memory_.place_bytes()));
  return frame && frame->payload_bytes <= chunk_bytes_ ? frame : std::nullopt;
}

void HopLine::release() {
  ++freed_;
  // Seldom, as each costs a packet; but before the neighbour has to wait.
  if (freed_ - told_ >= std::max<uint32_t>(slots_ / 4U, 1) && !mutated(Mutation::slots_untold)) {
    tell_free();
  }
}

void HopLine::tell_free() {
  fabric::WritePost write;
  write.id = credit_id;
  write.has_immediate = true;
  write.immediate = immediate_credit | static_cast<uint32_t>(freed_ & immediate_count);
  if (post_beside(write)) {
    told_ = freed_;
  }
}

}  // namespace nccl_ha::relay
