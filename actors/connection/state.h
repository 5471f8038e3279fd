// What all parts of a connection know of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ha/rails.h"
#include "runtime/base/check.h"
#include "runtime/base/result.h"
#include "runtime/engine/actor.h"
#include "runtime/engine/context.h"
#include "runtime/engine/engine.h"
#include "runtime/fabric/path.h"
#include "runtime/fabric/provider.h"
#include "runtime/telemetry/counter_file.h"

namespace nccl_ha {

/// How far a connection is.  Passed in this order; some may be left out, none comes again.
enum class ConnectionPhase : uint8_t {
  handshake,  ///< the stream and the first paths are made
  settled,    ///< each of the first paths has come up or failed; none has been usable yet
  usable,     ///< the caller was told
  lingering,  ///< failed or closed: what makes the peer know goes on for a bounded time
  over,       ///< failed, and nothing goes on; the caller has not closed
  gone,       ///< the actor is being removed
};

/// What the parts of a connection ask of the whole.
class ConnectionOwner {
 public:
  /// The first failure is final: published, told to the peer if that is wanted, and what every
  /// later call of the user's gets.  Does nothing when the connection is not live.
  virtual void fail(const Error& error, bool tell_peer) = 0;
  /// For messages: address, host and process of the peer as far as they are known, this side's
  /// device, and a number that no other connection has: that which both hosts count it under, and
  /// before they have agreed on one "worker.actor".
  virtual std::string peer_text() const = 0;

  // From the path owner that the data path is.
  virtual void on_path_state(fabric::Path& path, fabric::PathState state, const Error& error) = 0;
  virtual void on_path_address(fabric::Path& path) = 0;
  virtual void on_path_link_down(fabric::Path& path, const Error& why) = 0;
  virtual void on_fence_stuck(const Error& error) = 0;
  /// A completion when the connection is not live.
  virtual void on_late_completion(const fabric::Completion& completion) = 0;
  /// Work has come back from a lane that is out of use.
  virtual void on_work_back(size_t lane) = 0;
  /// The first path on another rail has come up or failed.
  virtual void on_lane_decided() = 0;

 protected:
  ~ConnectionOwner() = default;
};

/// One thread, that of the connection's worker.
struct ConnectionState {
  ConnectionState(ConnectionOwner& whole, fabric::Provider& fabrics, Engine& runner)
      : owner(whole), provider(fabrics), engine(runner) {}

  ConnectionOwner& owner;
  fabric::Provider& provider;
  Engine& engine;
  Context* context = nullptr;  ///< from the actor's start on
  ActorId id;                  ///< the actor's
  ConnectionPhase phase = ConnectionPhase::handshake;

  // The connection's own NIC, and what was agreed with the peer.
  fabric::Attachment attachment;
  fabric::PathTraits traits;  ///< of `attachment`
  uint64_t domain = 0;
  std::optional<SharedKey> shared;     ///< with the peer, of the connection's first stream
  bool backup = false;                 ///< both sides replace paths that fail
  bool agreed = false;                 ///< each side has said whether it wants that
  uint16_t version = control_version;  ///< of the protocol, from the answer to the hello on
  uint8_t shadows = 0;                 ///< lanes over NICs that stand by
  fabric::RailDevices devices;         ///< of this side's device; the first is `attachment`'s
  ha::RailTerms terms;                 ///< what this side says of them
  ha::RailAgreement rails;             ///< what both sides do
  uint8_t traffic_class = 0;
  uint8_t service_level = 0;

  /// Where the connection's blocks of counters go.  Until it is known which it is: nowhere, and
  /// what happens is counted for nobody.
  CounterPlace counted;
  ConnectionCounters unknown;
  ConnectionCounters* counters = &unknown;

  std::string peer_host;  ///< empty: it has not said
  uint32_t peer_process = 0;

  /// Lanes that are made when the handshake is over.
  size_t later_lanes() const { return size_t{rails.rails} * rails.lanes + shadows; }
  /// Neither failed nor closed by either side.
  bool live() const { return phase <= ConnectionPhase::usable; }
  /// Live, and past the handshake: what fails is replaced.
  bool ready() const {
    return phase == ConnectionPhase::settled || phase == ConnectionPhase::usable;
  }
  bool lingers() const { return phase == ConnectionPhase::lingering; }
  /// Of the stream over which the first paths are agreed on; later ones take its place only.
  void share(const Stream& stream) {
    if (const SharedKey* key = stream.shared_key()) {
      shared = *key;
    }
  }
  /// What the peer says is of interest.
  bool hears() const { return live() || lingers(); }
  void count_in(const CounterBlock<ConnectionCounters>& block) {
    counted = block.place();
    counters = &*block;
  }
  void enter(ConnectionPhase next) {
    NHA_DASSERT(next > phase, "a connection goes through its phases once and in order");
    phase = next;
  }
  /// False, and the connection has failed with an internal error, what happened before is in the
  /// log, and the peer is told: something that this program keeps true is not.  `what`: a literal
  /// that says what should be so.
  [[nodiscard]] bool holds(bool condition, const char* what) {
    if (!condition) [[unlikely]] {
      on_broken(what);
    }
    return condition;
  }
  /// The same for a machine of ha/, after a step of it (ha/invariant.h).
  template <class Machine>
  [[nodiscard]] bool sound(const Machine& machine) {
    const char* broken = machine.broken();
    if (broken != nullptr) [[unlikely]] {
      on_broken(broken);
    }
    return broken == nullptr;
  }
  void fail(const Error& error, bool tell_peer = true) { owner.fail(error, tell_peer); }
  /// Some of each message, so that none of it is a call.
  [[gnu::always_inline]] void note(TraceEvent event, uint64_t a, uint64_t b, size_t c = 0) const {
    context->recorder().note(event, id.index, a, b, static_cast<uint16_t>(c));
  }
  void note_step(RoundStep step, size_t lane, uint32_t epoch) const {
    note(TraceEvent::round_part, static_cast<uint64_t>(step), epoch, lane);
  }
  /// What was noted up to now is worth keeping.
  void ask_trace(TraceCause cause) const {
    context->recorder().stamp(context->now());
    engine.ask_trace(cause);
  }
  /// With a time of its own, which is not before it happened; for clocks of hosts to be compared
  /// by.
  void record(TraceEvent event, uint64_t a, uint64_t b, size_t c, Instant now) const {
    context->recorder().record(event, id.index, a, b, now, static_cast<uint16_t>(c));
  }
  /// Both sides name the connection alike from the hello on.
  void name(uint64_t key) {
    counters->key.set(key);
    counters->actor.set(id.index);
  }
  void note_said(uint64_t key) {
    const Instant now = context->clock().now();
    counters->said_ns.set(static_cast<uint64_t>(now.time_since_epoch().count()));
    record(TraceEvent::handshake, 0, key, 0, now);
  }
  void note_heard(uint64_t key) {
    const Instant now = context->clock().now();
    counters->heard_ns.set(static_cast<uint64_t>(now.time_since_epoch().count()));
    record(TraceEvent::handshake, 1, key, 0, now);
  }

  [[gnu::noinline, gnu::cold]] void on_broken(const char* what);

 private:
  bool broken_ = false;  ///< and it was told
};

}  // namespace nccl_ha
