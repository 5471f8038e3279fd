// What the connecting and the accepting side of a connection do differently.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "actors/channel.h"
#include "actors/connection/control_link.h"
#include "actors/connection/failover.h"
#include "actors/connection/liveness.h"
#include "actors/connection/path_set.h"
#include "actors/connection/state.h"
#include "actors/control.h"
#include "actors/driver.h"

namespace nccl_ha {

/// The parts that both sides have, and what is asked of the connection that has them.
struct ConnectionParts {
  ConnectionState& state;
  PathSet& paths;
  ControlLink& control;
  Liveness& liveness;
  Failover& failover;
};

/// What a side asks of its connection beside its parts.
class SideOwner {
 public:
  /// The handshake has to be over in so long.
  virtual void arm_deadline(Duration in) = 0;
  /// The first paths were made: what is missing is looked at, and when each of them has come up or
  /// failed, the handshake is over.
  virtual void end_handshake() = 0;
  /// The caller is told of the connection, from any earlier phase.
  virtual void enter_usable() = 0;
  /// The connection failed at the peer, which says why; nullopt: unreadable.
  virtual void refused(const std::optional<Refusal>& why) = 0;
  /// The connection is over because the peer ended it: it hears that this side knows.
  virtual void part_with_peer(const Error& why) = 0;
  /// As if the caller had closed.
  virtual void close() = 0;
  /// There is nothing any more for which a close would wait.
  virtual void on_all_sent() = 0;
  /// The actor ends at once.
  virtual void finish() = 0;

 protected:
  ~SideOwner() = default;
};

/// One thread.  Everything is called while the connection is live, unless stated otherwise.
class Side {
 public:
  virtual ~Side() = default;
  virtual const char* name() const = 0;
  virtual Channel* channel() = 0;  ///< null while there is none
  virtual Driver* driver() = 0;    ///< of the channel; the same
  /// The actor has started: begins the handshake.
  virtual void begin() = 0;
  virtual void on_stream_open(Stream& stream) = 0;
  virtual void on_control(const ControlReader::Message& message) = 0;
  /// The peer has been told of the first paths.
  virtual bool told_paths() const = 0;
  /// One of the first paths has an address, or failed without.
  virtual void on_first_address() = 0;
  /// The handshake took too long.
  virtual void on_deadline() = 0;
  /// Before it was usable: the peer has begun it anew, with another one.
  virtual void on_begun_anew() {}
  /// The first paths have come up or failed: from now on what fails is replaced.
  virtual void on_settled() = 0;
  /// There is a path: the caller is told.  Once.
  virtual void on_usable() = 0;
  virtual void on_doorbell() = 0;
  /// The connection failed; `told`: the caller knew of it before.
  virtual void on_failure(const Error& error, bool told) = 0;
  virtual void on_peer_gone(const Error& error) = 0;
  /// False: nobody is there who would send over them.
  virtual bool needs_paths() const { return true; }
  /// The peer is ready.
  virtual void on_confirm() {}
  virtual void on_unconfirmed() {}
  /// Also while it lingers.
  virtual void on_stream_lost(const Error& why) = 0;
  virtual void on_stream_back() {}
  /// The peer has closed, and what it sent before is still being dealt with: the end of its stream
  /// means nothing.
  virtual bool peer_may_leave() const { return false; }
  /// May the peer's rejoin become the connection's stream?
  virtual bool takes_streams() const = 0;
  /// What the peer is told when this side closes.
  virtual CloseNotice last_words() const = 0;
  /// Nothing that the caller asked for is under way.
  virtual bool all_done() const = 0;
  /// Something has to arrive before this side says that it closes.
  virtual bool waits_to_close() const { return false; }
  /// Memory that the caller may have back could be read or written through that lane; `closing`:
  /// by the caller's own wish.
  virtual bool exposed(const Lane& lane, bool closing) const = 0;
  /// Where the peer would be if it were connected, for messages.
  virtual std::string wanted_peer() const = 0;

  // What becomes of a lane once the connection is ready.  Without failover none of it is called.
  virtual void on_lane_ready(size_t lane) = 0;
  virtual void on_lane_failed(size_t lane, const Error& error) = 0;
  virtual void on_lane_drained(size_t lane) = 0;
  /// A rail of the sender's is fenced off for being slow.
  virtual void on_slow_rail(size_t rail) { (void)rail; }
  virtual void on_domain_up(const fabric::FailureDomain& domain) { (void)domain; }
  /// Where paths may begin or end on this host has changed.
  virtual void on_interfaces_renewed() {}
  virtual void on_looked() {}
  /// A new path of the lane has an address.
  virtual void on_lane_address(size_t lane) = 0;
  /// All timers end.
  virtual void stop() = 0;
};

}  // namespace nccl_ha
