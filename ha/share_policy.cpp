#include "ha/share_policy.h"

#include <algorithm>
#include <cmath>

namespace nccl_ha::ha {
namespace {

constexpr double level_max = 255;
/// Levels so far apart in time, in time constants, say nothing of each other.
constexpr int apart_max = 4;
/// Turning round after so much, in log2 m, is swinging, and half the speed is enough; after so
/// little it is none, and there is room for more.
constexpr double swing_much = 0.2;
constexpr double swing_little = 0.05;
constexpr double growth_by_turn = 1.1;
/// Who goes one way for so many times as long as before it last turned round follows something new,
constexpr int steady_turns = 4;
constexpr Duration steady_least = std::chrono::milliseconds(200);
/// and may go twice as fast after each such time.
constexpr double doubling_s = 0.1;
/// Backpressure that begins so soon after its end is the same one.
constexpr Duration again_within = std::chrono::milliseconds(500);
/// Less than that is noise and no movement: about one part of 1024 at an even split.
constexpr double still = 0.006;

double seconds_of(Duration time) { return static_cast<double>(time.count()) * 1e-9; }

uint8_t middle_of(uint8_t a, uint8_t b, uint8_t c) {
  return std::max(std::min(a, b), std::min(std::max(a, b), c));
}

}  // namespace

const char* SharePolicy::wrong_with(const Options& options) {
  if (!(options.gain >= 0 && options.gain <= 10)) {
    return "gain: 0 to 10";
  }
  if (!(options.speed_min > 0 && options.speed_min <= options.speed_max)) {
    return "speed_min: more than 0, and not more than speed_max";
  }
  if (options.floor > options.ceiling || options.ceiling > whole) {
    return "floor and ceiling: 0 to 1024, the floor first";
  }
  if (options.pressure_off >= options.pressure_on) {
    return "pressure_off: less than pressure_on";
  }
  if (options.smoothing <= Duration(0) || options.hold <= Duration(0) ||
      options.hold_max < options.hold) {
    return "smoothing, hold, hold_max: more than 0, and hold_max not less than hold";
  }
  if (options.fresh_for <= Duration(0) || options.stale_after <= options.fresh_for) {
    return "fresh_for, stale_after: more than 0, and stale_after longer than fresh_for";
  }
  return nullptr;
}

void SharePolicy::begin_with(uint32_t share, Instant now) {
  inherited_at_ = now;
  const double part = std::clamp(share, 1U, whole - 1) / static_cast<double>(whole);
  octaves_ = std::clamp(std::log2(part / (1 - part)), -options_.gain, options_.gain);
}

uint8_t SharePolicy::likely(Rail& rail, uint8_t level, Duration since) const {
  const bool apart = since > options_.smoothing * apart_max;
  if (!rail.heard || apart) {
    rail.known = 0;
  }
  const uint8_t taken = rail.known < 2 ? level : middle_of(level, rail.before[0], rail.before[1]);
  rail.before = {level, rail.before[0]};
  rail.known = static_cast<uint8_t>(std::min(2, rail.known + 1));
  return taken;
}

void SharePolicy::on_level(size_t rail, uint8_t level, Instant now) {
  Rail& at = rails_[rail];
  const Duration since = std::max(now - at.heard_at, Duration(0));
  const uint8_t taken = likely(at, level, since);
  const double alpha =
      at.heard ? 1 - std::exp(-seconds_of(since) / seconds_of(options_.smoothing)) : 1;
  at.smooth += alpha * (taken - at.smooth);
  at.heard = true;
  at.heard_at = now;
  update_pressure(at, taken, now);
}

/// At once when it begins; where it comes back soon after its end, each end takes twice as long.
void SharePolicy::update_pressure(Rail& rail, uint8_t level, Instant now) {
  if (level >= options_.pressure_on) {
    if (!rail.pressed) {
      const bool again =
          rail.hold > Duration(0) && now - rail.released_at < std::max(4 * rail.hold, again_within);
      rail.hold = again ? std::min(2 * rail.hold, options_.hold_max) : options_.hold;
      rail.pressed = true;
    }
    rail.low = false;
    return;
  }
  if (!rail.pressed) {
    return;
  }
  if (level > options_.pressure_off) {
    rail.low = false;
  } else if (!rail.low) {
    rail.low = true;
    rail.low_since = now;
  }
}

void SharePolicy::release_pressure(Rail& rail, Instant now) {
  const bool low_for_long = rail.low && now - rail.low_since >= rail.hold;
  const bool forgotten = now - rail.heard_at >= options_.stale_after;
  if (rail.pressed && (low_for_long || forgotten)) {
    rail.pressed = false;
    rail.released_at = now;
  }
}

double SharePolicy::weight(const Rail& rail, Instant now) const {
  if (!rail.heard) {
    return 0;
  }
  const Duration late = now - rail.heard_at - options_.fresh_for;
  if (late <= Duration(0)) {
    return 1;
  }
  return std::max(0.0,
                  1 - seconds_of(late) / seconds_of(options_.stale_after - options_.fresh_for));
}

double SharePolicy::level(size_t rail, Instant now) const {
  return rails_[rail].smooth * weight(rails_[rail], now);
}

void SharePolicy::turn(int direction, Instant now) {
  if (direction_ != 0) {
    const double swing = std::abs(octaves_ - turned_from_);
    if (swing > swing_much) {
      speed_ = std::max(speed_ / 2, options_.speed_min);
    } else if (swing < swing_little) {
      speed_ = std::min(speed_ * growth_by_turn, options_.speed_max);
    }
    period_ = now - turned_at_;
  }
  direction_ = direction;
  turned_at_ = now;
  turned_from_ = octaves_;
}

void SharePolicy::move(double target, Instant now) {
  const double passed = moved_ ? std::min(seconds_of(now - moved_at_), 0.05) : 0.005;
  moved_ = true;
  moved_at_ = now;
  if (speed_ <= 0) {
    speed_ = options_.speed_max;
  }
  const double way = target - octaves_;
  const int direction = std::abs(way) < still ? 0 : way > 0 ? 1 : -1;
  if (direction != 0 && direction != direction_) {
    turn(direction, now);
  } else if (now - turned_at_ > std::max(steady_turns * period_, steady_least)) {
    speed_ = std::min(speed_ * std::exp2(passed / doubling_s), options_.speed_max);
  }
  const double most = speed_ * passed;
  octaves_ += std::clamp(way, -most, most);
}

uint32_t SharePolicy::share_of(double octaves) const {
  const double multiplier = std::exp2(octaves);
  const auto share = static_cast<uint32_t>(std::lround(whole * multiplier / (1 + multiplier)));
  return std::clamp(share, options_.floor, options_.ceiling);
}

SharePolicy::Decision SharePolicy::decide(Instant now) {
  for (Rail& rail : rails_) {
    release_pressure(rail, now);
  }
  const bool heard = rails_[0].heard || rails_[1].heard;
  const bool inherited = !heard && inherited_at_ && now - *inherited_at_ < options_.stale_after;
  if (!inherited) {
    const double difference = (level(0, now) - level(1, now)) / level_max;
    move(std::clamp(options_.gain * difference, -options_.gain, options_.gain), now);
  }
  Decision decision;
  decision.untold = !inherited && weight(rails_[0], now) <= 0 && weight(rails_[1], now) <= 0;
  decision.backpressure = rails_[0].pressed || rails_[1].pressed;
  if (rails_[0].pressed != rails_[1].pressed) {
    decision.share = rails_[1].pressed ? 0 : whole;
  } else {
    decision.share = share_of(octaves_);
  }
  return decision;
}

}  // namespace nccl_ha::ha
