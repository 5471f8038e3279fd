// When traffic leaves lanes that work but have become slow, and whether it stays away.  Pure.
//
// What a standby would deliver shows only when it carries data, so that each move is a trial, and
// costs a fence.  A trial pays where a rank delivers many times less than it did before, while
// enough waits on it, and the standby's device promises more.  It ends well when the other rank
// delivers at least `gain` times as much; else traffic goes back.  After each trial the next one
// waits, twice as long each time, so that ranks which share what is slow cost little and traffic
// never moves back and forth.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "ha/invariant.h"
#include "ha/load_meter.h"
#include "ha/serving_set.h"
#include "runtime/base/instant.h"

namespace nccl_ha::ha {

/// Ranks are those of ServingSet.  Takes the time from its caller.  One thread.
class Detour {
 public:
  struct Options {
    double factor = 0;  ///< so many times less than before is slow; 0: nothing is
    Duration time = std::chrono::seconds(1);   ///< of load, without a break
    Duration after = std::chrono::seconds(5);  ///< from a trial to the next one, at least
    double spread = 0;  ///< 0 to 1: by how much this one is later than others in all of it
  };
  struct View {
    uint8_t rank = 0;              ///< carries the data
    std::optional<uint8_t> other;  ///< the best rank besides of which some lane works
    uint64_t promised = 0;         ///< bytes per second that its device has; 0: not known
  };
  enum class Step : uint8_t {
    stay,
    leave,  ///< the lanes of the rank are to be given up for those of the other one
    back,   ///< the same, as they are no better than what was left for them
    kept,   ///< the trial is over: they are better
  };
  /// In bytes per second.
  struct Rates {
    double here = 0;   ///< what the rank delivers that a step is about
    double other = 0;  ///< what it delivered before, or the rank that was left for it
  };

  /// With less under way latency alone decides.
  static constexpr double open_least = 64 * 1024;
  static constexpr int64_t windows_of_time = 10;  ///< of load
  /// One bad measurement says nothing, nor does the first one of a new path.
  static constexpr unsigned windows_least = 3;
  /// So many times as much is worth a move, and no less than this part of it a return.
  static constexpr double gain = 2;
  static constexpr double loss = 0.5;
  /// A return is tried where the better rank once delivered this part of what the one at hand does.
  static constexpr double return_part = 0.75;
  /// Times that the wait is doubled at most; it is forgotten after so many times as long.
  static constexpr unsigned doublings_max = 6;
  static constexpr int forgotten_after = 4;

  Detour() = default;
  explicit Detour(const Options& options) : options_(options) {}

  /// To be asked every now and then, by what its owner sees.
  Step look(const View& view, LoadMeter& meter, const Moment& now);
  /// Traffic does not go back to a better rank now, although that works.
  bool detains(Instant now) const;
  /// The rank has other ends from now on: nothing is known of it.
  void forget(uint8_t rank) { known_[rank] = {}; }
  /// Of the last step that was none of `stay`.
  const Rates& rates() const { return rates_; }
  /// No trial begins before it is over.
  Duration wait() const;
  /// See ha/invariant.h.
  const char* broken() const { return invariants_.broken(); }

 private:
  /// The most that a rank delivered, and what was under way then.
  struct Known {
    double best = 0;
    double open = 0;
    double last = 0;
    double last_open = 0;
  };
  struct Streak {
    unsigned windows = 0;
    Duration loaded{};
    double bytes = 0;
    double area = 0;  ///< bytes under way times nanoseconds
  };
  struct Trial {
    uint8_t from = 0;
    double rate = 0;  ///< that it must reach, with `open` under way
    double open = 0;
    double left = 0;  ///< what the rank that was left delivered
    unsigned windows = 0;
  };

  void on_moved(uint8_t rank, Instant now);
  void begin_trial(Instant now);
  void note(const LoadMeter::Window& window);
  void add(const LoadMeter::Window& window);
  Step judge(const View& view, const LoadMeter::Window& window);
  bool is_slow(double rate, double open, double factor) const;
  Duration late(Duration time) const {
    return time + std::chrono::duration_cast<Duration>(time * options_.spread);
  }

  Options options_;
  std::array<Known, ServingSet::lanes_max> known_{};
  uint8_t rank_ = 0;
  Streak streak_;
  std::optional<Trial> asked_;  ///< begins when traffic has moved
  bool goes_back_ = false;      ///< the trial at hand was in vain, and its owner was told
  std::optional<Trial> trial_;
  std::optional<uint8_t> slow_rank_;  ///< a better one, which was left
  std::optional<Instant> tried_at_;
  unsigned doublings_ = 0;
  Rates rates_;
  Invariants invariants_;
};

}  // namespace nccl_ha::ha
