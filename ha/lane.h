// How one path of a connection is given up and replaced, as seen from either side.
//
// A lane is the place of a path in its connection; the path in it changes, and each one has an
// epoch.  The sending side decides, the receiving side reports.  Nothing here does anything: an
// event goes in, the steps that its owner has to take come out.  docs/failover-protocol.md tells
// the protocol, tests/model checks it, and tests/unit/ha_lane_test.cpp explores every order of
// events.
#pragma once

#include <cstdint>

#include "ha/invariant.h"

namespace nccl_ha::ha {

/// What the owner of a SenderLane has to do, in this order.
struct SenderSteps {
  bool take_down = false;       ///< stop posting, put the queue pair into error
  bool abandon = false;         ///< have all posted work back, whatever the device still does
  bool say_down = false;        ///< tell the peer that this side is closed, with this epoch
  bool apply_report = false;    ///< the report decides which chunks go again, on whatever lane
  bool reopen = false;          ///< now or a little later: make a new path, then call reopened()
  bool connect = false;         ///< the new path, to the address that came with the event
  bool use = false;             ///< it carries traffic
  bool protocol_error = false;  ///< the peer said what it cannot have meant: a fault of the program
  bool operator==(const SenderSteps&) const = default;
};

/// The sending side.  One thread.
class SenderLane {
 public:
  enum class State : uint8_t {
    opening,  ///< a path was made; both sides find out whether packets get through
    usable,
    fencing,  ///< until all posted work has come back, then until the peer has reported
    down,     ///< until somebody makes a new path
  };
  /// A lane begins with a path that the handshake makes, or `down`.  `moves`: its next path may be
  /// over another device, with memory of its own, and waits for no proof.
  explicit SenderLane(State begins = State::opening, bool moves = false)
      : state_(begins), moves_(moves) {}
  State state() const { return state_; }
  uint32_t epoch() const { return epoch_; }
  /// Nothing goes on with this lane before the peer's next word about it.
  bool waits_for_peer() const {
    return (state_ == State::fencing && drained_) || (state_ == State::opening && !rebuilt_);
  }

  /// The path says that it carries traffic.
  SenderSteps on_ready();
  /// The path failed, or should be treated so.
  SenderSteps on_failed();
  /// The peer says so.
  SenderSteps on_suspect(uint32_t epoch);
  /// Nothing proves yet that the device is through with what was posted.  The peer can go on
  /// without: it closes its own side, and announces where nothing late can land.
  SenderSteps on_unproven();
  /// The device is through with a path that was abandoned.
  SenderSteps on_proven();
  /// All work posted to the path has come back, after take_down.
  SenderSteps on_drained();
  /// The peer has closed its side for good, and says what arrived.
  SenderSteps on_fenced(uint32_t epoch);
  /// A new path was made under the next epoch; the peer is to be told.
  void reopened();
  /// The peer has made its side.
  SenderSteps on_rebuilt(uint32_t epoch);
  /// No device has anything of this epoch that it may still do.
  bool proven() const { return proven_; }
  /// See ha/invariant.h.
  const char* broken() const { return invariants_.broken(); }

 private:
  SenderSteps checked(const SenderSteps& steps) const;

  bool may_reopen() const { return proven_ || moves_; }

  State state_;
  bool moves_;
  uint32_t epoch_ = 0;
  bool drained_ = false;
  bool proven_ = true;
  bool rebuilt_ = true;  ///< of this epoch; the first paths are made by the handshake
  Invariants invariants_;
};

/// What the owner of a ReceiverLane has to do, in this order.
struct ReceiverSteps {
  bool take_down = false;    ///< put the queue pair into error: nothing is written any more
  bool say_suspect = false;  ///< tell the peer, with this lane's epoch
  bool report = false;       ///< everything that arrived has been looked at: say what that is
  bool open = false;         ///< make a new path towards the address that came, and tell its own
  bool use = false;          ///< announcements may go over it
  bool protocol_error = false;
  bool operator==(const ReceiverSteps&) const = default;
};

/// The receiving side.  One thread.
class ReceiverLane {
 public:
  enum class State : uint8_t {
    opening,
    usable,
    suspected,  ///< closed by this side; the sender may not know yet
    fencing,    ///< the sender has stopped; until all posted receives have come back
    fenced,     ///< reported
  };
  /// A lane begins with a path that the handshake makes, or `fenced`.
  explicit ReceiverLane(State begins = State::opening)
      : state_(begins), drained_(begins == State::fenced) {}
  State state() const { return state_; }
  uint32_t epoch() const { return epoch_; }
  /// The sender has closed its side.
  bool peer_stopped() const { return state_ != State::usable && state_ != State::suspected; }

  ReceiverSteps on_ready();
  ReceiverSteps on_failed();
  /// All posted receives have come back, after take_down.
  ReceiverSteps on_drained();
  /// The sender has taken its side down, and takes nothing more of it.
  ReceiverSteps on_down(uint32_t epoch);
  /// The sender has made a new path; `open` means that the epoch is this one from now on.
  ReceiverSteps on_rebuild(uint32_t epoch);
  /// See ha/invariant.h.
  const char* broken() const { return invariants_.broken(); }

 private:
  ReceiverSteps checked(const ReceiverSteps& steps) const;

  State state_;
  uint32_t epoch_ = 0;
  bool drained_;
  Invariants invariants_;
};

}  // namespace nccl_ha::ha
