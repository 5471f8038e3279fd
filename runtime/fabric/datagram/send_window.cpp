#include "runtime/fabric/datagram/send_window.h"

#include <fmt/format.h>

namespace nccl_ha::fabric {

void SendWindow::open(DatagramPath* path, uint32_t size, uint64_t bytes_max) {
  NHA_ASSERT(segments_.empty() && size != 0 && (size & (size - 1)) == 0,
             "a send window is opened once, with a power of two");
  segments_ = std::vector<Segment>(size);
  for (Segment& segment : segments_) {
    segment.path = path;
  }
  mask_ = size - 1;
  limit_ = size;
  bytes_max_ = bytes_max;
}

void SendWindow::close(Instant now) {
  for (Segment& segment : segments_) {
    if (segment.state == Segment::State::in_flight) {
      leave_flight(segment, now);
    }
    segment.state = Segment::State::free;
  }
  oldest_ = next_;
}

uint32_t SendWindow::acknowledge_selected(uint32_t from, std::span<const std::byte> bitmap,
                                          Instant now) {
  uint32_t newly = 0;
  for (size_t i = 0; i < bitmap.size() * 8; ++i) {
    if ((std::to_integer<unsigned>(bitmap[i / 8]) >> (i % 8) & 1U) == 0) {
      continue;
    }
    const uint32_t sequence = from + static_cast<uint32_t>(i);
    if (sequence_distance(sequence, oldest_) < 0 || sequence_distance(sequence, next_) >= 0) {
      continue;
    }
    Segment& segment = segments_[sequence & mask_];
    if (on_acknowledged(segment, now)) {
      segment.state = Segment::State::acked;
      ++newly;
    }
  }
  return newly;
}

uint64_t SendWindow::count_open() const {
  uint64_t open = 0;
  for (const Segment& segment : segments_) {
    open += segment.open() ? 1 : 0;
  }
  return open;
}

std::optional<std::string> SendWindow::self_check() const {
  uint32_t in_flight = 0;
  uint64_t bytes = 0;
  uint32_t used = 0;
  for (const Segment& segment : segments_) {
    const bool flies = segment.state == Segment::State::in_flight;
    in_flight += flies ? 1 : 0;
    bytes += flies ? segment.length : 0;
    used += segment.state == Segment::State::free ? 0 : 1;
    if (flies != segment.room.occupied()) {
      return fmt::format("segment {}: in flight and hotel disagree", segment.sequence);
    }
  }
  if (in_flight != in_flight_ || bytes != in_flight_bytes_) {
    return fmt::format("{} segments of {} bytes in flight, counted {} of {}", in_flight, bytes,
                       in_flight_, in_flight_bytes_);
  }
  if (bytes > activity_.payload_in_flight()) {
    return fmt::format("{} bytes in flight, {} of all paths", bytes, activity_.payload_in_flight());
  }
  // Those that are used are the ones between oldest and next.
  if (used != next_ - oldest_) {
    return fmt::format("{} segments in use, {} in the window", used, next_ - oldest_);
  }
  for (uint32_t sequence = oldest_; sequence != next_; ++sequence) {
    const Segment& segment = segments_[sequence & mask_];
    if (segment.sequence != sequence || segment.state == Segment::State::free) {
      return fmt::format("segment {} is not in its place", sequence);
    }
  }
  if (sequence_distance(next_, limit_) > 0) {
    return fmt::format("segment {} was sent without credit", limit_);
  }
  return std::nullopt;
}

}  // namespace nccl_ha::fabric
