// When a lane of the connecting side gets its next path, and between which ends.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "actors/connection/sender.h"
#include "actors/connection/side.h"
#include "ha/backoff.h"
#include "ha/candidates.h"
#include "runtime/engine/timer_wheel.h"

namespace nccl_ha {

/// Waits after a failure (ha::Backoff), but not where a link is back; chooses the ends of a shadow
/// (ha::ShadowCandidates), makes the path and offers it to the peer.  One thread.
class PathRenewal {
 public:
  using End = ha::ShadowCandidates::End;
  class Owner {
   public:
    /// The lane's path, or the attempt to make one, is given up.
    virtual void on_lane_failed(size_t lane, const Error& why) = 0;
    /// The lane's next path is to be offered: its epoch; nothing when the connection has failed.
    virtual std::optional<uint32_t> on_path_made(size_t lane) = 0;
    /// It was offered, and both sides find out whether packets get through.
    virtual bool is_opening(size_t lane) const = 0;
    /// It carries traffic.
    virtual bool serves(size_t lane) const = 0;

   protected:
    ~Owner() = default;
  };

  PathRenewal(Owner& owner, const ConnectionParts& parts, Sender& sender);
  ~PathRenewal() { stop(); }
  PathRenewal(const PathRenewal&) = delete;
  PathRenewal& operator=(const PathRenewal&) = delete;
  /// Where shadows may begin and end, best first; where the device's other rails end.
  void set_candidates(std::vector<ha::RailPair> ranked,
                      const std::array<uint8_t, ha::device_rails_max - 1>& rail_ends = {}) {
    candidates_ = ha::ShadowCandidates(std::move(ranked), shadows_max);
    rail_ends_ = rail_ends;
  }
  /// What the peer offered: where paths may end, and the first ones do.
  void set_ends(std::span<const ha::Rail> rails) {
    own_ends_.clear();
    end_nics_.clear();
    first_over_ = ha::first_is_over(paths_.rails()) || ha::first_is_over(rails);
    const auto first = std::ranges::find_if(rails, &ha::Rail::primary);
    first_end_ = static_cast<size_t>(first - rails.begin());
    for (size_t place = 0; place < rails.size(); ++place) {
      end_nics_.push_back(ha::nic_of(rails, place));
      own_ends_.push_back(rails[place].kind == static_cast<uint8_t>(state_.attachment.kind));
    }
  }
  /// Places of one host have changed: what waits is tried at once, over what there is now, and what
  /// is under way between other addresses begins anew.
  void renew(std::vector<ha::RailPair> ranked, std::span<const ha::Rail> rails, End end,
             const std::vector<size_t>& changed);
  /// The first paths have come up or failed.
  void begin();
  /// Both sides are ready: what the handshake did not make can be made.
  void make_others();
  void stop();

  void on_lane_up(size_t lane);
  /// Its path, or the attempt to make one, has failed and is about to be taken down; `carried`:
  /// something got through.
  void on_lane_down(size_t lane, bool carried);
  /// True: the peer has not heard of the new path, which is given up.
  bool fail_unoffered(size_t lane, const Error& why);
  void reopen_soon(size_t lane);
  /// Where no path is left, what waits for long is tried earlier, and shadows sweep anew.
  void hasten();
  /// A new path of the lane has an address.
  void on_lane_address(size_t lane);
  /// What waits for a link that is back is tried at once: one of this host's, or of the peer's.
  void on_domain_up(const fabric::FailureDomain& domain);
  void on_link_back(std::span<const std::byte> payload);

  // A device does not take the connection's memory.
  void on_memory_rejected(size_t lane, const Error& why);
  void on_rail_rejected(uint8_t rail);
  void reject_end(size_t lane, End end, const std::string& why);

 private:
  /// How often a shadow that could be a better one gives way to a look for that: soon, and less and
  /// less often; sooner where an address or a link is new, since ARP and the other end may be a
  /// little later.
  static constexpr Duration better_interval = std::chrono::minutes(5);
  static constexpr Duration better_first = std::chrono::seconds(15);
  static constexpr Duration better_soon = std::chrono::seconds(1);

  /// The next path of a lane.
  struct Next {
    ha::Backoff backoff{std::chrono::milliseconds(20), std::chrono::seconds(1)};
    std::optional<Instant> reopen_at;
    ha::RailPair pair;                  ///< the ends of a lane elsewhere
    bool unoffered = false;             ///< it waits for its address: the peer has not heard of it
    bool link_back = false;             ///< since then no attempt has failed
    bool again = false;                 ///< a shadow tries its pair once more
    bool looks = false;                 ///< gave way, and what it tries is a short one
    Instant news_at = Instant::min();   ///< of links, that count again
    Duration news_wait = better_first;  ///< until then after the next
    bool idle = false;                  ///< for a shadow there was no pair of ends
    bool turned = false;                ///< the next pair of a shadow is chosen already
    bool passed = false;                ///< a shadow's last attempt, over whose pair it goes on
    Duration limit{};                   ///< of the attempt
    std::optional<Instant> give_up_at;  ///< where that is too long
  };

  void turn(size_t lane, End end, const std::vector<size_t>& back);
  void give_up_lost();
  void try_at_once(size_t lane);
  bool look(size_t lane, const std::string& why);
  bool is_needed(size_t lane) const;
  void heed(size_t lane, End end, const std::vector<size_t>& back);
  bool take_news(size_t lane);
  void pass_over(size_t lane);
  void arm_reopen();
  void on_reopen_timer();
  void reopen(size_t lane);
  void give_up_new_path(size_t lane, const Error& why);
  void offer(size_t lane);
  bool choose_place(size_t lane);
  bool ends_at(size_t lane, End end, const std::vector<size_t>& places) const;
  bool shares_a_nic(const ha::RailPair& pair) const;
  bool could_be_better(size_t lane,
                       const std::function<bool(const ha::RailPair&)>& is_such = {}) const;
  Duration limit_of(size_t lane) const;
  Duration wait_of(size_t lane);
  void sweep_anew();
  void give_up_long_attempts();
  bool choose_rail_place(size_t lane);
  void look_in(Duration wait);
  void look_for_better();

  Owner& owner_;
  ConnectionState& state_;
  PathSet& paths_;
  ControlLink& control_;
  Failover& failover_;
  Sender& sender_;
  std::vector<Next> lanes_;
  ha::ShadowCandidates candidates_;
  std::array<uint8_t, ha::device_rails_max - 1> rail_ends_{};
  size_t first_end_ = SIZE_MAX;
  std::vector<size_t> end_nics_;  ///< of the peer's places (ha::nic_of)
  std::vector<bool> own_ends_;    ///< of the own fabric
  bool first_over_ = false;       ///< the first paths stay down for good (ha::first_is_over)
  bool urgent_ = false;           ///< no path is left
  Duration better_wait_ =
      better_first;  ///< until a shadow that shares a NIC gives way to a look for another
  Instant look_at_ = Instant::max();  ///< when the next one is
  Timer better_timer_;
  Timer reopen_timer_;
};

}  // namespace nccl_ha
