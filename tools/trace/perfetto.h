// `nccl-ha trace export --format perfetto`: track events as ui.perfetto.dev reads them.
//
// The format is protobuf, by the schema that Perfetto publishes (protos/perfetto/trace/): a Trace
// is a list of TracePackets, each with a TrackDescriptor or a TrackEvent.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tools/trace/timeline.h"

namespace nccl_ha::tools {

/// Writes one protobuf message: fields in the order of the calls (protobuf.dev, Encoding).
class ProtoWriter {
 public:
  void number(uint32_t field, uint64_t value);
  void fixed(uint32_t field, uint64_t value);  ///< fixed64
  void text(uint32_t field, std::string_view value);
  void message(uint32_t field, const ProtoWriter& value) { text(field, value.bytes_); }
  const std::string& bytes() const { return bytes_; }

 private:
  void varint(uint64_t value);
  std::string bytes_;
};

/// A track for each thread, connection and path; chunks from posting to acknowledgement, with flows
/// to their arrival at the peer; queue depths as counters.
std::string perfetto_of(const Timeline& timeline);

}  // namespace nccl_ha::tools
