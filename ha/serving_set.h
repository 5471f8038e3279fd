// Which of a connection's lanes carry its data, each with which weight, and when that changes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "ha/invariant.h"
#include "runtime/base/clock.h"

namespace nccl_ha::ha {

/// Lanes have ranks: 0 are the primaries, 1 and up the shadows in the order in which they take
/// over.  All lanes of one rank that work carry data, in proportion to their weights.  Traffic
/// stays with its rank as long as one lane of it works, and goes back to a better one at once when
/// none does or, where that is wanted, when all lanes of some rail of the better one have worked
/// for long enough.  A return that was too early doubles what is long enough, so that a port that
/// flaps costs less and less.  Takes the time from its caller.  One thread.
class ServingSet {
 public:
  static constexpr size_t lanes_max = 16;

  /// What the owner sees of a lane.
  struct Lane {
    bool usable = false;
    uint8_t rank = 0;
    uint8_t rail = 0;       ///< lanes of one rail come back together, rails each for itself
    uint32_t weight = 1;    ///< 0: carries nothing
    bool fallback = false;  ///< over a slower fabric than the primaries': left when it can be
    Instant since{};        ///< usable since then
  };
  struct View {
    std::span<const Lane> lanes;
    bool wanted = false;    ///< traffic is to go back although the rank that carries it works
    bool between = true;    ///< no chunk is half posted: it ends on the path where it began
    bool detained = false;  ///< it is not to, as the better rank is slow (Detour)
  };
  enum class Step : uint8_t {
    stay,
    move,   ///< traffic goes to rank()
    later,  ///< look again at look_at()
  };
  struct Share {
    uint8_t lane = 0;
    uint32_t weight = 0;
    bool operator==(const Share&) const = default;
  };

  /// Times that the wait is doubled at most.
  static constexpr unsigned doublings_max = 6;

  explicit ServingSet(Duration after = {}) : after_(after) {}

  /// After any change of the lanes, and when it was asked for.  shares() is right afterwards.
  Step look(const View& view, Instant now);
  /// What the rank that carries traffic cannot carry goes to the best one that works.  False: that
  /// is no better one.
  bool give_way(const View& view, Instant now);

  uint8_t rank() const { return rank_; }
  /// Empty: nothing works.
  std::span<const Share> shares() const { return std::span(shares_).first(count_); }
  bool serves(size_t lane) const;
  Instant look_at() const { return look_at_; }
  /// How long a better rank has to work before traffic goes back to it.
  Duration after() const { return after_ * (1 << doublings_); }
  /// See ha/invariant.h.
  const char* broken() const { return invariants_.broken(); }

 private:
  /// Until a chunk that is being posted may be through.
  static constexpr Duration between_interval = std::chrono::milliseconds(1);

  Step choose(const View& view, Instant now);
  void move(uint8_t rank, Instant now);
  void share(std::span<const Lane> lanes);

  Duration after_;
  uint8_t rank_ = 0;
  unsigned doublings_ = 0;
  std::optional<Instant> went_back_at_;  ///< to a better rank, lately
  Instant look_at_{};
  std::array<Share, lanes_max> shares_{};
  size_t count_ = 0;
  Invariants invariants_;
};

}  // namespace nccl_ha::ha
