// What a process has in place of the cluster's key: the relay node of its host vouches for it.
//
// A ticket's key comes from the cluster's key and from all that the ticket says.  So each host with
// the cluster's key knows it, the process was given it, and other processes cannot make it.  It
// seals streams of sessions; it makes no other ticket and no packet of discovery.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include "relay/codec.h"
#include "relay/job_keys.h"
#include "relay/node_id.h"
#include "runtime/base/key_file.h"
#include "runtime/base/keyed_hash.h"

namespace nccl_ha::relay {

/// Says of no process: the cluster's key itself.  On the wire: key u32, node u64, incarnation u32,
/// user u32, id 16 bytes.
struct Ticket {
  using Id = std::array<std::byte, 16>;
  uint32_t key = 0;          ///< the number of the cluster's key that it is made with
  NodeId node{};             ///< that gave it; 0: no ticket
  uint32_t incarnation = 0;  ///< of that node, after whose end it begins no more paths
  uint32_t user = 0;         ///< whose the process is, as the node's kernel says
  Id id{};                   ///< another one for each process
  bool given() const { return number(node) != 0; }
  bool operator==(const Ticket&) const = default;
};
inline constexpr size_t ticket_bytes = 36;

void put_ticket(WireWriter& out, const Ticket& ticket);
Ticket take_ticket(WireReader& in);

/// Of a ticket or, where none is given, the cluster's key itself.
struct NamedKey {
  Ticket ticket;
  HashKey key{};
};
/// Of a ticket that is given; `cluster`: the key of its number.
NamedKey make_named_key(const HashKey& cluster, const Ticket& ticket);

/// A process's own.  Any thread.
class Tickets {
 public:
  /// Peers that were told of an earlier one still dial with it.
  static constexpr size_t kept_max = 8;

  void add(const NamedKey& ticket);
  /// nullopt: it was given none.
  std::optional<NamedKey> newest() const;
  std::optional<NamedKey> find(const Ticket& ticket) const;

 private:
  mutable std::mutex mutex_;
  std::deque<NamedKey> kept_;  ///< the newest last
};

/// What one stream may be sealed with, as it is when the stream begins.
class SealKeys {
 public:
  SealKeys(std::shared_ptr<const KeyRing> cluster) : cluster_(std::move(cluster)) {}
  SealKeys(std::shared_ptr<const Tickets> tickets) : tickets_(std::move(tickets)) {}

  /// What a dialler names.  `peer`: the ticket that the other side has told of.  `key`: the number
  /// of one that it has, where this host has several.
  std::optional<NamedKey> to_dial(const Ticket& peer, uint32_t key) const;
  /// What a dialler has named; nullopt: it is not known here.
  std::optional<NamedKey> find(const Ticket& named) const;

 private:
  std::shared_ptr<const KeyRing> cluster_;
  std::shared_ptr<const Tickets> tickets_;  ///< where there is no `cluster_`
};

/// What a process or a node seals its streams with; with none, they are not sealed.
struct SessionKeys {
  std::shared_ptr<const KeyFile> cluster;
  std::shared_ptr<const Tickets> tickets = nullptr;  ///< heeded where there is no `cluster`
  std::shared_ptr<const JobKeys> job = nullptr;      ///< and this where there is no ticket

  explicit operator bool() const { return has_own() || job; }
  /// Those of the cluster, or a ticket made with them.
  bool has_own() const { return cluster || (tickets && tickets->newest()); }
  /// Whoever shows no key is served too, and is dialled without one where it is known to have none.
  bool open() const { return !has_own() && (!job || job->open()); }
  SealKeys now() const {
    if (cluster) {
      return SealKeys(cluster->current());
    }
    return has_own() || !job ? SealKeys(tickets) : SealKeys(job->current());
  }
  /// With which others are to dial.
  Ticket own() const {
    const auto newest = !cluster && tickets ? tickets->newest() : std::nullopt;
    return newest ? newest->ticket : Ticket{};
  }
  /// Whoever dials shows that it may end paths here: with the cluster's key, or with a ticket of
  /// this process, which hosts with that key know too.
  bool is_relay(const Ticket& named) const { return !cluster || !named.given(); }
};

}  // namespace nccl_ha::relay
