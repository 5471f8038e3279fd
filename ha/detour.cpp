#include "ha/detour.h"

#include <algorithm>
#include <utility>

namespace nccl_ha::ha {
namespace {

/// What a rank should deliver with so much under way, where it delivered `rate` with `at`: less
/// waits for less, and never makes it faster.
double scaled(double rate, double at, double open) {
  return at > 0 ? rate * std::min(1.0, open / at) : rate;
}

}  // namespace

Duration Detour::wait() const {
  // Without a time of its own the wait is still no shorter than it takes to find out.
  return late(std::max(options_.after, options_.time)) * (1 << doublings_);
}

bool Detour::detains(Instant now) const {
  if (asked_ || goes_back_ || (trial_ && trial_->from < rank_)) {
    return true;
  }
  if (!slow_rank_) {
    return false;
  }
  const bool pays = known_[*slow_rank_].best >= return_part * known_[rank_].best;
  return !pays || (tried_at_ && now - *tried_at_ < wait());
}

Detour::Step Detour::look(const View& view, LoadMeter& meter, const Moment& now) {
  if (options_.factor <= 0 ||
      !invariants_.hold(view.rank < known_.size() && view.other != view.rank, "ranks are few")) {
    return Step::stay;
  }
  if (view.rank != rank_) {
    on_moved(view.rank, now.now);
  }
  asked_.reset();  // its owner has moved what it could
  goes_back_ = false;
  const auto window = meter.take(options_.time / windows_of_time, options_.time, now);
  if (!window) {
    return Step::stay;
  }
  note(*window);
  if (trial_) {
    return judge(view, *window);
  }
  if (window->rate == 0) {
    return Step::stay;  // silence is another cause's (PathHealth)
  }
  // Few large messages make windows uneven: one ends it only where it is far from slow.
  if (!is_slow(window->rate, window->open, options_.factor / 2) || window->after_break) {
    streak_ = {};
    return Step::stay;
  }
  add(*window);
  const auto loaded = static_cast<double>(streak_.loaded.count());
  const double rate = streak_.bytes * 1e9 / loaded;
  const double open = streak_.area / loaded;
  const bool promised =
      view.promised == 0 || rate * options_.factor < static_cast<double>(view.promised);
  if (streak_.windows < windows_least || streak_.loaded < late(options_.time) ||
      !is_slow(rate, open, options_.factor) || !view.other || !promised ||
      (tried_at_ && now.now - *tried_at_ < wait())) {
    return Step::stay;
  }
  begin_trial(now.now);
  rates_ = {rate, known_[rank_].best};
  asked_ = Trial{rank_, gain * rate, open, rate};
  return Step::leave;
}

void Detour::add(const LoadMeter::Window& window) {
  if (streak_.loaded > 2 * late(options_.time)) {  // what was long ago counts less
    streak_.loaded /= 2;
    streak_.bytes /= 2;
    streak_.area /= 2;
  }
  const auto ns = static_cast<double>(window.loaded.count());
  ++streak_.windows;
  streak_.loaded += window.loaded;
  streak_.bytes += window.rate * ns / 1e9;
  streak_.area += window.open * ns;
}

/// Whether the rank that is tried is better than the one that was left.
Detour::Step Detour::judge(const View& view, const LoadMeter::Window& window) {
  Trial& trial = *trial_;
  rates_ = {window.rate, trial.left};
  if (window.rate != 0 && window.open < open_least) {
    return Step::stay;
  }
  if (window.rate != 0 && window.rate >= scaled(trial.rate, trial.open, window.open)) {
    slow_rank_ = trial.from < rank_ ? std::optional(trial.from) : std::nullopt;
    trial_.reset();
    streak_ = {};
    return Step::kept;
  }
  ++trial.windows;
  const bool over = window.rate == 0 || trial.windows >= windows_least;
  // What was left is being made anew; meanwhile this one may still become better.
  if (!over || !view.other || *view.other > std::max(trial.from, rank_)) {
    return Step::stay;
  }
  goes_back_ = true;
  return Step::back;
}

void Detour::on_moved(uint8_t rank, Instant now) {
  const uint8_t before = std::exchange(rank_, rank);
  streak_ = {};
  trial_.reset();
  if (asked_) {
    trial_ = asked_;
  } else if (goes_back_) {
    slow_rank_ = before < rank ? std::optional(before) : std::nullopt;
  } else if (slow_rank_ && rank < before) {
    // It was let go back: whether that is worth it shows now.
    const Known& left = known_[before];
    begin_trial(now);
    trial_ = Trial{before, loss * left.last, left.last_open, left.last};
    slow_rank_.reset();
  } else if (rank < before) {
    slow_rank_.reset();
  }
}

void Detour::begin_trial(Instant now) {
  if (tried_at_ && now - *tried_at_ < forgotten_after * wait()) {
    doublings_ = std::min(doublings_ + 1, doublings_max);
  } else {
    doublings_ = 0;
  }
  tried_at_ = now;
  invariants_.hold(doublings_ <= doublings_max, "the wait for the next trial is bounded");
}

void Detour::note(const LoadMeter::Window& window) {
  if (window.open < open_least || window.rate == 0) {
    return;
  }
  Known& known = known_[rank_];
  known.last = window.rate;
  known.last_open = window.open;
  if (window.rate > known.best) {
    known.best = window.rate;
    known.open = window.open;
  } else if (window.rate > 0.9 * known.best) {
    known.open = std::min(known.open, window.open);
  }
}

bool Detour::is_slow(double rate, double open, double factor) const {
  const Known& known = known_[rank_];
  return open >= open_least && rate * factor < scaled(known.best, known.open, open);
}

}  // namespace nccl_ha::ha
