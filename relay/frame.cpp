#include "relay/frame.h"

#include "runtime/fabric/byte_order.h"

namespace nccl_ha::relay {
namespace {

constexpr bool known_kind(uint8_t kind) {
  return kind == static_cast<uint8_t>(FrameKind::write) ||
         kind == static_cast<uint8_t>(FrameKind::note) ||
         kind == static_cast<uint8_t>(FrameKind::ack);
}

}  // namespace

void encode(const Frame& frame, std::byte* out) {
  using fabric::put;
  put(out, 0, frame_magic);
  put(out, 4, frame_version);
  put(out, 5, static_cast<uint8_t>(frame.kind));
  put(out, 6, static_cast<uint16_t>(frame_header_bytes));
  put(out, 8, number(frame.origin));
  put(out, 16, number(frame.destination));
  put(out, 24, frame.session);
  put(out, 32, frame.hop);
  put(out, 34, frame.hops);
  put(out, 36, frame.payload_bytes);
  put(out, 40, frame.sequence);
  put(out, 48, frame.remote_address);
  put(out, 56, frame.remote_key);
  put(out, 60, frame.message_bytes);
  put(out, 64, frame.offset);
  put(out, 68, frame.immediate);
  put(out, 72, frame.flags);
  put(out, 76, uint32_t{0});
}

std::optional<Frame> decode_frame(std::span<const std::byte> bytes) {
  using fabric::get;
  if (bytes.size() < frame_header_bytes) {
    return std::nullopt;
  }
  const std::byte* in = bytes.data();
  const auto kind = get<uint8_t>(in, 5);
  if (get<uint32_t>(in, 0) != frame_magic || get<uint8_t>(in, 4) != frame_version ||
      get<uint16_t>(in, 6) != frame_header_bytes || get<uint32_t>(in, 76) != 0 ||
      !known_kind(kind)) {
    return std::nullopt;
  }
  Frame frame;
  frame.kind = FrameKind{kind};
  frame.origin = NodeId{get<uint64_t>(in, 8)};
  frame.destination = NodeId{get<uint64_t>(in, 16)};
  frame.session = get<uint64_t>(in, 24);
  frame.hop = get<uint16_t>(in, 32);
  frame.hops = get<uint16_t>(in, 34);
  frame.payload_bytes = get<uint32_t>(in, 36);
  frame.sequence = get<uint64_t>(in, 40);
  frame.remote_address = get<uint64_t>(in, 48);
  frame.remote_key = get<uint32_t>(in, 56);
  frame.message_bytes = get<uint32_t>(in, 60);
  frame.offset = get<uint32_t>(in, 64);
  frame.immediate = get<uint32_t>(in, 68);
  frame.flags = get<uint32_t>(in, 72);
  const bool carries = frame.kind == FrameKind::write;
  const uint64_t end = uint64_t{frame.offset} + frame.payload_bytes;
  const bool fits = carries ? end <= frame.message_bytes &&
                                  frame.last() == (end == frame.message_bytes) &&
                                  // A piece of nothing is no piece, but for a message of nothing.
                                  (frame.payload_bytes != 0 || frame.message_bytes == 0)
                            : frame.payload_bytes == 0;
  if (frame.payload_bytes > bytes.size() - frame_header_bytes || !fits || frame.hop > frame.hops ||
      (frame.flags & ~frame_flags) != 0) {
    return std::nullopt;
  }
  return frame;
}

}  // namespace nccl_ha::relay
