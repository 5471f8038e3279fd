#include "actors/connection/rails.h"

#include <algorithm>
#include <utility>

#include "actors/agent_client.h"
#include "runtime/base/host.h"
#include "runtime/base/ip_address.h"

namespace nccl_ha {
namespace {

/// IPv6 networks of one link are this long (RFC 4291, 2.5.4), whatever IPv4's usually are.
constexpr uint8_t ipv6_island_bits = 64;

class AgentHints final : public ha::HintSource {
 public:
  explicit AgentHints(std::unique_ptr<AgentClient::Registration> registration)
      : registration_(std::move(registration)) {}
  std::optional<uint32_t> parts(Instant now) override { return registration_->share(now); }

 private:
  std::unique_ptr<AgentClient::Registration> registration_;
};

bool has_rails(const ConnectionState& state) {
  // A connection of another kind than its device's is a fallback over whatever there is.
  const auto& devices = state.provider.devices();
  return state.devices.count > 1 &&
         (state.devices.are_ways || devices[state.devices.first()].kind == state.attachment.kind);
}

/// A device of either host has come back as another one, which may be that of a rail: the rail's
/// own lanes do not, and nothing else tells which ends are free for shadows.
bool any_returned(const PathSet& paths, std::span<const ha::Rail> own, const PeerEnds& peer) {
  for (size_t i = 0; i < own.size(); ++i) {
    if (own[i].returned() && !paths.is_own(i)) {
      return true;
    }
  }
  const auto of_rails = std::span(peer.of_rails).first(peer.agreed.rails);
  for (size_t i = 0; i < peer.rails.size(); ++i) {
    const ha::Rail& rail = peer.rails[i];
    if (rail.returned() && !rail.primary &&
        std::ranges::find(of_rails, static_cast<uint8_t>(i)) == of_rails.end()) {
      return true;
    }
  }
  return false;
}

}  // namespace

sockaddr_storage first_address(const ConnectionState& state, const sockaddr_storage& stream) {
  const auto own = IpAddress::from_sockaddr(reinterpret_cast<const sockaddr*>(&stream));
  if (!has_rails(state) || state.devices.are_ways || !own) {
    return stream;
  }
  for (const fabric::Place& place : state.provider.places(state.attachment)) {
    if (place.at.kind == state.attachment.kind && place.is_of(state.devices.first()) &&
        place.address.family == own->family) {
      sockaddr_storage address{};
      static_cast<void>(place.address.to_sockaddr(0, &address));
      return address;
    }
  }
  return stream;
}

size_t first_paths(const ConnectionState& state) {
  const bool pairs = has_rails(state) && state.devices.sout_and_sup && state.traits.placed_by_nic;
  return pairs ? static_cast<size_t>(state.context->config().mpib_sout_qp)
               : state.provider.paths_wanted(state.attachment);
}

ha::RailTerms rail_terms(const ConnectionState& state, const sockaddr_storage& stream) {
  const Config& config = state.context->config();
  ha::RailTerms terms;
  if (!has_rails(state) || !config.enable_backup) {
    return terms;  // paths on other rails are made as those that replace others are
  }
  const fabric::RailDevices& devices = state.devices;
  terms.mode = !devices.sout_and_sup   ? ha::RailMode::balanced
               : config.mpib_mode == 0 ? ha::RailMode::isolated
                                       : ha::RailMode::hinted;
  terms.rails = static_cast<uint8_t>(devices.count);
  terms.lanes = static_cast<uint8_t>(devices.sout_and_sup && state.traits.placed_by_nic
                                         ? static_cast<size_t>(config.mpib_sup_qp)
                                         : state.provider.paths_wanted(state.attachment));
  auto address = IpAddress::from_sockaddr(reinterpret_cast<const sockaddr*>(&stream));
  for (const fabric::Place& place : state.provider.places(state.attachment)) {
    if (place.at.kind == state.attachment.kind && place.is_of(devices.first()) &&
        place.address.family != 0 && (!address || place.address.family == address->family)) {
      address = place.address;
    }
  }
  if (address) {
    terms.family = address->family;
    terms.address = address->bytes;
  }
  const bool set = config.origins.contains("mpib_island_prefix_len");
  terms.prefix_len = !set && terms.family == 6
                         ? ipv6_island_bits
                         : static_cast<uint8_t>(config.mpib_island_prefix_len);
  return terms;
}

ha::HostAddress first_rail_of(const Welcome& welcome) {
  const auto first = std::find_if(welcome.rails.begin(), welcome.rails.end(),
                                  [](const ha::Rail& rail) { return rail.primary; });
  return first == welcome.rails.end() ? ha::HostAddress{}
                                      : ha::HostAddress{first->family, first->address};
}

std::shared_ptr<ha::HintSource> agent_hints(const ConnectionState& state,
                                            const ha::HostAddress& peer) {
  if (state.rails.rails == 0 || state.terms.mode != ha::RailMode::hinted || peer.family == 0 ||
      state.terms.family == 0) {
    return nullptr;
  }
  FlowAnnouncement flow;
  flow.flow = {{state.terms.family, state.terms.address}, peer};
  flow.source_host = host_name();
  flow.destination_host = state.peer_host;
  for (size_t rail = 0; rail < state.devices.count; ++rail) {
    flow.devices.push_back(state.provider.devices()[state.devices.devices[rail]].name);
  }
  return std::make_shared<AgentHints>(AgentClient::of(*state.context)->enter(std::move(flow)));
}

std::vector<Rejoin::Way> ways_between(std::span<const fabric::Place> own,
                                      std::span<const ha::Rail> peers) {
  std::vector<Rejoin::Way> ways;
  for (const fabric::Place& place : own) {
    for (const ha::Rail& rail : peers) {
      const IpAddress to{rail.family, rail.prefix_len, place.address.scope_id, rail.address};
      if (rail.family != 0 && place.address.same_subnet(to) && !place.address.same_as(to)) {
        Rejoin::Way& way = ways.emplace_back();
        static_cast<void>(to.to_sockaddr(0, &way.to));
        static_cast<void>(place.address.to_sockaddr(0, &way.from));
      }
    }
  }
  return ways;
}

std::vector<ha::RailPair> without_rails(const ConnectionState& state, const PathSet& paths,
                                        const PeerEnds& peer) {
  const std::vector<ha::Rail> own = paths.rails();
  std::vector<ha::RailPair> pairs = ha::rank_shadows(own, peer.rails);
  const fabric::RailDevices& devices = state.devices;
  const bool rails_stay = devices.are_ways || !any_returned(paths, own, peer);
  std::vector<size_t> here;
  const size_t end = devices.sout_and_sup ? devices.count : peer.agreed.rails + size_t{1};
  for (size_t rail = 1; rail <= peer.agreed.rails && rails_stay; ++rail) {
    if (const auto place = paths.place_of_rail(rail)) {
      here.push_back(ha::nic_of(own, *place));
    }
  }
  // One that is not used stays so when its device comes back.
  const std::vector<fabric::Place>& places = paths.places();
  for (size_t rail = peer.agreed.rails + size_t{1}; rail < end; ++rail) {
    for (size_t i = 0; i < places.size(); ++i) {
      if (places[i].at.kind == state.attachment.kind && places[i].is_of(devices.devices[rail])) {
        here.push_back(ha::nic_of(own, i));
      }
    }
  }
  std::vector<size_t> there;
  for (const uint8_t place :
       std::span(peer.of_rails).first(rails_stay ? size_t{peer.agreed.rails} : 0)) {
    there.push_back(ha::nic_of(peer.rails, place));
  }
  std::erase_if(pairs, [&](const ha::RailPair& pair) {
    return std::ranges::find(here, pair.local_nic) != here.end() ||
           std::ranges::find(there, pair.remote_nic) != there.end();
  });
  return pairs;
}

}  // namespace nccl_ha
