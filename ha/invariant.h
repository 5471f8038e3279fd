// What a machine knows must hold, and the first thing that did not.
//
// A machine is pure: it neither logs nor aborts.  It keeps what it found, gives an answer that does
// no harm, and whoever drives it looks after each step and ends the connection
// (ConnectionState::sound).  On in every build.
#pragma once

#include "runtime/base/check.h"

namespace nccl_ha::ha {

/// One thread.
class Invariants {
 public:
  /// False: something that this program keeps true is not; the first such `what` is kept.  `what`:
  /// a literal that says what should be so.
  bool hold(bool condition, const char* what) const {
    if (!condition) [[unlikely]] {
      note(what);
    }
    return condition;
  }
  /// The same for what costs more than a few comparisons: only where deep_checks() are on.
  template <class Condition>
  void hold_deeply(Condition&& condition, const char* what) const {
    if (deep_checks()) [[unlikely]] {
      static_cast<void>(hold(condition(), what));
    }
  }
  /// Null: nothing.
  const char* broken() const { return broken_; }

 private:
  [[gnu::noinline, gnu::cold]] void note(const char* what) const {
    broken_ = broken_ == nullptr ? what : broken_;
  }
  mutable const char* broken_ = nullptr;
};

}  // namespace nccl_ha::ha
