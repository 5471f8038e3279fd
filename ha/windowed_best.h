// The best of the values seen lately.  Pure.
#pragma once

#include <array>
#include <cstddef>

#include "runtime/base/instant.h"

namespace nccl_ha::ha {

/// `Better(a, b)`: a is better than b.  Keeps one value for each fourth of the window, so that one
/// goes out of date after three to four fourths of it.  One thread.
template <class Value, class Better>
class WindowedBest {
 public:
  explicit WindowedBest(Duration window) : part_(window / parts) {}

  void add(Instant now, const Value& value) {
    if (!any_ || now >= end_) {
      advance(now);
    }
    if (!present_[at_] || Better{}(value, values_[at_])) {
      values_[at_] = value;
      present_[at_] = true;
    }
    if (!any_ || Better{}(value, best_)) {
      best_ = value;
    }
    any_ = true;
  }
  /// Nothing was added since the beginning, or reset().
  bool empty() const { return !any_; }
  /// Of what was added within the window before the latest add(); it is not empty().
  const Value& best() const { return best_; }
  void reset() {
    present_.fill(false);
    any_ = false;
  }

 private:
  static constexpr size_t parts = 4;

  /// Begins the next part, and forgets those that are out of date.
  void advance(Instant now) {
    if (!any_ || now >= end_ + (parts - 1) * part_) {
      present_.fill(false);
      end_ = now + part_;
    } else {
      while (now >= end_) {
        at_ = (at_ + 1) % parts;
        present_[at_] = false;
        end_ += part_;
      }
    }
    any_ = false;
    for (size_t i = 0; i < parts; ++i) {
      if (present_[i] && (!any_ || Better{}(values_[i], best_))) {
        best_ = values_[i];
        any_ = true;
      }
    }
  }

  Duration part_;
  std::array<Value, parts> values_{};
  std::array<bool, parts> present_{};
  size_t at_ = 0;
  Instant end_{};  ///< of the part at hand
  Value best_{};
  bool any_ = false;
};

}  // namespace nccl_ha::ha
