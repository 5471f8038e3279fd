#include "relay/link_state.h"

#include <algorithm>

#include "relay/codec.h"

namespace nccl_ha::relay {
namespace {

constexpr uint8_t state_relays = 1;

bool is_visible(char one) { return one > ' ' && one <= '~'; }

bool in_range(const LinkState& state) {
  return state.sequence <= sequence_max && state.lifetime_ms <= lifetime_max_ms;
}

}  // namespace

std::string clean_node_name(std::string name) {
  name.resize(std::min(name.size(), node_name_max));
  std::replace_if(
      name.begin(), name.end(), [](char one) { return !is_visible(one); }, '?');
  return name;
}

std::vector<std::byte> encode(const LinkState& state) {
  WireWriter out;
  out.put(number(state.origin));
  out.put(state.sequence);
  out.put(state.lifetime_ms);
  out.put(state.relays ? state_relays : uint8_t{0});
  out.put_text(std::string_view(state.name).substr(0, node_name_max));
  const size_t addresses = std::min(state.addresses.size(), addresses_max);
  out.put(static_cast<uint8_t>(addresses));
  for (size_t i = 0; i < addresses; ++i) {
    out.put_address(state.addresses[i]);
  }
  const size_t links = std::min(state.links.size(), links_max);
  out.put(static_cast<uint8_t>(links));
  for (size_t i = 0; i < links; ++i) {
    const LinkRecord& link = state.links[i];
    out.put(number(link.neighbour));
    out.put(link.interface);
    out.put(link.peer_interface);
    out.put(link.speed_mbps);
  }
  return out.take();
}

Result<LinkState> decode_link_state(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  LinkState state;
  state.origin = NodeId{in.take<uint64_t>()};
  state.sequence = in.take<uint64_t>();
  state.lifetime_ms = in.take<uint32_t>();
  const auto flags = in.take<uint8_t>();
  state.relays = (flags & state_relays) != 0;
  state.name = in.take_text(node_name_max);
  const size_t addresses = in.take<uint8_t>();
  for (size_t i = 0; i < addresses && in.good(); ++i) {
    state.addresses.push_back(in.take_address());
  }
  const size_t links = in.take<uint8_t>();
  for (size_t i = 0; i < links && in.good(); ++i) {
    LinkRecord link;
    link.neighbour = NodeId{in.take<uint64_t>()};
    link.interface = in.take<uint32_t>();
    link.peer_interface = in.take<uint32_t>();
    link.speed_mbps = in.take<uint32_t>();
    state.links.push_back(link);
  }
  if (!in.good() || !in.at_end()) {
    return fail(Errc::invalid_argument, "a link state of the wrong length");
  }
  if (number(state.origin) == 0 || !in_range(state) || flags > state_relays ||
      addresses > addresses_max || links > links_max) {
    return fail(Errc::invalid_argument, "a link state with a number out of range");
  }
  if (!std::all_of(state.name.begin(), state.name.end(), is_visible)) {
    return fail(Errc::invalid_argument, "a link state whose name nobody should print");
  }
  return state;
}

}  // namespace nccl_ha::relay
