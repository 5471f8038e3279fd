// The segments of a path by their sequence numbers, from the oldest that is not acknowledged to the
// newest: which of them are in flight, which the peer has, and how many more it allows.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/fabric/datagram/activity.h"
#include "runtime/fabric/datagram/loss_detector.h"
#include "runtime/fabric/datagram/segment.h"
#include "runtime/fabric/datagram/wire.h"

namespace nccl_ha::fabric {

/// A segment is in flight exactly while it is in the hotel, and its payload while `activity` counts
/// it.
class SendWindow {
 public:
  SendWindow(Hotel& hotel, Activity& activity) : hotel_(hotel), activity_(activity) {}
  ~SendWindow() { NHA_DASSERT(in_flight_ == 0, "segments outlive their window"); }
  SendWindow(const SendWindow&) = delete;
  SendWindow& operator=(const SendWindow&) = delete;

  /// Once, before anything is sent: of `size` segments, a power of two, of which the peer takes all
  /// and which may hold `bytes_max` of payload.
  void open(DatagramPath* path, uint32_t size, uint64_t bytes_max);
  /// All segments are given up.
  void close(Instant now);

  bool empty() const { return oldest_ == next_; }
  uint32_t oldest() const { return oldest_; }
  uint32_t next() const { return next_; }
  uint32_t in_flight() const { return in_flight_; }
  /// The peer takes another one.
  bool has_credit() const { return sequence_distance(next_, limit_) < 0; }
  /// Another one may be sent while `congestion_window` of them are allowed in flight.
  bool has_room(uint32_t congestion_window) const {
    return has_credit() && next_ - oldest_ <= mask_ && in_flight_ < congestion_window &&
           (in_flight_ == 0 || in_flight_bytes_ < bytes_max_);
  }

  /// The one that takes the next number; on_sent() makes it part of the window.
  Segment& next_segment() {
    Segment& segment = segments_[next_ & mask_];
    NHA_DASSERT(segment.state == Segment::State::free, "segment still in use");
    segment.sequence = next_;
    segment.late_until = {};
    return segment;
  }
  Segment& newest() { return segments_[(next_ - 1) & mask_]; }

  /// For the first time or again; it is evicted from the hotel at `deadline`.
  void on_sent(Segment& segment, Channel channel, Instant deadline) {
    NHA_DASSERT(segment.state ==
                    (segment.sequence == next_ ? Segment::State::free : Segment::State::resend),
                "only a new or a lost segment is sent");
    segment.channel = channel;
    segment.order = losses_.on_sent(channel);
    segment.state = Segment::State::in_flight;
    ++in_flight_;
    in_flight_bytes_ += segment.length;
    activity_.on_sent(segment.length);
    hotel_.check_in(segment.room, deadline);
    next_ += segment.sequence == next_ ? 1 : 0;
  }
  /// It is lost, or did not leave: it is to be sent again.
  void take_back(Segment& segment, Instant now) {
    NHA_DASSERT(segment.state == Segment::State::in_flight, "only a sent segment is sent again");
    leave_flight(segment, now);
    segment.state = Segment::State::resend;
  }

  /// Whether the peer may have said so: either it moves the window, or it is a late one.  What lies
  /// outside was never sent, and half the number space away even the order of sequence numbers is
  /// undefined: not ours to trust.
  bool plausible(uint32_t acknowledge) const {
    return acknowledge - oldest_ <= next_ - oldest_ || oldest_ - acknowledge <= INT32_MAX;
  }
  /// The peer takes what lies before `limit`.  What it allowed it cannot take back.
  void allow(uint32_t limit) {
    // A very late acknowledgement's may seem to lie ahead, half the number space away.
    const bool near = limit - oldest_ <= mask_ + 1 + UINT16_MAX;
    if (near && sequence_distance(limit, limit_) > 0) {
      limit_ = limit;
    }
  }
  /// All before `acknowledge` has arrived.  Returns for how many segments this is news.
  uint32_t acknowledge(uint32_t acknowledge, Instant now) {
    uint32_t newly = 0;
    for (; sequence_distance(oldest_, acknowledge) < 0; ++oldest_) {
      Segment& segment = segments_[oldest_ & mask_];
      newly += on_acknowledged(segment, now) ? 1 : 0;
      segment.state = Segment::State::free;
      losses_.on_progress();
    }
    return newly;
  }
  /// So have those of which a bit is set; the first bit is that of `from`.
  uint32_t acknowledge_selected(uint32_t from, std::span<const std::byte> bitmap, Instant now);

  /// An acknowledgement said nothing new.  Returns the segment that it shows to be lost, or null.
  Segment* on_duplicate() {
    Segment& first = segments_[oldest_ & mask_];
    const bool lost = losses_.on_duplicate() && first.state == Segment::State::in_flight;
    return lost ? &first : nullptr;
  }
  /// Calls lost(Segment&) for those in flight that later ones have overtaken, which takes them
  /// back.  Returns how many.
  template <class Lost>
  uint32_t each_lost(Lost&& lost) {
    uint32_t count = 0;
    for (uint32_t sequence = oldest_; sequence != next_; ++sequence) {
      Segment& segment = segments_[sequence & mask_];
      if (segment.state == Segment::State::in_flight &&
          losses_.lost(segment.channel, segment.order)) {
        lost(segment);
        ++count;
      }
    }
    return count;
  }

  /// Sent, and not acknowledged in any way; walks all of them.
  uint64_t count_open() const;
  /// What does not hold.
  std::optional<std::string> self_check() const;
  void on_timeout() { losses_.on_timeout(); }

 private:
  void leave_flight(Segment& segment, Instant now) {
    hotel_.check_out(segment.room);
    --in_flight_;
    in_flight_bytes_ -= segment.length;
    activity_.on_returned(segment.length, now);
  }
  /// False: that was known.
  bool on_acknowledged(Segment& segment, Instant now) {
    if (!segment.open()) {
      return false;
    }
    if (segment.state == Segment::State::in_flight) {
      leave_flight(segment, now);
    }
    if (now < segment.late_until) {
      losses_.on_late();  // `order` is of a transmission that is under way, or still waits
    } else {
      losses_.on_arrived(segment.channel, segment.order);
    }
    return true;
  }

  Hotel& hotel_;
  Activity& activity_;
  std::vector<Segment> segments_;  // ring by sequence
  uint32_t mask_ = 0;
  uint32_t oldest_ = 0;  ///< not acknowledged
  uint32_t next_ = 0;    ///< sequence to send
  uint32_t limit_ = 0;   ///< first sequence that may not be sent (credits)
  uint32_t in_flight_ = 0;
  uint64_t in_flight_bytes_ = 0;
  uint64_t bytes_max_ = 0;
  LossDetector losses_;
};

}  // namespace nccl_ha::fabric
