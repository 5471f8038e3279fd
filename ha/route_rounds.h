// Which route to a peer a connector dials next, and how long it waits for an answer there.
#pragma once

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "ha/backoff.h"
#include "runtime/base/clock.h"

namespace nccl_ha::ha {

/// A route over a cable that is cut need not fail: what is sent there is lost, and nobody says so.
/// A route that is silent comes again when the others have been tried, one that fails does not. One
/// thread.
class RouteRounds {
 public:
  /// So long a route may be silent: a kernel sends again what was lost after a second (RFC 6298,
  /// 2.1), and then less and less often, so that a network that is back would not be noticed.
  static constexpr Duration patience = std::chrono::seconds(2);
  static constexpr Duration no_route_limit = std::chrono::seconds(2);

  /// Behind those there are.
  void add(size_t route) { left_.push_back(route); }
  /// The one to be dialled; nothing: each has failed.
  std::optional<size_t> current() const {
    return left_.empty() ? std::nullopt : std::optional(left_.front());
  }
  /// There is another one to go on to.
  bool any_other() const { return left_.size() > 1; }
  /// A stream was made: there is a route, though it may be away for a while.
  void on_open() { led_there_ = true; }
  void on_error() {
    if (!left_.empty()) {
      left_.pop_front();
      end_round();
    }
  }
  void on_silence() {
    if (!left_.empty()) {
      left_.push_back(left_.front());
      left_.pop_front();
      ++silent_;
      end_round();
    }
  }

  /// The peer took the stream and ended it before it answered.  How long until the next dial, over
  /// another route if there is one.
  Duration on_early_end(Random& random) {
    ++early_ends_;
    if (any_other()) {
      on_silence();
    }
    return pause_.next(random);
  }
  /// An errno value with which a dial ended says nothing for good.  Behind a cut cable nobody is
  /// found either, or answers; and where a port is down for a moment no route leads anywhere, or an
  /// address is not there, but who hears that for longer has a network like that.
  bool may_pass(int error, Instant now) {
    if (error != ENETUNREACH && error != ENETDOWN && error != EADDRNOTAVAIL) {
      no_route_since_.reset();
      return error == EHOSTUNREACH || error == ETIMEDOUT;
    }
    no_route_since_ = no_route_since_.value_or(now);
    return led_there_ || now - *no_route_since_ <= no_route_limit;
  }
  /// Nobody is found there now, which a cut cable does as well.  How long until the next dial:
  /// another route is not kept waiting until all have been tried.
  Duration on_unreachable(Random& random) {
    if (any_other()) {
      on_silence();
      if (silent_ != 0) {
        return Duration(0);
      }
    }
    return pause_.next(random);
  }
  uint32_t early_ends() const { return early_ends_; }

 private:
  void end_round() {
    if (silent_ >= left_.size()) {
      silent_ = 0;
    }
  }

  std::deque<size_t> left_;  ///< the silent ones of this round at the end
  size_t silent_ = 0;        ///< so many
  bool led_there_ = false;
  std::optional<Instant> no_route_since_;
  Backoff pause_{std::chrono::milliseconds(20), std::chrono::seconds(1)};
  uint32_t early_ends_ = 0;
};

}  // namespace nccl_ha::ha
