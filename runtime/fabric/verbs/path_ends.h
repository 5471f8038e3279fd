// Where a path begins and ends: its port and GID as they were when it was made, and the addresses
// of both queue pairs.
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "runtime/base/result.h"
#include "runtime/fabric/path.h"
#include "runtime/fabric/verbs/device.h"
#include "runtime/fabric/verbs/gid.h"
#include "runtime/fabric/verbs/queue_pair.h"
#include "runtime/fabric/verbs/scratch.h"
#include "runtime/fabric/verbs/wire_address.h"

namespace nccl_ha::fabric::verbs {

class PathEnds {
 public:
  PathEnds() = default;
  /// As the port was known before; the local address comes with take_local().
  explicit PathEnds(const PortInfo& info) : info_(info) { local_.link = info.link; }
  /// Asks the device now: after a flap, an address may sit at another index of the table.
  Result<void> look_up(const Device& device, uint8_t port, const GidPreference& want);
  /// The own queue pair is there; the peer's probes go to `scratch`.
  void set_local(uint32_t queue_pair, uint32_t packet_sequence, Scratch& scratch);
  /// nullopt: the device does not say.
  void set_local_ece(const std::optional<ibv_ece>& ece);
  /// The local end as it was made; the peer's stays.
  void take_local(const PathEnds& made);
  /// Refuses a peer with a link of another kind.
  Result<void> set_peer(const WireAddress& peer);

  const PortInfo& info() const { return info_; }
  const WireAddress& local() const { return local_; }
  const WireAddress& peer() const { return peer_; }
  bool both_know_ece() const { return peer_.has_ece && local_.has_ece; }
  bool ethernet() const { return local_.link == LinkLayer::ethernet; }
  /// Empty before there is one.
  std::span<const std::byte> local_bytes() const {
    return std::span(local_bytes_).first(local_.queue_pair == 0 ? 0 : local_bytes_.size());
  }
  /// What packets of both sides may be long: verbs' code, and bytes.
  uint8_t mtu() const { return std::min(local_.mtu, peer_.mtu); }
  uint32_t mtu_bytes() const { return 128U << mtu(); }

  /// To the peer's queue pair.
  QueuePair::Connection to_peer(uint8_t traffic_class, uint8_t service_level) const;
  /// Of a queue pair with itself.
  QueuePair::Connection to_itself(uint32_t queue_pair) const;

  /// The peer's NIC as FailureDomain names it; nullopt: it is not known yet.
  std::optional<std::string> peer_nic() const;
  Error no_way(int error) const;
  /// As Path::describe().
  std::string describe() const;

 private:
  PortInfo info_;
  std::optional<GidEntry> gid_;
  WireAddress local_;
  WireAddress peer_;
  std::array<std::byte, wire_address_bytes> local_bytes_{};
};

}  // namespace nccl_ha::fabric::verbs
