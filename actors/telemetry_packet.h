// Datagrams between switches and transport agents (docs/agent-protocol.md): congestion of paths
// from the switch, flows that begin and end and what NICs carry from the agent.
//
//    0 u32 magic      4 u8 version   5 u8 type   6 u16 length of all, the tag included
//    8 u64 sender     drawn anew by each start of it
//   16 u64 number     of the datagram among all of that sender, from 1 on
//   24 i64 stamp      time of day at the sender, nanoseconds since 1970
//   32 u32 key        which one the tag is made with
//   36 u8 flags       1: a tag of 32 bytes is at the end, over all before it
//   37 u8 entries     38 u16 0
//   40 entries, each of the same length
//
// Little-endian.  The tag is HMAC-SHA-512-256 (libsodium's crypto_auth); who checks it looks at
// nothing else before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ha/flow.h"

namespace nccl_ha {

inline constexpr uint32_t telemetry_magic = 0x5448414E;
inline constexpr uint8_t telemetry_version = 1;
inline constexpr size_t telemetry_header_bytes = 40;
inline constexpr size_t telemetry_tag_bytes = 32;
/// Fits into every network's packets, IPv6 and tunnels included.
inline constexpr size_t telemetry_bytes_max = 1200;

enum class TelemetryType : uint8_t {
  congestion = 1,  ///< switch: CongestionEntry
  flow_begun = 2,  ///< agent: FlowNotice
  flow_ended = 3,  ///< agent: FlowNotice
  nic_report = 4   ///< agent: NicReport
};

struct TelemetryHeader {
  uint8_t version = telemetry_version;
  TelemetryType type{};
  uint64_t sender = 0;
  uint64_t number = 0;
  int64_t stamp = 0;
  uint32_t key = 0;
  uint8_t entries = 0;
};

/// How congested a rail is for what goes from source to destination.
struct CongestionEntry {
  ha::Flow flow;      ///< family 0: from or to whomever
  uint8_t rail = 0;   ///< 0: SOUT, 1: SUP
  uint8_t level = 0;  ///< 0: not at all, 255: nothing gets through
  std::optional<uint32_t> queue_bytes;
};

/// A flow of the sender's host that its switch should watch, or need not any more.
struct FlowNotice {
  ha::Flow flow;
  uint8_t rails = 2;
};

/// What one NIC of the sender's host does, measured since the report before.
struct NicReport {
  ha::HostAddress address;
  uint8_t rail = 0;
  uint8_t level = 0;  ///< as in a CongestionEntry, of the host's own end
  uint32_t interval_us = 0;
  uint64_t bytes_out = 0;
  uint64_t bytes_in = 0;
  uint32_t pauses_out = 0;  ///< PFC frames: the host asks others to stop
  uint32_t pauses_in = 0;   ///< it is asked to
  uint32_t discards = 0;
  uint32_t queue_out = 0;  ///< bytes, where the NIC tells
  uint32_t queue_in = 0;
};

/// A datagram whose frame is right; nothing of it was believed yet.
struct TelemetryFrame {
  TelemetryHeader header;
  std::span<const std::byte> covered;  ///< what the tag is over
  std::span<const std::byte> tag;      ///< empty: there is none
  std::span<const std::byte> body;
};

/// Valid as long as the bytes.
std::optional<TelemetryFrame> parse_telemetry(std::span<const std::byte> datagram);
/// nullopt: it is of another type, or malformed.
std::optional<std::vector<CongestionEntry>> decode_congestion(const TelemetryFrame& frame);
std::optional<std::vector<FlowNotice>> decode_flow_notices(const TelemetryFrame& frame);
std::optional<std::vector<NicReport>> decode_nic_reports(const TelemetryFrame& frame);

/// So many of them fit into a datagram.
size_t telemetry_entries_max(TelemetryType type);

/// Without a tag; with `tagged` its place is there, 0 so far.  At most telemetry_entries_max().
std::vector<std::byte> encode(TelemetryHeader header, std::span<const CongestionEntry> entries,
                              bool tagged);
/// flow_begun or flow_ended, as the header says.
std::vector<std::byte> encode(TelemetryHeader header, std::span<const FlowNotice> entries,
                              bool tagged);
std::vector<std::byte> encode(TelemetryHeader header, std::span<const NicReport> entries,
                              bool tagged);

}  // namespace nccl_ha
