// How much of a flow goes over its second rail (SUP), from what is said of congestion on both.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "runtime/base/instant.h"

namespace nccl_ha::ha {

/// Proportional control on the difference of both rails' congestion (seeds/001, 5.2), thought in
/// multipliers: m is how many times the first rail's part the second one gets, and the share is
/// 1024 m / (1 + m).  The policy moves log2 m, so that both directions are alike.
///
/// What is measured is filtered: the middle one of the last three levels, so that one that is wrong
/// alone does not count where others came shortly before, then smoothed over time.  How fast the
/// share moves is bounded, and the bound shrinks when the share swings, which is what it does where
/// the network answers late, and grows again when it has not swung for a while.
///
/// Acts on nothing, and takes the time from its caller.  One thread.
class SharePolicy {
 public:
  static constexpr size_t rails = 2;
  static constexpr uint32_t whole = 1024;

  struct Options {
    double gain = 4;  ///< log2 m where one rail is full of congestion and the other one has none
    Duration smoothing = std::chrono::milliseconds(4);  ///< time constant
    double speed_max = 200;                             ///< log2 m in a second
    double speed_min = 4;                               ///< the same for one that turned often
    uint32_t floor = 32;                                ///< of the share, but for backpressure
    uint32_t ceiling = 992;
    uint8_t pressure_on = 240;                           ///< from this level on a rail gets nothing
    uint8_t pressure_off = 200;                          ///< down to this one it stays so
    Duration hold = std::chrono::milliseconds(5);        ///< and for so long behind it
    Duration hold_max = std::chrono::seconds(1);         ///< where it comes back again and again
    Duration fresh_for = std::chrono::milliseconds(50);  ///< what was said counts whole
    Duration stale_after = std::chrono::milliseconds(500);  ///< and from then on not at all
  };
  struct Decision {
    uint32_t share = whole / 2;
    bool backpressure = false;
    bool untold = true;  ///< nobody has said anything of the flow lately
    bool operator==(const Decision&) const = default;
  };

  /// What is refused in a set of options; nullptr: nothing.
  static const char* wrong_with(const Options& options);

  explicit SharePolicy(const Options& options) : options_(options) {}
  /// From a share that was right a moment ago: it holds until somebody says something, and for no
  /// longer than what is said holds without a repetition.
  void begin_with(uint32_t share, Instant now);
  void set_options(const Options& options) { options_ = options; }

  /// Somebody says how congested a rail of the flow is, 0 to 255.
  void on_level(size_t rail, uint8_t level, Instant now);
  /// What holds now.  To be asked after each word, and every few milliseconds.
  Decision decide(Instant now);

  /// For those who look: the filtered level, 0 to 255, as it counts at this moment.
  double level(size_t rail, Instant now) const;
  bool pressed(size_t rail) const { return rails_[rail].pressed; }

 private:
  struct Rail {
    bool heard = false;
    Instant heard_at{};
    double smooth = 0;
    std::array<uint8_t, 2> before{};  ///< the two levels before the last, newest first
    uint8_t known = 0;                ///< how many of them there are
    bool pressed = false;
    Instant low_since{};  ///< since when a pressed one is below pressure_off
    bool low = false;
    Duration hold{};
    Instant released_at{};
  };
  void update_pressure(Rail& rail, uint8_t level, Instant now);
  void release_pressure(Rail& rail, Instant now);
  /// What to take for the level, with those before it in mind.
  uint8_t likely(Rail& rail, uint8_t level, Duration since) const;
  void turn(int direction, Instant now);
  double weight(const Rail& rail, Instant now) const;
  void move(double target, Instant now);
  uint32_t share_of(double octaves) const;

  Options options_;
  std::array<Rail, rails> rails_;
  double octaves_ = 0;  ///< log2 m
  double speed_ = 0;    ///< 0: not yet decided
  int direction_ = 0;
  Instant turned_at_{};
  double turned_from_ = 0;
  Duration period_{};  ///< from the turn before the last to the last
  Instant moved_at_{};
  bool moved_ = false;
  std::optional<Instant> inherited_at_;
};

}  // namespace nccl_ha::ha
