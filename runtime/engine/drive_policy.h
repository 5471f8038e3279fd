// Whether a progress thread drives its worker or leaves that to the callers, who poll anyway. Pure.
//
// A thread with a processor of its own takes work off the callers.  One that shares its processor,
// with a caller that spins or with anything else, keeps them waiting for a time slice each time, so
// it stands by for a while, longer each time it finds the same again.
#pragma once

#include <algorithm>
#include <chrono>

#include "runtime/base/instant.h"

namespace nccl_ha {

/// The thread's own.  Takes time and processor time from its caller.
class DrivePolicy {
 public:
  /// From one judgement to the next, of time in which it drove.
  static constexpr Duration window = std::chrono::milliseconds(1);
  static constexpr Duration first_pause = std::chrono::milliseconds(50);
  static constexpr Duration longest_pause = std::chrono::seconds(5);
  static constexpr int growth = 4;  ///< of pauses, from one to the next
  /// Driven well for so long, the next trouble is the first one again.
  static constexpr Duration forgiven_after = std::chrono::milliseconds(100);

  /// The thread begins to drive, or goes on after it slept.
  void begin(Instant now, Duration cpu) {
    began_ = now;
    cpu_ = cpu;
  }
  /// It is time to ask the kernel for the thread's processor time, and to call judge() with it.
  bool judgement_due(Instant now) const { return now - began_ >= window; }
  /// `cpu`: the thread's so far.  True: the processor is its own, more or less.
  bool judge(Instant now, Duration cpu) {
    const Duration wall = now - began_;
    const bool own = (cpu - cpu_) * whole >= wall * least_share;
    begin(now, cpu);
    if (own && (good_ += wall) >= forgiven_after) {
      pause_ = first_pause;
    }
    return own;
  }
  /// It shares its processor: it leaves the worker to the callers, or they took it over because it
  /// did not run.
  void stand_by(Instant now) {
    good_ = Duration(0);
    until_ = now + pause_;
    pause_ = std::min(growth * pause_, longest_pause);
  }
  /// The callers took over while it slept, which says nothing new of its processor: if that is not
  /// known to be shared, it may drive again as soon as it looks.
  void stand_by_after_sleep(Instant now) {
    until_ = pause_ == Duration(first_pause) ? now : now + pause_;
  }
  /// It may drive again although callers do.
  bool may_return(Instant now) const { return now >= until_; }

 private:
  // A share of the processor below which it is shared.
  static constexpr int least_share = 3;
  static constexpr int whole = 4;

  Instant began_{};
  Duration cpu_{};
  Duration good_{};  ///< driven since it stood by last
  Instant until_{};
  Duration pause_ = first_pause;
};

}  // namespace nccl_ha
