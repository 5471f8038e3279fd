#include "actors/agent_protocol.h"

#include <algorithm>
#include <cstring>

#include "actors/fields.h"

namespace nccl_ha {
namespace {

constexpr size_t agent_text_max = 600;
constexpr size_t agent_host_max = 253;  // RFC 1035
constexpr size_t agent_device_max = 64;

FieldWriter begin_agent_message(AgentMessage type, uint64_t connection) {
  FieldWriter out;
  out.number(agent_magic);
  out.number(static_cast<uint16_t>(type));
  out.number(uint16_t{0});
  out.number(connection);
  return out;
}

std::vector<std::byte> end_agent_message(FieldWriter out) {
  out.put(6, static_cast<uint16_t>(out.size() - agent_header_bytes));
  return out.take();
}

/// Codes that mean something to the other side.
Errc known_refusal(uint8_t code) {
  for (const Errc known : {Errc::no_memory, Errc::invalid_argument, Errc::invalid_usage,
                           Errc::again, Errc::closed, Errc::timed_out}) {
    if (code == static_cast<uint8_t>(known)) {
      return known;
    }
  }
  return Errc::remote;
}

}  // namespace

std::vector<std::byte> encode(const AgentHello& hello) {
  FieldWriter out = begin_agent_message(AgentMessage::hello, 0);
  out.number(hello.version);
  out.number(hello.pid);
  out.text(hello.host, agent_host_max);
  return end_agent_message(std::move(out));
}

std::vector<std::byte> encode(const AgentWelcome& welcome) {
  FieldWriter out = begin_agent_message(AgentMessage::welcome, 0);
  out.number(welcome.version);
  out.number(welcome.generation);
  out.number(welcome.pid);
  return end_agent_message(std::move(out));
}

std::vector<std::byte> encode(uint64_t connection, const AgentRefusal& refusal) {
  FieldWriter out = begin_agent_message(AgentMessage::refuse, connection);
  out.number(static_cast<uint8_t>(refusal.code));
  out.text(refusal.text, agent_text_max);
  return end_agent_message(std::move(out));
}

std::vector<std::byte> encode(uint64_t connection, const FlowAnnouncement& announcement) {
  FieldWriter out = begin_agent_message(AgentMessage::enter, connection);
  out.address(announcement.flow.source);
  out.address(announcement.flow.destination);
  out.text(announcement.source_host, agent_host_max);
  out.text(announcement.destination_host, agent_host_max);
  const size_t devices = std::min(announcement.devices.size(), agent_devices_max);
  out.number(static_cast<uint8_t>(devices));
  for (size_t i = 0; i < devices; ++i) {
    out.text(announcement.devices[i], agent_device_max);
  }
  return end_agent_message(std::move(out));
}

std::vector<std::byte> encode(uint64_t connection, const FlowPlace& place) {
  FieldWriter out = begin_agent_message(AgentMessage::entered, connection);
  out.number(place.slot);
  out.number(place.flow);
  out.number(place.generation);
  return end_agent_message(std::move(out));
}

std::vector<std::byte> encode_agent(AgentMessage type, uint64_t connection) {
  return end_agent_message(begin_agent_message(type, connection));
}

std::vector<std::vector<std::byte>> encode_status(std::string_view text) {
  std::vector<std::vector<std::byte>> pieces;
  while (!text.empty()) {
    const size_t length = std::min(text.size(), agent_payload_max);
    FieldWriter out = begin_agent_message(AgentMessage::status, 0);
    out.raw(text.substr(0, length));
    pieces.push_back(end_agent_message(std::move(out)));
    text.remove_prefix(length);
  }
  pieces.push_back(encode_agent(AgentMessage::status_end, 0));
  return pieces;
}

std::optional<AgentHello> decode_agent_hello(std::span<const std::byte> payload) {
  FieldReader in(payload);
  AgentHello hello;
  hello.version = in.number<uint16_t>();
  if (in.good() && hello.version != agent_version) {
    return hello;  // the rest may look different; who reads it refuses it by its version
  }
  hello.pid = in.number<uint32_t>();
  hello.host = in.text(agent_host_max);
  return in.done() ? std::optional(hello) : std::nullopt;
}

std::optional<AgentWelcome> decode_agent_welcome(std::span<const std::byte> payload) {
  FieldReader in(payload);
  AgentWelcome welcome;
  welcome.version = in.number<uint16_t>();
  if (in.good() && welcome.version != agent_version) {
    return welcome;
  }
  welcome.generation = in.number<uint64_t>();
  welcome.pid = in.number<uint32_t>();
  return in.done() && welcome.generation != 0 ? std::optional(welcome) : std::nullopt;
}

std::optional<AgentRefusal> decode_agent_refusal(std::span<const std::byte> payload) {
  FieldReader in(payload);
  AgentRefusal refusal;
  refusal.code = known_refusal(in.number<uint8_t>());
  refusal.text = in.text(agent_text_max);
  return in.done() ? std::optional(refusal) : std::nullopt;
}

std::optional<FlowAnnouncement> decode_announcement(std::span<const std::byte> payload) {
  FieldReader in(payload);
  FlowAnnouncement announcement;
  announcement.flow.source = in.address();
  announcement.flow.destination = in.address();
  announcement.source_host = in.text(agent_host_max);
  announcement.destination_host = in.text(agent_host_max);
  const auto devices = in.below<uint8_t>(agent_devices_max + 1);
  for (uint8_t i = 0; i < devices && in.good(); ++i) {
    announcement.devices.push_back(in.text(agent_device_max));
  }
  return in.done() ? std::optional(std::move(announcement)) : std::nullopt;
}

std::optional<FlowPlace> decode_place(std::span<const std::byte> payload) {
  FieldReader in(payload);
  FlowPlace place;
  place.slot = in.number<uint32_t>();
  place.flow = in.number<uint64_t>();
  place.generation = in.number<uint64_t>();
  return in.done() ? std::optional(place) : std::nullopt;
}

std::optional<AgentReader::Message> AgentReader::next() {
  const auto frame = frames_.next();
  return frame ? std::optional(
                     Message{static_cast<AgentMessage>(frame->type), frame->number, frame->payload})
               : std::nullopt;
}

}  // namespace nccl_ha
