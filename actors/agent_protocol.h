// Messages between processes and the transport agent of their host, over a UNIX socket, framed and
// bounds-checked (docs/agent-protocol.md).
//
//   0 u32 magic   4 u16 type   6 u16 length of what follows the header   8 u64 connection, or 0
//
// The process speaks first, with `hello`.  Numbers have the byte order of the host, which both are
// on.  The socket stays open for as long as the process has connections: its end frees all that it
// registered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "actors/frame_reader.h"
#include "ha/flow.h"
#include "runtime/base/result.h"

namespace nccl_ha {

inline constexpr uint32_t agent_magic = 0x4148414E;
inline constexpr uint16_t agent_version = 1;
inline constexpr size_t agent_header_bytes = FrameReader::header_bytes;
inline constexpr size_t agent_payload_max = 16384;
inline constexpr size_t agent_devices_max = 4;

enum class AgentMessage : uint16_t {
  hello = 1,       ///< process: who it is
  welcome = 2,     ///< agent: where the hints are
  refuse = 3,      ///< agent: why it ends the stream, or does not register the connection
  enter = 4,       ///< process: a connection begins
  entered = 5,     ///< agent: its slot
  leave = 6,       ///< process: a connection has ended
  left = 7,        ///< agent: it is known no more
  ask_status = 8,  ///< anybody: what the agent knows
  status = 9,      ///< agent: a piece of it, as JSON text
  status_end = 10  ///< agent: that was all
};

struct AgentHello {
  uint16_t version = agent_version;
  uint32_t pid = 0;  ///< for people; the agent asks the kernel
  std::string host;
};

struct AgentWelcome {
  uint16_t version = agent_version;
  uint64_t generation = 0;  ///< of the table of hints
  uint32_t pid = 0;
};

/// refuse
struct AgentRefusal {
  Errc code = Errc::remote;
  std::string text;
};

/// enter
struct FlowAnnouncement {
  ha::Flow flow;
  std::string source_host;
  std::string destination_host;
  std::vector<std::string> devices;  ///< of the source, in the order of its rails
};

/// entered
struct FlowPlace {
  uint32_t slot = 0;
  uint64_t flow = 0;  ///< flow_hash(): what stands in the slot
  uint64_t generation = 0;
};

std::vector<std::byte> encode(const AgentHello& hello);
std::vector<std::byte> encode(const AgentWelcome& welcome);
/// `connection` 0: it ends the stream.
std::vector<std::byte> encode(uint64_t connection, const AgentRefusal& refusal);
std::vector<std::byte> encode(uint64_t connection, const FlowAnnouncement& announcement);
std::vector<std::byte> encode(uint64_t connection, const FlowPlace& place);
/// leave, left, ask_status, status_end
std::vector<std::byte> encode_agent(AgentMessage type, uint64_t connection);
/// As many pieces as it takes, with their end.
std::vector<std::vector<std::byte>> encode_status(std::string_view text);

std::optional<AgentHello> decode_agent_hello(std::span<const std::byte> payload);
std::optional<AgentWelcome> decode_agent_welcome(std::span<const std::byte> payload);
std::optional<AgentRefusal> decode_agent_refusal(std::span<const std::byte> payload);
std::optional<FlowAnnouncement> decode_announcement(std::span<const std::byte> payload);
std::optional<FlowPlace> decode_place(std::span<const std::byte> payload);

/// Cuts a byte stream into messages.  Bounded memory; the first malformed header ends it for good.
class AgentReader {
 public:
  struct Message {
    AgentMessage type;
    uint64_t connection = 0;
    std::span<const std::byte> payload;
  };
  /// Appends; false when the stream is not ours (wrong magic, type or length).
  bool feed(std::span<const std::byte> bytes) { return frames_.feed(bytes); }
  /// The next whole message; its payload is valid until the next call of feed() or next().
  std::optional<Message> next();
  bool broken() const { return frames_.broken(); }

 private:
  static constexpr FrameReader::Rules rules{
      agent_magic, static_cast<uint16_t>(AgentMessage::status_end), agent_payload_max};
  FrameReader frames_{rules};
};

}  // namespace nccl_ha
