#include "relay/packet.h"

#include <fmt/format.h>

#include "relay/codec.h"

namespace nccl_ha::relay {
namespace {

constexpr uint8_t hello_leaves = 1;
constexpr uint8_t hello_looks = 2;
constexpr uint8_t hello_crowded = 4;
constexpr uint8_t hello_flags = hello_leaves | hello_looks | hello_crowded;
constexpr uint8_t query_seeks = 1;
constexpr uint8_t neighbours_rest = 1;
constexpr uint8_t neighbours_open = 2;
constexpr uint8_t neighbours_of_job = 4;
constexpr uint8_t neighbours_look = 8;
constexpr uint8_t neighbours_crowded = 16;
constexpr uint8_t neighbours_flags = 31;

uint8_t flag(bool set, uint8_t bit) { return set ? bit : uint8_t{0}; }

constexpr size_t length_offset = 6;
constexpr size_t states_count_offset = discovery_header_bytes;
constexpr size_t states_per_packet_max = 255;
/// More than link states of 4,096 hosts need.
constexpr uint32_t answer_packets_max = 8192;

void put_header(WireWriter& out, PacketKind kind, NodeId sender, uint32_t incarnation,
                uint32_t interface) {
  out.put(discovery_magic);
  out.put(discovery_version);
  out.put(static_cast<uint8_t>(kind));
  out.put(uint16_t{0});
  out.put(number(sender));
  out.put(incarnation);
  out.put(interface);
}

PacketKind put_body(WireWriter& out, const HelloPacket& hello) {
  out.put(hello.number);
  out.put(hello.hello_ms);
  out.put(hello.dead_ms);
  out.put(static_cast<uint8_t>(flag(hello.leaves, hello_leaves) | flag(hello.looks, hello_looks) |
                               flag(hello.crowded, hello_crowded)));
  out.put(hello.seeks_ms);
  out.put(hello.digest);
  out.put(static_cast<uint8_t>(hello.heard.size()));
  for (const Heard& heard : hello.heard) {
    out.put(number(heard.node));
    out.put(heard.incarnation);
    out.put(heard.interface);
  }
  return PacketKind::hello;
}

PacketKind put_body(WireWriter& out, const StatesPacket& states) {
  out.put(static_cast<uint8_t>(states.states.size()));
  for (const LinkState& state : states.states) {
    const auto bytes = encode(state);
    out.put(static_cast<uint16_t>(bytes.size()));
    out.put_bytes(bytes);
  }
  return PacketKind::states;
}

PacketKind put_body(WireWriter& out, const SummaryPacket& summary) {
  out.put(number(summary.first));
  out.put(number(summary.last));
  out.put(static_cast<uint8_t>(summary.entries.size()));
  for (const SummaryPacket::Entry& entry : summary.entries) {
    out.put(number(entry.node));
    out.put(entry.sequence);
  }
  return PacketKind::summary;
}

PacketKind put_body(WireWriter& out, const RequestPacket& request) {
  out.put(static_cast<uint8_t>(request.nodes.size()));
  for (const NodeId node : request.nodes) {
    out.put(number(node));
  }
  return PacketKind::request;
}

PacketKind put_body(WireWriter& out, const QueryPacket& query) {
  out.put(flag(query.seeks, query_seeks));
  return PacketKind::query;
}

PacketKind put_body(WireWriter& out, const HandOverPacket& wish) {
  (void)out;
  (void)wish;
  return PacketKind::hand_over;
}

PacketKind put_body(WireWriter& out, const NeighboursPacket& packet) {
  out.put(packet.states);
  out.put(static_cast<uint8_t>(
      flag(packet.rests, neighbours_rest) | flag(packet.open, neighbours_open) |
      flag(packet.of_job, neighbours_of_job) | flag(packet.looks, neighbours_look) |
      flag(packet.crowded, neighbours_crowded)));
  out.put(packet.key_name);
  out.put(static_cast<uint8_t>(packet.entries.size()));
  for (const NeighboursPacket::Entry& entry : packet.entries) {
    out.put(number(entry.node));
    out.put(entry.interface);
    out.put(entry.peer_interface);
    out.put(entry.key);
    out.put(entry.port);
    out.put_address(entry.address);
  }
  return PacketKind::neighbours;
}

Result<HelloPacket> take_hello(WireReader& in) {
  HelloPacket hello;
  hello.number = in.take<uint64_t>();
  hello.hello_ms = in.take<uint16_t>();
  hello.dead_ms = in.take<uint16_t>();
  const auto flags = in.take<uint8_t>();
  hello.leaves = (flags & hello_leaves) != 0;
  hello.looks = (flags & hello_looks) != 0;
  hello.crowded = (flags & hello_crowded) != 0;
  hello.seeks_ms = in.take<uint16_t>();
  hello.digest = in.take<uint64_t>();
  const size_t count = in.take<uint8_t>();
  for (size_t i = 0; i < count && in.good(); ++i) {
    Heard heard;
    heard.node = NodeId{in.take<uint64_t>()};
    heard.incarnation = in.take<uint32_t>();
    heard.interface = in.take<uint32_t>();
    hello.heard.push_back(heard);
  }
  if (count > heard_max || flags > hello_flags) {
    return fail(Errc::invalid_argument, "a hello with a number out of range");
  }
  return hello;
}

Result<StatesPacket> take_states(WireReader& in) {
  StatesPacket states;
  const size_t count = in.take<uint8_t>();
  for (size_t i = 0; i < count && in.good(); ++i) {
    const size_t length = in.take<uint16_t>();
    auto state = decode_link_state(in.take_bytes(length));
    if (!state) {
      return state.error();
    }
    states.states.push_back(std::move(*state));
  }
  return states;
}

Result<SummaryPacket> take_summary(WireReader& in) {
  SummaryPacket summary;
  summary.first = NodeId{in.take<uint64_t>()};
  summary.last = NodeId{in.take<uint64_t>()};
  const size_t count = in.take<uint8_t>();
  if (count > summary_entries_max || summary.last < summary.first) {
    return fail(Errc::invalid_argument, "a summary with a number out of range");
  }
  for (size_t i = 0; i < count && in.good(); ++i) {
    SummaryPacket::Entry entry;
    entry.node = NodeId{in.take<uint64_t>()};
    entry.sequence = in.take<uint64_t>();
    const bool ascends = summary.entries.empty() || summary.entries.back().node < entry.node;
    if (!ascends || entry.node < summary.first || entry.node > summary.last ||
        entry.sequence > sequence_max) {
      return fail(Errc::invalid_argument, "a summary out of order");
    }
    summary.entries.push_back(entry);
  }
  return summary;
}

Result<RequestPacket> take_request(WireReader& in) {
  RequestPacket request;
  const size_t count = in.take<uint8_t>();
  if (count > request_nodes_max) {
    return fail(Errc::invalid_argument, "a request for too much");
  }
  for (size_t i = 0; i < count && in.good(); ++i) {
    request.nodes.push_back(NodeId{in.take<uint64_t>()});
  }
  return request;
}

Result<QueryPacket> take_query(WireReader& in) {
  const auto flags = in.take<uint8_t>();
  if (flags > query_seeks) {
    return fail(Errc::invalid_argument, "a query with a number out of range");
  }
  return QueryPacket{flags != 0};
}

Result<NeighboursPacket> take_neighbours(WireReader& in) {
  NeighboursPacket packet;
  packet.states = in.take<uint32_t>();
  const auto flags = in.take<uint8_t>();
  packet.rests = (flags & neighbours_rest) != 0;
  packet.open = (flags & neighbours_open) != 0;
  packet.of_job = (flags & neighbours_of_job) != 0;
  packet.looks = (flags & neighbours_look) != 0;
  packet.crowded = (flags & neighbours_crowded) != 0;
  packet.key_name = in.take<uint32_t>();
  const size_t count = in.take<uint8_t>();
  if (count > neighbours_per_packet_max || packet.states > answer_packets_max ||
      flags > neighbours_flags) {
    return fail(Errc::invalid_argument, "a list of neighbours with a number out of range");
  }
  for (size_t i = 0; i < count && in.good(); ++i) {
    NeighboursPacket::Entry entry;
    entry.node = NodeId{in.take<uint64_t>()};
    entry.interface = in.take<uint32_t>();
    entry.peer_interface = in.take<uint32_t>();
    entry.key = in.take<uint32_t>();
    entry.port = in.take<uint16_t>();
    entry.address = in.take_address();
    packet.entries.push_back(entry);
  }
  return packet;
}

template <class Body>
Result<void> set_body(DiscoveryPacket& packet, Result<Body> body) {
  if (!body) {
    return body.error();
  }
  packet.body = std::move(*body);
  return {};
}

Result<void> take_body(DiscoveryPacket& packet, PacketKind kind, WireReader& in) {
  switch (kind) {
    case PacketKind::hello:
      return set_body(packet, take_hello(in));
    case PacketKind::states:
      return set_body(packet, take_states(in));
    case PacketKind::summary:
      return set_body(packet, take_summary(in));
    case PacketKind::request:
      return set_body(packet, take_request(in));
    case PacketKind::query:
      return set_body(packet, take_query(in));
    case PacketKind::hand_over:
      packet.body = HandOverPacket{};
      return {};
    case PacketKind::neighbours:
      return set_body(packet, take_neighbours(in));
  }
  return fail(Errc::invalid_argument,
              fmt::format("a discovery packet of kind {}", static_cast<int>(kind)));
}

}  // namespace

std::vector<std::byte> encode(const DiscoveryPacket& packet) {
  WireWriter out;
  put_header(out, PacketKind::query, packet.sender, packet.incarnation, packet.interface);
  const PacketKind kind =
      std::visit([&](const auto& body) { return put_body(out, body); }, packet.body);
  out.put_at(length_offset - 1, static_cast<uint8_t>(kind));
  out.put_at(length_offset, static_cast<uint16_t>(out.size()));
  return out.take();
}

Result<DiscoveryPacket> decode_packet(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  const auto magic = in.take<uint32_t>();
  const auto version = in.take<uint8_t>();
  const auto kind = PacketKind{in.take<uint8_t>()};
  const size_t length = in.take<uint16_t>();
  DiscoveryPacket packet;
  packet.sender = NodeId{in.take<uint64_t>()};
  packet.incarnation = in.take<uint32_t>();
  packet.interface = in.take<uint32_t>();
  if (!in.good() || magic != discovery_magic) {
    return fail(Errc::invalid_argument, "no discovery packet");
  }
  if (version != discovery_version) {
    return fail(Errc::invalid_argument, fmt::format("a discovery packet of version {}, this is {}",
                                                    version, discovery_version));
  }
  if (length != bytes.size() || length > discovery_packet_max || number(packet.sender) == 0) {
    return fail(Errc::invalid_argument, "a discovery packet with a wrong header");
  }
  if (auto body = take_body(packet, kind, in); !body) {
    return body.error();
  }
  if (!in.good() || !in.at_end()) {
    return fail(Errc::invalid_argument, "a discovery packet of the wrong length");
  }
  return packet;
}

void StatesWriter::add(std::span<const std::byte> encoded, uint32_t lifetime_ms) {
  const size_t more = sizeof(uint16_t) + encoded.size();
  const auto count_of = [](const std::vector<std::byte>& packet) {
    return static_cast<size_t>(packet[states_count_offset]);
  };
  if (packets_.empty() || packets_.back().size() + more > discovery_packet_max ||
      count_of(packets_.back()) == states_per_packet_max) {
    WireWriter out;
    put_header(out, PacketKind::states, sender_, incarnation_, interface_);
    out.put(uint8_t{0});
    packets_.push_back(out.take());
  }
  std::vector<std::byte>& packet = packets_.back();
  const size_t at = packet.size();
  packet.resize(at + sizeof(uint16_t));
  fabric::put(packet.data(), at, static_cast<uint16_t>(encoded.size()));
  packet.insert(packet.end(), encoded.begin(), encoded.end());
  fabric::put(packet.data(), at + sizeof(uint16_t) + lifetime_offset, lifetime_ms);
  packet[states_count_offset] = static_cast<std::byte>(count_of(packet) + 1);
  fabric::put(packet.data(), length_offset, static_cast<uint16_t>(packet.size()));
}

std::vector<std::vector<std::byte>> StatesWriter::take() { return std::move(packets_); }

}  // namespace nccl_ha::relay
