// The transport agent's UNIX socket from anybody: framing and every message's decoder.
#include <cstdint>
#include <span>

#include "actors/agent_protocol.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nccl_ha;
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  static_cast<void>(decode_agent_hello(bytes));
  static_cast<void>(decode_agent_welcome(bytes));
  static_cast<void>(decode_agent_refusal(bytes));
  static_cast<void>(decode_place(bytes));
  if (const auto announcement = decode_announcement(bytes)) {
    const auto frame = encode(1, *announcement);
    const auto again = decode_announcement(std::span(frame).subspan(agent_header_bytes));
    if (!again || again->flow != announcement->flow || again->devices != announcement->devices) {
      __builtin_trap();
    }
  }
  AgentReader reader;
  size_t offset = 0;
  while (offset < size) {
    // Cut the stream at places that the input itself names.
    const size_t step = 1 + data[offset] % 97;
    const size_t take = step < size - offset ? step : size - offset;
    if (!reader.feed(bytes.subspan(offset, take))) {
      break;
    }
    offset += take;
    while (const auto message = reader.next()) {
      if (message->payload.size() > agent_payload_max) {
        __builtin_trap();
      }
    }
  }
  return 0;
}
