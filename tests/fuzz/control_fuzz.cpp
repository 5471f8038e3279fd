// The control stream from anybody: framing and every message's decoder.
#include <cstdint>
#include <span>

#include "actors/control.h"
#include "actors/session_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nccl_ha;
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  static_cast<void>(decode_hello(bytes));
  static_cast<void>(decode_welcome(bytes));
  static_cast<void>(decode_refusal(bytes));
  static_cast<void>(decode_close(bytes));
  static_cast<void>(decode_notice(bytes));
  static_cast<void>(decode_report(bytes));
  static_cast<void>(decode_offer(bytes));
  static_cast<void>(decode_link_back(bytes));
  static_cast<void>(decode_end(bytes));
  static_cast<void>(decode_call(bytes));
  static_cast<void>(decode_process(bytes));
  ControlReader reader;
  SessionReader parts;  // of the same stream, were it shared
  size_t offset = 0;
  while (offset < size) {
    // Cut the stream at places that the input itself names.
    const size_t step = 1 + data[offset] % 97;
    const size_t take = step < size - offset ? step : size - offset;
    if (!reader.feed(bytes.subspan(offset, take)) || !parts.feed(bytes.subspan(offset, take))) {
      break;
    }
    offset += take;
    while (const auto part = parts.next()) {
      const ControlReader::Message& message = part->message;
      if (message.type == ControlType::of || message.payload.size() > control_payload_max ||
          message.bytes.size() != control_header_bytes + message.payload.size()) {
        __builtin_trap();
      }
    }
    while (const auto message = reader.next()) {
      if (message->payload.size() > control_payload_max) {
        __builtin_trap();
      }
    }
  }
  return 0;
}
