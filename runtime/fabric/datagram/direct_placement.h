// Direct data placement (RFC 5041) of a run of coalesced frames: the kernel reads their payload to
// where it belongs, guessed from the first header.  One run at a time, one thread.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/fabric/datagram/wire.h"
#include "runtime/fabric/packet_io.h"

namespace nccl_ha::fabric {

class DirectPlacement {
 public:
  static constexpr size_t frames_max = 64;

  DirectPlacement() : rest_buffer_(run_bytes_max) {}

  /// Of a run of `total` bytes, in frames of `segment` each, that begins with a write: how much
  /// payload goes to its place.  `takes(sequence)`: that one has not come yet.
  ///
  /// The first frame certainly: its header has been read.  The others are the next segments of the
  /// same fragment unless one was lost on the way; their place has not been received yet, so a
  /// wrong guess harms nobody.
  template <class Takes>
  size_t plan(const FrameHeader& first, size_t total, size_t segment, Takes&& takes) {
    frames_ = 1;
    size_t bytes = first.payload_length;
    const size_t all = (total + segment - 1) / segment;
    const size_t left = first.fragment_length - first.fragment_offset;
    while (frames_ < all && frames_ < frames_max) {
      const size_t frame = std::min(segment, total - frames_ * segment);
      if (frame <= header_bytes || bytes + (frame - header_bytes) > left ||
          !takes(first.sequence + static_cast<uint32_t>(frames_))) {
        break;
      }
      bytes += frame - header_bytes;
      ++frames_;
    }
    segment_ = segment;
    rest_ = total - std::min(total, frames_ * segment);
    last_ = std::min(segment, total - (frames_ - 1) * segment);
    NHA_DASSERT(rest_ <= rest_buffer_.size(), "a run is longer than a datagram can be");
    return bytes;
  }
  /// Where to read the run that was planned; its payload lies at `to` then.
  Placement begin(std::byte* to) {
    size_t parts = 0;
    for (size_t i = 0; i < frames_; ++i) {
      const size_t payload = (i + 1 == frames_ ? last_ : segment_) - header_bytes;
      parts_[parts++] = {headers_[i].data(), header_bytes};
      parts_[parts++] = {to, payload};
      to += payload;
    }
    if (rest_ != 0) {
      parts_[parts++] = {rest_buffer_.data(), rest_};
    }
    return {parts_.data(), parts};
  }
  /// The run has been read; its first header, if it is one.
  std::optional<FrameHeader> first() const { return header(0); }
  /// accept(header, payload) is asked for each frame that lies where it says; frame(bytes) is given
  /// the ones that do not, or that are not accepted.
  template <class Accept, class Frame>
  void end(Accept&& accept, Frame&& frame) {
    const auto expected = first();
    std::vector<std::byte> moved;  // allocated only after a loss inside a coalesced run
    for (size_t i = 0; i < frames_; ++i) {
      const auto own = header(i);
      if (own && expected && in_place(*own, *expected, i) && accept(*own, payload(i))) {
        continue;
      }
      // Take a copy before anything else is put in place: it may lie where another one belongs.
      moved.insert(moved.end(), headers_[i].begin(), headers_[i].end());
      moved.insert(moved.end(), payload(i).begin(), payload(i).end());
    }
    each_frame(moved, frame);
    each_frame(std::span(rest_buffer_).first(rest_), frame);
  }

 private:
  static constexpr size_t run_bytes_max = 65536;

  std::span<const std::byte> payload(size_t i) const {
    const iovec& part = parts_[2 * i + 1];
    return {static_cast<const std::byte*>(part.iov_base), part.iov_len};
  }
  std::optional<FrameHeader> header(size_t i) const {
    return decode(headers_[i], header_bytes + payload(i).size());
  }
  bool in_place(const FrameHeader& own, const FrameHeader& first, size_t i) const {
    return own.type == FrameType::put && own.path == first.path && own.token == first.token &&
           own.key == first.key && own.address == first.address &&
           own.payload_length == payload(i).size() &&
           own.address + own.fragment_offset == reinterpret_cast<uint64_t>(payload(i).data());
  }
  /// Of a run all frames but the last one are of the same size.
  template <class Frame>
  void each_frame(std::span<const std::byte> run, Frame& frame) const {
    for (; !run.empty(); run = run.subspan(std::min(segment_, run.size()))) {
      frame(run.first(std::min(segment_, run.size())));
    }
  }

  std::array<std::array<std::byte, header_bytes>, frames_max> headers_;
  std::array<iovec, frames_max * 2 + 1> parts_;
  size_t frames_ = 0;
  size_t segment_ = 0;                  // bytes of each frame but the run's last
  size_t last_ = 0;                     // bytes of the last frame that goes to its place
  size_t rest_ = 0;                     // bytes behind them
  std::vector<std::byte> rest_buffer_;  // where those are read to
};

}  // namespace nccl_ha::fabric
