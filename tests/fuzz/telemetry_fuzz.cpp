// A telemetry datagram from anybody, before its tag is looked at and after.
#include <cstdint>
#include <span>

#include "actors/telemetry_packet.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nccl_ha;
  const auto frame = parse_telemetry(std::as_bytes(std::span(data, size)));
  if (!frame) {
    return 0;
  }
  if (frame->covered.size() + frame->tag.size() != size) {
    __builtin_trap();
  }
  static_cast<void>(decode_flow_notices(*frame));
  static_cast<void>(decode_nic_reports(*frame));
  if (const auto entries = decode_congestion(*frame)) {
    const auto again = encode(frame->header, std::span(*entries), !frame->tag.empty());
    const auto second = parse_telemetry(again);
    if (!second || !decode_congestion(*second) || entries->size() != frame->header.entries) {
      __builtin_trap();
    }
    for (const auto& entry : *entries) {
      if (entry.rail > 1) {
        __builtin_trap();
      }
    }
  }
  return 0;
}
