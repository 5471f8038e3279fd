#include "actors/telemetry_packet.h"

#include "actors/fields.h"
#include "runtime/base/check.h"

namespace nccl_ha {
namespace {

constexpr uint8_t flag_tagged = 1;
constexpr uint8_t flag_queue_known = 1;
constexpr size_t address_bytes = 17;

constexpr size_t entry_bytes(TelemetryType type) {
  switch (type) {
    case TelemetryType::congestion:
      return 2 * address_bytes + 3 + 4;
    case TelemetryType::flow_begun:
    case TelemetryType::flow_ended:
      return 2 * address_bytes + 1;
    case TelemetryType::nic_report:
      return address_bytes + 2 + 4 + 2 * 8 + 5 * 4;
  }
  return 0;
}

void put_entry(FieldWriter& out, const CongestionEntry& entry) {
  out.address(entry.flow.source);
  out.address(entry.flow.destination);
  out.number(entry.rail);
  out.number(entry.level);
  out.number(entry.queue_bytes ? flag_queue_known : uint8_t{0});
  out.number(entry.queue_bytes.value_or(0));
}

void put_entry(FieldWriter& out, const FlowNotice& entry) {
  out.address(entry.flow.source);
  out.address(entry.flow.destination);
  out.number(entry.rails);
}

void put_entry(FieldWriter& out, const NicReport& entry) {
  out.address(entry.address);
  out.number(entry.rail);
  out.number(entry.level);
  out.number(entry.interval_us);
  out.number(entry.bytes_out);
  out.number(entry.bytes_in);
  out.number(entry.pauses_out);
  out.number(entry.pauses_in);
  out.number(entry.discards);
  out.number(entry.queue_out);
  out.number(entry.queue_in);
}

void get_entry(FieldReader& in, CongestionEntry& entry) {
  entry.flow.source = in.address(true);
  entry.flow.destination = in.address(true);
  entry.rail = in.below<uint8_t>(2);
  entry.level = in.number<uint8_t>();
  const auto flags = in.below<uint8_t>(flag_queue_known + 1);
  const auto queue = in.number<uint32_t>();
  if ((flags & flag_queue_known) != 0) {
    entry.queue_bytes = queue;
  }
}

void get_entry(FieldReader& in, FlowNotice& entry) {
  entry.flow.source = in.address();
  entry.flow.destination = in.address();
  entry.rails = in.number<uint8_t>();
}

void get_entry(FieldReader& in, NicReport& entry) {
  entry.address = in.address(true);
  entry.rail = in.below<uint8_t>(2);
  entry.level = in.number<uint8_t>();
  entry.interval_us = in.number<uint32_t>();
  entry.bytes_out = in.number<uint64_t>();
  entry.bytes_in = in.number<uint64_t>();
  entry.pauses_out = in.number<uint32_t>();
  entry.pauses_in = in.number<uint32_t>();
  entry.discards = in.number<uint32_t>();
  entry.queue_out = in.number<uint32_t>();
  entry.queue_in = in.number<uint32_t>();
}

template <class Entry>
std::vector<std::byte> encode_entries(const TelemetryHeader& header, std::span<const Entry> entries,
                                      bool tagged) {
  NHA_ASSERT(entries.size() <= telemetry_entries_max(header.type), "they fit into a datagram");
  FieldWriter out;
  out.number(telemetry_magic);
  out.number(header.version);
  out.number(static_cast<uint8_t>(header.type));
  out.number(uint16_t{0});
  out.number(header.sender);
  out.number(header.number);
  out.number(header.stamp);
  out.number(header.key);
  out.number(tagged ? flag_tagged : uint8_t{0});
  out.number(static_cast<uint8_t>(entries.size()));
  out.number(uint16_t{0});
  for (const Entry& entry : entries) {
    put_entry(out, entry);
  }
  if (tagged) {
    out.raw(std::string(telemetry_tag_bytes, '\0'));
  }
  out.put(6, static_cast<uint16_t>(out.size()));
  return out.take();
}

template <class Entry>
std::optional<std::vector<Entry>> decode_entries(const TelemetryFrame& frame) {
  FieldReader in(frame.body);
  std::vector<Entry> entries(frame.header.entries);
  for (Entry& entry : entries) {
    get_entry(in, entry);
  }
  return in.done() ? std::optional(std::move(entries)) : std::nullopt;
}

}  // namespace

size_t telemetry_entries_max(TelemetryType type) {
  const size_t each = entry_bytes(type);
  return each == 0 ? 0
                   : (telemetry_bytes_max - telemetry_header_bytes - telemetry_tag_bytes) / each;
}

std::vector<std::byte> encode(TelemetryHeader header, std::span<const CongestionEntry> entries,
                              bool tagged) {
  header.type = TelemetryType::congestion;
  return encode_entries(header, entries, tagged);
}

std::vector<std::byte> encode(TelemetryHeader header, std::span<const FlowNotice> entries,
                              bool tagged) {
  return encode_entries(header, entries, tagged);
}

std::vector<std::byte> encode(TelemetryHeader header, std::span<const NicReport> entries,
                              bool tagged) {
  header.type = TelemetryType::nic_report;
  return encode_entries(header, entries, tagged);
}

std::optional<TelemetryFrame> parse_telemetry(std::span<const std::byte> datagram) {
  FieldReader in(datagram);
  const auto magic = in.number<uint32_t>();
  TelemetryFrame frame;
  frame.header.version = in.number<uint8_t>();
  const auto type = in.number<uint8_t>();
  const auto length = in.number<uint16_t>();
  frame.header.sender = in.number<uint64_t>();
  frame.header.number = in.number<uint64_t>();
  frame.header.stamp = in.number<int64_t>();
  frame.header.key = in.number<uint32_t>();
  const auto flags = in.number<uint8_t>();
  frame.header.entries = in.number<uint8_t>();
  const auto reserved = in.number<uint16_t>();
  frame.header.type = static_cast<TelemetryType>(type);
  const size_t each = entry_bytes(frame.header.type);
  const size_t tag = (flags & flag_tagged) != 0 ? telemetry_tag_bytes : 0;
  if (!in.good() || magic != telemetry_magic || frame.header.version != telemetry_version ||
      length != datagram.size() || (flags & ~flag_tagged) != 0 || reserved != 0 || each == 0 ||
      datagram.size() != telemetry_header_bytes + each * frame.header.entries + tag ||
      datagram.size() > telemetry_bytes_max) {
    return std::nullopt;
  }
  frame.covered = datagram.first(datagram.size() - tag);
  frame.tag = datagram.last(tag);
  frame.body = frame.covered.subspan(telemetry_header_bytes);
  return frame;
}

std::optional<std::vector<CongestionEntry>> decode_congestion(const TelemetryFrame& frame) {
  return frame.header.type == TelemetryType::congestion ? decode_entries<CongestionEntry>(frame)
                                                        : std::nullopt;
}

std::optional<std::vector<FlowNotice>> decode_flow_notices(const TelemetryFrame& frame) {
  return frame.header.type == TelemetryType::flow_begun ||
                 frame.header.type == TelemetryType::flow_ended
             ? decode_entries<FlowNotice>(frame)
             : std::nullopt;
}

std::optional<std::vector<NicReport>> decode_nic_reports(const TelemetryFrame& frame) {
  return frame.header.type == TelemetryType::nic_report ? decode_entries<NicReport>(frame)
                                                        : std::nullopt;
}

}  // namespace nccl_ha
