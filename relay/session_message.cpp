#include "relay/session_message.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "relay/codec.h"

namespace nccl_ha::relay {
namespace {

enum class SessionKind : uint8_t {
  request = 1,
  ack = 2,
  refusal = 3,
  ping = 4,
  hello = 5,
  link_down = 6,
  key_question = 7,
  key = 8,
};

constexpr size_t session_length_offset = 6;
constexpr uint32_t endpoint_magic = 0x4548414E;  // "NAHE"

void put_hop(WireWriter& out, const SlotWindow& window, const std::vector<std::byte>& address) {
  out.put(window.address);
  out.put(window.key);
  out.put(window.slot_bytes);
  out.put(window.slots);
  out.put(static_cast<uint16_t>(address.size()));
  out.put_bytes(address);
}

std::vector<std::byte> take_hop(WireReader& in, SlotWindow& window) {
  window.address = in.take<uint64_t>();
  window.key = in.take<uint32_t>();
  window.slot_bytes = in.take<uint32_t>();
  window.slots = in.take<uint16_t>();
  const auto bytes = in.take_bytes(in.take<uint16_t>());
  return {bytes.begin(), bytes.end()};
}

SessionKind put_session(WireWriter& out, const SetupRequest& request) {
  out.put(request.session);
  out.put(request.place);
  out.put(static_cast<uint8_t>(request.nodes.size()));
  for (const NodeId node : request.nodes) {
    out.put(number(node));
  }
  out.put(request.port);
  out.put(request.token.told());
  put_ticket(out, request.ticket);
  out.put(request.chunk_bytes);
  out.put(static_cast<uint8_t>(request.kind));
  put_hop(out, request.window, request.hop_address);
  return SessionKind::request;
}

SessionKind put_session(WireWriter& out, const SetupAck& ack) {
  out.put(ack.chunk_bytes);
  put_hop(out, ack.window, ack.hop_address);
  return SessionKind::ack;
}

SessionKind put_session(WireWriter& out, const SetupRefusal& refusal) {
  out.put(static_cast<uint8_t>(refusal.status));
  out.put(refusal.sequence);
  out.put(static_cast<uint8_t>(refusal.other_kind ? 1 : 0));
  out.put_text(refusal.text);
  return SessionKind::refusal;
}

SessionKind put_session(WireWriter& out, const SessionLinkDown& link_down) {
  out.put_text(link_down.text);
  return SessionKind::link_down;
}

SessionKind put_session(WireWriter& out, const SessionPing& ping) {
  (void)out;
  (void)ping;
  return SessionKind::ping;
}

SessionKind put_session(WireWriter& out, const SessionHello& hello) {
  put_ticket(out, hello.ticket);
  out.put_bytes(hello.nonce);
  out.put(static_cast<uint8_t>(hello.encrypts));
  return SessionKind::hello;
}

SessionKind put_session(WireWriter& out, const SessionKeyQuestion& question) {
  out.put(question.key);
  return SessionKind::key_question;
}

SessionKind put_session(WireWriter& out, const SessionKey& key) {
  out.put(key.key);
  out.put(key.remote_key);
  return SessionKind::key;
}

/// It goes to logs, of which another host must not write lines or colours.
std::string take_printable(WireReader& in) {
  std::string text = in.take_text(255);
  std::replace_if(
      text.begin(), text.end(), [](char one) { return one < ' ' || one > '~'; }, '?');
  return text;
}

SetupRequest take_setup(WireReader& in) {
  SetupRequest request;
  request.session = in.take<uint64_t>();
  request.place = in.take<uint8_t>();
  const size_t count = in.take<uint8_t>();
  for (size_t i = 0; i < count && in.good(); ++i) {
    request.nodes.push_back(NodeId{in.take<uint64_t>()});
  }
  request.port = in.take<uint16_t>();
  request.token = Secret::heard(in.take<uint64_t>());
  request.ticket = take_ticket(in);
  request.chunk_bytes = in.take<uint32_t>();
  request.kind = fabric::FabricKind{in.take<uint8_t>()};
  request.hop_address = take_hop(in, request.window);
  return request;
}

bool in_range(uint32_t chunk_bytes, const SlotWindow& window) {
  return chunk_bytes >= chunk_bytes_min && chunk_bytes <= chunk_bytes_max &&
         window.slots >= slots_min && window.slots <= slots_max &&
         window.slot_bytes >= frame_header_bytes + chunk_bytes;
}

Result<SessionMessage> checked(SetupRequest request) {
  if (request.nodes.size() < 3 || request.nodes.size() > route_nodes_max || request.place == 0 ||
      request.place >= request.nodes.size() || !in_range(request.chunk_bytes, request.window) ||
      request.hop_address.empty() || request.hop_address.size() > fabric::path_address_max) {
    return fail(Errc::invalid_argument, "a setup request with a number out of range");
  }
  return SessionMessage(std::move(request));
}

Result<SessionMessage> checked(SetupAck ack) {
  if (!in_range(ack.chunk_bytes, ack.window) || ack.hop_address.empty() ||
      ack.hop_address.size() > fabric::path_address_max) {
    return fail(Errc::invalid_argument, "a setup answer with a number out of range");
  }
  return SessionMessage(std::move(ack));
}

}  // namespace

std::vector<std::byte> encode(const SessionMessage& message) {
  WireWriter out;
  out.put(session_magic);
  out.put(session_version);
  out.put(uint8_t{0});
  out.put(uint16_t{0});
  const SessionKind kind =
      std::visit([&](const auto& body) { return put_session(out, body); }, message);
  out.put_at(session_length_offset - 1, static_cast<uint8_t>(kind));
  out.put_at(session_length_offset, static_cast<uint16_t>(out.size()));
  return out.take();
}

Result<size_t> session_message_length(std::span<const std::byte> header) {
  WireReader in(header);
  const auto magic = in.take<uint32_t>();
  const auto version = in.take<uint8_t>();
  in.take<uint8_t>();
  const size_t length = in.take<uint16_t>();
  if (!in.good() || magic != session_magic) {
    return fail(Errc::remote, "somebody who is no relay node speaks here");
  }
  if (version != session_version) {
    return fail(Errc::remote, fmt::format("the neighbour's relay speaks version {}, this one {}",
                                          version, session_version));
  }
  if (length < session_header_bytes || length > session_message_max) {
    return fail(Errc::remote, "a relay message of an impossible length");
  }
  return length;
}

void set_session_message_length(std::span<std::byte> message, size_t length) {
  fabric::put(message.data(), session_length_offset, static_cast<uint16_t>(length));
}

Result<SessionMessage> decode_session_message(std::span<const std::byte> bytes) {
  const auto length = session_message_length(bytes);
  if (!length) {
    return length.error();
  }
  WireReader in(bytes);
  in.take_bytes(session_length_offset - 1);
  const auto kind = SessionKind{in.take<uint8_t>()};
  in.take<uint16_t>();
  Result<SessionMessage> message = SessionMessage(SessionPing{});
  switch (kind) {
    case SessionKind::request:
      message = checked(take_setup(in));
      break;
    case SessionKind::ack: {
      SetupAck ack;
      ack.chunk_bytes = in.take<uint32_t>();
      ack.hop_address = take_hop(in, ack.window);
      message = checked(std::move(ack));
      break;
    }
    case SessionKind::refusal: {
      SetupRefusal refusal;
      const auto status = in.take<uint8_t>();
      refusal.status = fabric::CompletionStatus{status};
      refusal.sequence = in.take<uint64_t>();
      const auto other_kind = in.take<uint8_t>();
      refusal.other_kind = other_kind == 1;
      refusal.text = take_printable(in);
      if (other_kind > 1) {
        return fail(Errc::invalid_argument, "a refusal with a flag out of range");
      }
      if (status > static_cast<uint8_t>(fabric::CompletionStatus::device_fault) || status == 0) {
        return fail(Errc::invalid_argument, "a refusal with an unknown status");
      }
      message = SessionMessage(std::move(refusal));
      break;
    }
    case SessionKind::link_down:
      message = SessionMessage(SessionLinkDown{take_printable(in)});
      break;
    case SessionKind::key_question:
      message = SessionMessage(SessionKeyQuestion{in.take<uint32_t>()});
      break;
    case SessionKind::key: {
      const auto key = in.take<uint32_t>();
      message = SessionMessage(SessionKey{key, in.take<uint32_t>()});
      break;
    }
    case SessionKind::ping:
      break;
    case SessionKind::hello: {
      SessionHello hello;
      hello.ticket = take_ticket(in);
      const auto nonce = in.take_bytes(hello.nonce.size());
      std::copy(nonce.begin(), nonce.end(), hello.nonce.begin());
      const auto encrypts = in.take<uint8_t>();
      if (encrypts > 1) {
        return fail(Errc::invalid_argument, "a hello whose wish to encrypt is neither yes nor no");
      }
      hello.encrypts = encrypts == 1;
      message = SessionMessage(hello);
      break;
    }
    default:
      return fail(Errc::invalid_argument, "a relay message of an unknown kind");
  }
  if (*length != bytes.size() || !in.good() || !in.at_end()) {
    return fail(Errc::invalid_argument, "a relay message of the wrong length");
  }
  return message;
}

std::vector<std::byte> encode(const PathEndpoint& endpoint) {
  WireWriter out;
  out.put(endpoint_magic);
  out.put(session_version);
  out.put(uint8_t{0});
  out.put(endpoint.port);
  out.put(number(endpoint.node));
  out.put(endpoint.token.told());
  put_ticket(out, endpoint.ticket);
  return out.take();
}

Result<PathEndpoint> decode_endpoint(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  const auto magic = in.take<uint32_t>();
  const auto version = in.take<uint8_t>();
  const auto zero = in.take<uint8_t>();
  PathEndpoint endpoint;
  endpoint.port = in.take<uint16_t>();
  endpoint.node = NodeId{in.take<uint64_t>()};
  endpoint.token = Secret::heard(in.take<uint64_t>());
  endpoint.ticket = take_ticket(in);
  if (!in.good() || !in.at_end() || magic != endpoint_magic || version != session_version ||
      zero != 0 || endpoint.port == 0 || number(endpoint.node) == 0) {
    return fail(Errc::invalid_argument, "not the address of a relayed path");
  }
  return endpoint;
}

fabric::Hop hop_of_node(NodeId node) {
  fabric::Hop hop;
  const uint64_t value = number(node);
  hop.length = sizeof value;
  std::memcpy(hop.bytes.data(), &value, sizeof value);
  return hop;
}

Result<NodeId> node_of_hop(const fabric::Hop& hop) {
  uint64_t value = 0;
  if (hop.length != sizeof value) {
    return fail(Errc::invalid_argument, "a hop that names no relay node");
  }
  std::memcpy(&value, hop.bytes.data(), sizeof value);
  return NodeId{value};
}

}  // namespace nccl_ha::relay
