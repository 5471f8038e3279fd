// What hosts on a route say to each other to set up a relayed path, on a stream from each to the
// next.
//
// Header, little-endian: magic u32, version u8, kind u8, length u16 (of the whole message).  Then:
//   setup request  session u64, place u8 (of the receiver on the route), nodes (count u8; u64
//   each),
//                  port u16, token u64 and ticket (ticket.h) of the destination, chunk bytes u32,
//                  what carries the hop (FabricKind) u8, slots, hop address
//   setup ack      chunk bytes u32, slots, hop address
//                  slots: address u64, key u32, bytes of each u32, count u16; of the sender
//                  hop address: length u16, bytes
//   refusal        status u8, sequence u64, other kind u8, text (length u8, bytes); whoever says it
//                  ends the session
//   link down      text (length u8, bytes): a cable of a relay in that direction has no link
//   key question   key u32: by what key does the hop know what the receiver's program knows by
//   that? key            key u32, remote key u32 (0: by none) ping           nothing hello ticket
//   (ticket.h), nonce 32 bytes; first of all where there is a key, of which
//                  the tag of the first one is
// A tag of 16 bytes follows where there is one (session_seal.h), and counts in the length.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "relay/hop_line.h"
#include "relay/node_id.h"
#include "relay/ticket.h"
#include "runtime/base/keyed_hash.h"
#include "runtime/base/result.h"
#include "runtime/base/secret.h"
#include "runtime/fabric/completion_status.h"
#include "runtime/fabric/path.h"

namespace nccl_ha::relay {

inline constexpr uint32_t session_magic = 0x5348414E;  // "NAHS"
inline constexpr uint8_t session_version = 6;
inline constexpr size_t session_header_bytes = 8;
inline constexpr size_t session_message_max = 1024;
inline constexpr size_t route_nodes_max = fabric::hops_max + 2;
inline constexpr uint32_t chunk_bytes_min = 1024;
inline constexpr uint32_t chunk_bytes_max = 1 << 20;

/// Of a path's end: where the last relay finds the process that has it.
struct PathEndpoint {
  NodeId node{};
  uint16_t port = 0;
  Secret token;
  Ticket ticket;  ///< with which the relay dials; none: the process has the cluster's key
};

struct SetupRequest {
  uint64_t session = 0;
  uint8_t place = 0;  ///< of the receiver on the route
  std::vector<NodeId> nodes;
  uint16_t port = 0;
  Secret token;
  Ticket ticket;              ///< of PathEndpoint, as the two before it
  uint32_t chunk_bytes = 0;   ///< no piece of a message may be longer
  fabric::FabricKind kind{};  ///< of the hop between sender and receiver
  SlotWindow window;
  std::vector<std::byte> hop_address;
};

struct SetupAck {
  uint32_t chunk_bytes = 0;  ///< the least of all hosts on the route
  SlotWindow window;
  std::vector<std::byte> hop_address;
};

struct SetupRefusal {
  fabric::CompletionStatus status = fabric::CompletionStatus::flushed;
  uint64_t sequence = 0;  ///< of the receiver's message with which it happened; 0: none
  std::string text;
  bool other_kind = false;  ///< to be asked again with a hop of another kind
};

/// A cable of the sender, or of a relay beyond it, has no link.  The session goes on, as the link
/// may be back soon.  Each relay passes it on, away from the cable, up to the end of the path.
struct SessionLinkDown {
  std::string text;
};

/// Of the last relay to the path's end, where their hop is not direct: writes to memory that the
/// device reaches go straight there.
struct SessionKeyQuestion {
  uint32_t key = 0;
};
struct SessionKey {
  uint32_t key = 0;
  uint32_t remote_key = 0;
};

struct SessionPing {};

/// "I have that key, the cluster's or a ticket's, and this is what I make this stream's with."
struct SessionHello {
  using Nonce = std::array<std::byte, 32>;
  Ticket ticket;
  Nonce nonce{};
  bool encrypts = false;  ///< this side wants what goes beside the stream encrypted
};

using SessionMessage = std::variant<SetupRequest, SetupAck, SetupRefusal, SessionLinkDown,
                                    SessionPing, SessionHello, SessionKeyQuestion, SessionKey>;

/// A text is cut where it is too long.
std::vector<std::byte> encode(const SessionMessage& message);
/// Of a header that is all there: the length of the whole message.
Result<size_t> session_message_length(std::span<const std::byte> header);
/// Writes another one into the header; `message` has one.
void set_session_message_length(std::span<std::byte> message, size_t length);
Result<SessionMessage> decode_session_message(std::span<const std::byte> bytes);

// Path::local_address of a relayed path: magic u32, version u8, 0 u8, port u16, node u64, token
// u64, ticket.
inline constexpr size_t endpoint_bytes = 24 + ticket_bytes;
std::vector<std::byte> encode(const PathEndpoint& endpoint);
Result<PathEndpoint> decode_endpoint(std::span<const std::byte> bytes);

/// A node as PathOptions::route has it.
fabric::Hop hop_of_node(NodeId node);
Result<NodeId> node_of_hop(const fabric::Hop& hop);

}  // namespace nccl_ha::relay
