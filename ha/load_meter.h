// What lanes deliver while data waits on them.  Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "runtime/base/instant.h"

namespace nccl_ha::ha {

/// Only time in which something was posted and not acknowledged counts: a peer that announces no
/// receives, and a caller who sends nothing, make no lane slow.  Times may be microseconds off, so
/// that one may be before the last one, which counts then.  One thread.
class LoadMeter {
 public:
  /// Without anything posted for so long, what comes next has nothing to do with what was before.
  static constexpr Duration idle_most = std::chrono::seconds(1);

  struct Window {
    double rate = 0;          ///< bytes per second of that time
    double open = 0;          ///< bytes posted and not acknowledged, on average over it
    Duration loaded{};        ///< that time
    bool after_break = true;  ///< nothing was posted for long before it
  };

  /// Other lanes serve; `open`: what they have under way.
  void begin(uint64_t open, Instant now) {
    *this = {};
    open_ = open;
    at_ = now;
  }
  void on_posted(uint64_t bytes, Instant now) {
    if (open_ == 0 && now - at_ > idle_most) [[unlikely]] {
      restart();
      after_break_ = true;
    }
    pass(now);
    open_ += bytes;
  }
  void on_delivered(uint64_t bytes, Instant now) {
    pass(now);
    open_ -= std::min(open_, bytes);
    delivered_ += bytes;
  }
  /// They will not be acknowledged.
  void on_lost(uint64_t bytes, Instant now) {
    pass(now);
    open_ -= std::min(open_, bytes);
  }
  /// The time since the last window, when it has `least` of load and something was delivered, or
  /// `most`.  Where this process did not run meanwhile it tells nothing.
  std::optional<Window> take(Duration least, Duration most, const Moment& now) {
    pass(now.now);
    if (now.lost != lost_) {
      lost_ = now.lost;
      restart();
      return std::nullopt;
    }
    if (loaded_ < (delivered_ != 0 ? least : most)) {
      return std::nullopt;
    }
    const auto ns = static_cast<double>(loaded_.count());
    const Window window{static_cast<double>(delivered_) * 1e9 / ns, area_ / ns, loaded_,
                        after_break_};
    restart();
    after_break_ = false;
    return window;
  }

 private:
  void pass(Instant now) {
    if (now <= at_) {
      return;
    }
    if (open_ != 0) {
      loaded_ += now - at_;
      area_ += static_cast<double>((now - at_).count()) * static_cast<double>(open_);
    }
    at_ = now;
  }
  void restart() {
    loaded_ = {};
    area_ = 0;
    delivered_ = 0;
  }

  uint64_t open_ = 0;
  Instant at_{};
  Duration loaded_{};
  double area_ = 0;  ///< bytes times nanoseconds
  uint64_t delivered_ = 0;
  Duration lost_{};
  bool after_break_ = true;
};

}  // namespace nccl_ha::ha
