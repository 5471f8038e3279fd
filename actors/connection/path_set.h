// The lanes of a connection: paths are made, equipped, connected and ended here.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "actors/connection/lane.h"
#include "actors/connection/state.h"
#include "actors/control.h"
#include "ha/candidates.h"

namespace nccl_ha {

/// Knows nothing of protocols: it does what it is told and judges nothing.  One thread.
class PathSet {
 public:
  /// What paths are made for.
  struct Needs {
    fabric::PathOwner* owner = nullptr;
    // This side's memory: what it writes to the peer's, and what the peer writes.
    std::shared_ptr<void> source;
    size_t source_bytes = 0;
    /// `anew`: other memory than before.
    std::function<std::shared_ptr<void>(size_t lane, bool anew)> written;
    size_t written_bytes = 0;
    uint32_t receives = 0;  ///< credits that the peer's data may use
    uint32_t flushes = 0;   ///< that paths will be asked for at once
    bool active = false;    ///< this side connects
  };

  explicit PathSet(ConnectionState& state) : state_(state) {}
  ~PathSet() { end(); }
  PathSet(const PathSet&) = delete;
  PathSet& operator=(const PathSet&) = delete;
  void begin(const Needs& needs) { needs_ = needs; }
  /// Ends all paths and takes their memory back, for good.  Needs no memory itself.
  void end() noexcept;
  /// The same, and others can be made.
  void clear();

  // The primaries come first, then those on the device's other rails, then the shadows.
  size_t size() const { return count_; }
  size_t primaries() const { return primaries_; }
  Lane& lane(size_t at) { return lanes_[at]; }
  const Lane& lane(size_t at) const { return lanes_[at]; }
  std::span<Lane> lanes() { return std::span(lanes_).first(count_); }
  std::span<const Lane> lanes() const { return std::span(lanes_).first(count_); }
  /// Over the connection's own device: the primaries and those on its other rails.
  size_t own() const { return primaries_ + rail_lanes_; }
  std::span<const Lane> own_lanes() const { return std::span(lanes_).first(own()); }
  std::span<const Lane> rail_lanes() const { return own_lanes().subspan(primaries_); }
  std::span<const Lane> shadow_lanes() const { return lanes().subspan(own()); }
  size_t at(const Lane& lane) const { return static_cast<size_t>(&lane - lanes_.data()); }
  Lane& lane_of(const fabric::Path* path) {
    Lane* lane = lanes_.data();
    if (lane->owned.path.get() != path) [[unlikely]] {
      while (at(*lane) + 1 < count_ && lane->owned.path.get() != path) {
        ++lane;
      }
    }
    NHA_DASSERT(lane->owned.path.get() == path, "only paths of this connection complete");
    return *lane;
  }
  size_t index_of(const fabric::Path* path) { return at(lane_of(path)); }
  static bool any_usable(std::span<const Lane> lanes);
  bool any_usable() const { return any_usable(lanes()); }
  bool own_usable() const { return any_usable(own_lanes()); }
  bool shadow_usable() const { return any_usable(shadow_lanes()); }
  bool other_usable(size_t lane) const {
    return any_usable(lanes().first(lane)) || any_usable(lanes().subspan(lane + 1));
  }
  /// One that the lane may well be left for.
  bool other_steady(size_t lane) const;
  bool is_steady(const Lane& lane) const;
  /// For whoever looks from outside: after each change of what is usable.
  void count_missing();
  /// How much has got through all paths; only differences mean something.
  uint64_t life() const;

  /// Makes `count` lanes at the connection's own NIC, of datagrams at that address.  With
  /// failover a lane whose port or address is away begins without a path (Lane::early_failure).
  Result<void> make_first(const sockaddr_storage& local, size_t count);
  /// The peer's ends of those, in their order.
  Result<void> connect_first(const std::vector<PathEnd>& peers);
  /// Lanes for paths over the device's other rails, which there are none of yet; before shadows.
  void add_rails(const ha::RailAgreement& agreed);
  /// Lanes for paths over NICs that stand by, which there are none of yet.
  void add_shadows(size_t count);
  /// The place of this host where the next path of a lane elsewhere is made.
  void move_to(Lane& lane, const fabric::Place& place);
  /// A path for a lane, in place of the old one if there is one, where the lane says.
  Result<void> make(Lane& lane, Duration connect_limit = ha::ShadowCandidates::longest_attempt);
  Result<void> connect(Lane& lane, const PathEnd& peer);
  /// What the peer is told of a lane; without an address, why there is none.
  PathEnd end_of(Lane& lane);
  /// Of a lane elsewhere whose path has failed without an address: rejected, if that was as the
  /// device does not take this connection's memory.
  static void note_refusal(Lane& lane, const Error& why) {
    lane.rejected = lane.elsewhere() && why.code == Errc::no_memory;
  }
  /// Whatever lanes there are can be told: each has its path's address, or failed.
  bool addresses_ready() const;
  std::vector<PathEnd> ends();
  /// All paths move to error.
  void fail_all(const Error& why);
  /// Those in error take nothing of the peer's any more (Path::await_stop).
  void await_stops();
  /// Nothing is expected: a caller who drives the paths may make no more calls for a while.
  void flush_acks() {
    if (flushes_acks_ && state_.context->callers_drive()) {
      flush_all_acks();
    }
  }

  bool post_credit(Lane& lane);  ///< a receive for the peer's next immediate
  /// The peer has used one; it is replaced later, together with others.
  void replace_credit(Lane& lane) {
    NHA_DASSERT(lane.credits_open != 0, "the peer uses no more credits than it has");
    --lane.credits_open;
    if (++lane.credits_owed == credits_together) [[unlikely]] {
      post_owed_credits(lane);
    }
  }

  /// Where paths of this connection may begin or end on this host, at most ha::rails_max.
  void find_places();
  /// This host's interfaces or devices have changed: each place that is still there has its address
  /// of now, and new ones come last.  A device that has come back is another one than those of the
  /// primaries and rails, whose keys it does not know: it has a place of its own beside theirs.
  /// Those that are not as they were.
  std::vector<size_t> renew_places();
  const std::vector<fabric::Place>& places() const { return places_; }
  /// That of the primaries' NIC.
  bool is_primary(size_t place) const {
    return place < places_.size() && places_[place].number == local_number_;
  }
  /// What the NIC of a place is called on this host.
  std::string interface_of(const fabric::Place& place) const;
  /// Which of them is on that rail of the connection's device; nothing: none that the primaries'
  /// family of addresses leads to.
  std::optional<size_t> place_of_rail(size_t rail) const;
  /// Forgets those on rails besides the first: no path of this connection goes there.
  void leave_rails_out();
  /// The same as they are compared and told, the primaries' marked.
  std::vector<ha::Rail> rails() const;
  /// Of the primaries or of a rail.
  bool is_own(size_t place) const;
  /// The device that its path began at is gone for good, and another one in its place.
  bool is_over(const Lane& lane) const {
    return state_.provider.live_at(lane.at.device, lane.at.kind).incarnation != lane.at.incarnation;
  }
  /// Another fabric than the connection's own.
  bool is_fallback(const Lane& lane) const {
    return lane.shadow && lane.at.kind != state_.attachment.kind;
  }
  /// There is something of another fabric among the places, and of the own one as well.
  bool backs_with_others() const;
  /// What the NIC of a lane is called on this host.
  std::string interface_of(const Lane& lane) const;
  /// All that the lane fails with, as far as its path knows.
  fabric::FailureDomains domains_of(const Lane& lane) const;
  bool is_in(const Lane& lane, const fabric::FailureDomain& domain) const;
  /// Of those that are usable, for logs.
  std::string text() const;

 private:
  struct Known {
    fabric::Attachment at;
    bool per_device = false;  ///< PathTraits::keys_per_device
    const void* bytes = nullptr;
    std::shared_ptr<fabric::OwnMemory> memory;
    bool serves(const Lane& lane) const {
      return at.kind == lane.at.kind && (!per_device || at.opened() == lane.at.opened());
    }
  };
  /// This connection's own memory, for a path that the lane is about to get.
  Result<void> equip(Lane& lane, fabric::PathOptions& options);
  std::vector<fabric::Place> look_for_places() const;
  void renew_local(Lane& lane);
  void name_counters(Lane& lane);
  /// Own memory as the lane's device knows it, or will.
  Result<std::shared_ptr<fabric::OwnMemory>> known(const Lane& lane, std::shared_ptr<void> bytes,
                                                   size_t length);
  static void take_keys(Lane& lane);
  void post_owed_credits(Lane& lane);
  void flush_all_acks();

  static constexpr uint32_t credits_together = 8;

  ConnectionState& state_;
  Needs needs_;
  std::array<Lane, lanes_max> lanes_;
  size_t count_ = 0;
  size_t primaries_ = 0;
  size_t rail_lanes_ = 0;
  bool flushes_acks_ = false;           ///< there is a path whose acknowledgements software sends
  sockaddr_storage local_{};            ///< the primaries'
  uint16_t local_number_ = UINT16_MAX;  ///< of its place
  bool without_rails_ = false;
  std::vector<fabric::Place> places_;
  std::vector<Known> memory_;
};

}  // namespace nccl_ha
