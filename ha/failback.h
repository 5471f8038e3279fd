// Which of a connection's paths carry its data, and when that changes.
#pragma once

#include <algorithm>
#include <optional>

#include "runtime/clock.h"

namespace nccl_ha::ha {

/// Traffic takes the primaries as long as one of them works, and stays where it went until that
/// fails or, where that is wanted, until all primaries have worked for long enough.  A return that
/// was too early doubles what is long enough, so that a port that flaps costs less and less.  Takes
/// the time from its caller.  One thread.
class Failback {
 public:
  /// What the owner sees.
  struct View {
    bool primary = false;  ///< one of the primaries works
    bool shadow = false;   ///< the shadow works
    bool wanted = false;   ///< traffic is to go back although the shadow works
    bool between = true;   ///< no chunk is half posted: it ends on the path where it began
    std::optional<Instant> whole_since =
        std::nullopt;  ///< all primaries work, the last one since then
  };
  enum class Step : uint8_t {
    stay,
    move,   ///< traffic goes where on_shadow() now says
    later,  ///< look again at look_at()
  };

  /// Times that the wait is doubled at most.
  static constexpr unsigned doublings_max = 6;

  explicit Failback(Duration after = {}) : after_(after) {}

  Step look(const View& view, Instant now) {
    if (on_shadow_ && view.primary && view.shadow) {
      if (!view.wanted || !view.whole_since) {
        return Step::stay;
      }
      const Instant due = *view.whole_since + after();
      if (now < due || !view.between) {
        look_at_ = std::max(due, now + between_interval);
        return Step::later;
      }
      move(now);
      return Step::move;
    }
    if (on_shadow_ ? !view.shadow && view.primary : !view.primary && view.shadow) {
      move(now);
      return Step::move;
    }
    return Step::stay;
  }

  /// What the shadow cannot carry goes over the primaries, one of which works.
  void give_way(Instant now) {
    if (on_shadow_) {
      move(now);
    }
  }

  bool on_shadow() const { return on_shadow_; }
  Instant look_at() const { return look_at_; }
  /// How long the primaries have to work before traffic goes back to them.
  Duration after() const { return after_ * (1 << doublings_); }

 private:
  /// Until a chunk that is being posted may be through.
  static constexpr Duration between_interval = std::chrono::milliseconds(1);

  void move(Instant now) {
    on_shadow_ = !on_shadow_;
    if (!on_shadow_) {
      went_back_ = true;
      went_back_at_ = now;
    } else if (went_back_ && now - went_back_at_ < after()) {
      doublings_ = std::min(doublings_ + 1, doublings_max);
    } else {
      doublings_ = 0;
    }
  }

  Duration after_;
  bool on_shadow_ = false;
  unsigned doublings_ = 0;
  bool went_back_ = false;  ///< at this time
  Instant went_back_at_{};
  Instant look_at_{};
};

}  // namespace nccl_ha::ha
