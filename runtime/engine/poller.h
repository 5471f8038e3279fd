// Something a worker polls in every turn: a completion queue, a datagram port.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "runtime/base/clock.h"

namespace nccl_ha {

class Poller {
 public:
  virtual ~Poller() = default;
  /// For who looks at the counters: what it polls, as in "verbs mlx5_0:1".
  virtual std::string name() const = 0;
  /// One bounded pass; the amount of work done, 0 when idle.  `time`: the turn's.  Reading a clock
  /// costs more than looking into an empty queue, so who does not need the time does not ask.
  virtual unsigned poll(Clock& time) = 0;
  /// Sends what was posted to it, and need not look for anything else.
  virtual unsigned push(Clock& time) { return poll(time); }
  /// How long it may be left alone while the callers that drive it do something else: a peer that
  /// waits for software to answer can do so for a moment only.
  virtual Duration max_poll_gap() const { return std::chrono::milliseconds(2); }
  /// When it wants to be polled at the latest, if it sleeps.
  virtual std::optional<Instant> next_deadline() { return std::nullopt; }
  /// File descriptors that become readable when there is work; returns how many were written.
  virtual size_t wait_fds(std::span<int> out) const {
    (void)out;
    return 0;
  }
  /// Last call before the thread sleeps; false: there is work, do not sleep.
  virtual bool prepare_sleep() { return true; }
  /// For the worker, after prepare_sleep(): wait_fds() says something else than before.
  bool take_waits_changed() { return std::exchange(waits_changed_, false); }

  /// To be polled in turns that know the time only.
  bool backed_off() const { return backed_off_; }
  /// It has got work to do: to be polled with each turn again.
  void wake() { backed_off_ = false; }
  /// There may be something for push() to do.  `leisure`: what was posted is answered late.
  bool wants_push(bool leisure) const {
    return pending_work_ && !backed_off_ && !(leisure && gathers_);
  }

 protected:
  /// Whatever gives it work to do ends it (wake).
  void back_off(bool on) { backed_off_ = on; }

  /// There is something to do besides looking; whoever always means to be asked leaves it alone.
  bool pending_work_ = true;
  /// Set with each change of what wait_fds() says.
  bool waits_changed_ = false;
  /// What is posted with leisure waits for the next turn of any kind, and leaves with what is
  /// posted until then.
  bool gathers_ = false;

 private:
  bool backed_off_ = false;
};

}  // namespace nccl_ha
