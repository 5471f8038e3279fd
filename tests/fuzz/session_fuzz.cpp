// What neighbours on a route say to each other, and what travels on its hops.  The input is decoded
// as each of them; then it goes to a relay's direction and to an end, with the session put in so
// that it gets past the first gate, and at the end with memory that may be written.
#include <algorithm>
#include <cstring>
#include <vector>

#include "relay/forwarder.h"
#include "relay/message_receiver.h"
#include "relay/message_sender.h"
#include "relay/session_message.h"
#include "runtime/fabric/byte_order.h"
#include "tests/support/memory_hops.h"

namespace {

using namespace nccl_ha;

constexpr uint64_t session = 7;
constexpr relay::NodeId here{1};
constexpr relay::NodeId there{2};

/// Over a hop by which the processor writes, or a device.
void feed_end(std::span<const std::byte> bytes, bool direct) {
  test::MemoryHops hops;
  fabric::Memory& memory = hops.memory();
  relay::HopLine line(hops);
  line.allocate(relay::slots_min, 2048, relay::slots_min);
  line.take({}, {{}, direct});
  relay::MessageReceiver receiver(memory, 1, 8);
  relay::MessageSender sender(hops, 1, 8);
  receiver.open(line, {there, here, session, 1, 2048});
  std::vector<std::byte> place(512);
  const uint32_t key = *memory.add(1, place.data(), place.size());
  const auto base = reinterpret_cast<uint64_t>(place.data());
  for (int i = 0; i < 8; ++i) {
    static_cast<void>(receiver.post());
  }
  for (size_t at = 0; at < bytes.size();) {
    const size_t length = std::min<size_t>(bytes.size() - at, relay::frame_header_bytes + 64);
    std::byte* slot = line.slot(0);
    std::memcpy(slot, bytes.data() + at, length);
    fabric::put(slot, 8, relay::number(there));
    fabric::put(slot, 16, relay::number(here));
    fabric::put(slot, 24, session);
    fabric::put(slot, 48, base + fabric::get<uint64_t>(slot, 48) % (2 * place.size()));
    fabric::put(slot, 56, key);
    at += length;
    const auto frame = receiver.frame(0);
    if (!frame) {
      continue;
    }
    if (frame->kind == relay::FrameKind::ack) {
      static_cast<void>(sender.on_ack(frame->sequence, frame->remote_address, [](const auto&) {
        __builtin_trap();  // nothing was ever sent
      }));
    } else {
      static_cast<void>(receiver.on_message(*frame, 0));
    }
  }
  static_cast<void>(memory.remove(key));
}

void feed_relay(std::span<const std::byte> bytes) {
  test::MemoryHops hops;
  relay::HopLine from(hops);
  relay::HopLine to(hops);
  from.allocate(relay::slots_min, 2048, relay::slots_min);
  relay::Forwarder forwarder(from, to);
  relay::Forwarder::Options options;
  options.session = session;
  options.origin = there;
  options.destination = here;
  options.hops = 2;
  forwarder.open(options);
  std::memcpy(from.slot(0), bytes.data(), std::min<size_t>(bytes.size(), 2048));
  fabric::put(from.slot(0), 8, relay::number(there));
  fabric::put(from.slot(0), 16, relay::number(here));
  fabric::put(from.slot(0), 24, session);
  static_cast<void>(forwarder.on_frame(0));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  if (const auto message = relay::decode_session_message(bytes)) {
    // What was accepted must be what was sent, but for texts, which are made printable.
    const auto once = encode(*message);
    const auto again = relay::decode_session_message(once);
    if (once.size() != size || !again || encode(*again) != once) {
      __builtin_trap();
    }
  }
  if (const auto endpoint = relay::decode_endpoint(bytes)) {
    const auto again = encode(*endpoint);
    if (again.size() != size || std::memcmp(again.data(), data, size) != 0) {
      __builtin_trap();
    }
  }
  if (size > 0) {
    feed_end(bytes, true);
    feed_end(bytes, false);
    feed_relay(bytes);
  }
  return 0;
}
