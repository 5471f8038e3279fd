// How a connection begins on a device with several rails.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "actors/connection/path_set.h"
#include "actors/connection/state.h"
#include "actors/rejoin.h"
#include "ha/flow.h"
#include "ha/rail_policy.h"
#include "ha/rails.h"
#include "ha/shadow.h"

namespace nccl_ha {

/// Where the first paths of datagrams begin: at the first rail's own address, of the family of
/// `stream`, which is the stream's; at that where the device has one rail or no such address.
sockaddr_storage first_address(const ConnectionState& state, const sockaddr_storage& stream);

/// How many paths the connection begins with, as this side wants it.
size_t first_paths(const ConnectionState& state);

/// What this side says of its rails.  Where the first one has no IP address (InfiniBand), `stream`,
/// this side's address of the stream, tells the island.
ha::RailTerms rail_terms(const ConnectionState& state, const sockaddr_storage& stream);

/// The address of the peer's SOUT as its welcome has it; family 0: it told none.
ha::HostAddress first_rail_of(const Welcome& welcome);

/// What the host's agent says of the flow to there, where both sides want hints; null elsewhere.
/// Of the worker's thread.
std::shared_ptr<ha::HintSource> agent_hints(const ConnectionState& state,
                                            const ha::HostAddress& peer);

/// Where paths may end at the peer's, as it has told.
struct PeerEnds {
  std::vector<ha::Rail> rails;
  std::array<uint8_t, ha::device_rails_max - 1> of_rails{};  ///< Welcome::rail_ends
  ha::RailAgreement agreed;
};

/// Where paths may stand by, best first (ha::rank_shadows): on no rail of the device's of either
/// side besides the first that is a lane already, or may not lead to the peer.
std::vector<ha::RailPair> without_rails(const ConnectionState& state, const PathSet& paths,
                                        const PeerEnds& peer);

/// To ends of the peer's where no router is needed, in their order.  The peer's first message had
/// room for some of its addresses only (plugin/handle.h).
std::vector<Rejoin::Way> ways_between(std::span<const fabric::Place> own,
                                      std::span<const ha::Rail> peers);

}  // namespace nccl_ha
