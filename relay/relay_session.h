// A session in a relay: two neighbours, a stream and a hop to each, and what goes from one to the
// other.  An actor, as it ends in the midst of what happens on its hops.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>

#include "relay/forwarder.h"
#include "relay/hop_source.h"
#include "relay/session_stream.h"
#include "runtime/base/key_file.h"
#include "runtime/base/run_limit.h"
#include "runtime/engine/actor.h"

namespace nccl_ha::relay {

/// What a relay allows, and how it passes on.
struct RelayOptions {
  NodeId self{};
  size_t relays_max = 4;           ///< on a route
  size_t sessions_max = 256;       ///< at a time; more are refused
  size_t sessions_per_host = 128;  ///< of them, those of one neighbour; so much of memory too
  uint32_t chunk_bytes = 65536;
  uint16_t slots_max = 64;                ///< of that size, for each direction of a session
  size_t pool_bytes = size_t{256} << 20;  ///< RelayPool, for all of them
  uint64_t flight_bytes = 4 << 20;        ///< FairShares, to each neighbour
  bool store = false;                     ///< Forwarder::Options::store
  Duration setup_limit = std::chrono::seconds(10);
  std::shared_ptr<const KeyFile> key;  ///< that neighbours must have; null: they need none
  std::shared_ptr<const JobKeys> job;  ///< without one: that neighbours may have, or must
};

class RelaySession final : public Actor, private fabric::PathOwner, private SessionStream::Owner {
 public:
  class Owner {
   public:
    /// Once; it is gone at the end of the turn.
    virtual void on_session_end(RelaySession& session, const std::string& why) = 0;

   protected:
    ~Owner() = default;
  };
  /// What a session was given by its node.
  struct Share {
    uint16_t slots = 0;  ///< for each direction
    uint32_t chunk_bytes = 0;
    Ticket ticket;  ///< of the process that asked; none: a relay has, or a process with the key
    std::array<std::shared_ptr<Egress>, 2> egresses;  ///< by Side
  };
  /// `request` came by `stream`, and its route leads through this host; the next one listens there.
  RelaySession(HopSource& hops, const RelayOptions& options, Owner& owner,
               std::unique_ptr<SessionStream> stream, SetupRequest request, const NextHop& next,
               Share share);
  ~RelaySession() override;

  const char* name() const override { return "relay-session"; }
  void start(Context& context) override;
  void on(const Message& message) override { (void)message; }
  /// At once, whatever its hops still hold.
  void stop() override;

  /// From the origin to the destination, and back.
  const Forwarder::Counts& counts(size_t direction) const { return forwards_[direction].counts(); }
  size_t memory_bytes() const {
    return legs_[up].line.memory_bytes() + legs_[down].line.memory_bytes();
  }
  size_t waiting(size_t direction) const { return forwards_[direction].waiting(); }
  /// Frames that lie here: they wait, or the next hop has not acknowledged them.
  uint64_t held(size_t direction) const { return legs_[direction].line.held(); }
  bool carries() const { return phase_ == Phase::open; }
  bool ended() const { return phase_ == Phase::ended; }
  uint64_t number() const { return request_.session; }
  NodeId origin() const { return request_.nodes.front(); }
  /// The neighbour that asked for it.
  NodeId asker() const { return request_.nodes[request_.place - 1U]; }
  NodeId destination() const { return request_.nodes.back(); }
  const Share& share() const { return share_; }
  enum Side : size_t { up, down };  ///< towards the origin, towards the destination
  /// What carries the hop on that side; of a session that carries.
  fabric::FabricKind hop_kind(Side side) const { return legs_[side].line.place().at.kind; }
  /// For people; empty: there is none yet.
  std::string hop_text(Side side) const {
    return legs_[side].line.path() != nullptr ? legs_[side].line.path()->describe() : "";
  }
  /// An interface of this host has no link: if one of the two hops is over it, the neighbour on the
  /// other side is told.
  bool on_link_down(const std::string& interface);
  /// Tells both neighbours why.  The message that `told` names came in at `from`: the neighbour on
  /// the other side knows another one by that number.  The owner hears of it when no device touches
  /// its slots any more.
  void end(const SetupRefusal& told, const std::string& why,
           std::optional<Side> from = std::nullopt);

 private:
  enum class Phase : uint8_t { setting_up, open, ended };
  struct Leg {
    explicit Leg(HopSource& hops) : line(hops) {}
    HopLine line;
    std::unique_ptr<SessionStream> stream;
  };

  void on_session_open(SessionStream& stream) override;
  void on_session_message(SessionStream& stream, SessionMessage message) override;
  void on_session_lost(SessionStream& stream, const Error& error) override;
  void on_completion(const fabric::Completion& completion) override;
  void on_path_state(fabric::Path& path, fabric::PathState state, const Error& error) override;
  void on_fence_stuck(fabric::Path& path, const Error& error) override;
  void on_path_address(fabric::Path& path) override;
  Result<std::vector<HopPlace>> places(Side side);
  Result<void> make_hop(Side side, const HopPlace& place);
  Result<void> begin();
  Result<void> dial_down();
  Result<void> ask_down();
  void ask();
  void answer();
  void blame_down(const std::string& why);
  bool down_is_late() const;
  void tell_end();
  bool idle() const;
  NodeId next_node() const { return request_.nodes[request_.place + 1U]; }
  Result<void> open_down(const SetupAck& ack);
  void open_forwarders();
  void on_deadline();
  static Side opposite(Side side) { return side == up ? down : up; }
  Side side_of(const fabric::Path* path) const { return path == legs_[up].line.path() ? up : down; }

  Context* context_ = nullptr;
  HopSource& hops_;
  RelayOptions options_;
  Owner& owner_;
  SetupRequest request_;
  NextHop next_;
  Share share_;
  uint64_t domain_ = 0;
  std::array<Leg, 2> legs_;
  std::array<Forwarder, 2> forwards_;  ///< of what comes in at each leg
  uint32_t chunk_bytes_ = 0;
  Phase phase_ = Phase::setting_up;
  size_t choice_ = 0;                    ///< of the places where the hop down may begin
  std::optional<Moment> down_asked_at_;  ///< its hop is to come up since then
  bool down_open_ = false;               ///< the neighbour there has answered, and its hop is ready
  std::string why_;                      ///< it has ended
  bool told_ = false;
  Timer deadline_;
  RunLimit limit_;  ///< until the route has come about
};

}  // namespace nccl_ha::relay
