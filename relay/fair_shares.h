// Whose turn it is on the way to one neighbour: deficit round robin (Shreedhar and Varghese, 1996).
//
// Each member that has something to send gets a quantum of bytes in its turn, and keeps what it
// could not use of it; so all get the same, whatever the size of their pieces and however many they
// have.  So many bytes may be under way at a time: beyond that order matters.  Whose bytes are not
// acknowledged for a while is stalled: they are on no cable, and count no more.  Pure; one thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "runtime/base/clock.h"

namespace nccl_ha::relay {

class FairShares {
 public:
  struct Limits {
    uint64_t quantum_bytes = 65536;
    uint64_t flight_bytes = 4 << 20;
    Duration stalled_after = std::chrono::milliseconds(20);
  };
  explicit FairShares(const Limits& limits) : limits_(limits) {}

  uint32_t enter() {
    if (free_.empty()) {
      members_.emplace_back();
      return static_cast<uint32_t>(members_.size() - 1);
    }
    const uint32_t member = free_.back();
    free_.pop_back();
    members_[member] = {};
    return member;
  }
  /// What it had under way is no more.
  void leave(uint32_t member) {
    Member& one = members_[member];
    counted_ -= one.stalled ? 0 : one.flight;
    std::erase(turns_, member);
    one = {};
    free_.push_back(member);
  }

  /// It has something that its hop takes.
  void want(uint32_t member) {
    Member& one = members_[member];
    if (!one.waits && !one.stalled) {
      one.waits = true;
      turns_.push_back(member);
    }
  }
  /// Of what a member was offered.
  struct Taken {
    uint64_t bytes = 0;
    bool more = false;  ///< there is more that its hop takes
  };
  /// Lets those who want send: `offer(member, bytes)`, which is not to call this, sends at most so
  /// many.
  template <class Offer>
  void serve(Instant now, const Offer& offer) {
    while (!turns_.empty() && (counted_ < limits_.flight_bytes || set_aside(now))) {
      const uint32_t member = turns_.front();
      turns_.pop_front();
      members_[member].waits = false;
      members_[member].deficit += limits_.quantum_bytes;
      const Taken taken = offer(member, members_[member].deficit);
      Member& one = members_[member];
      one.deficit = taken.more ? one.deficit - std::min(one.deficit, taken.bytes) : 0;
      if (taken.bytes > 0) {
        one.moved = one.flight == 0 ? now : one.moved;
        one.flight += taken.bytes;
        counted_ += taken.bytes;
      }
      if (taken.more) {
        want(member);
      }
    }
  }
  /// The hop has acknowledged so many of its bytes.
  void done(uint32_t member, uint64_t bytes, Instant now) {
    Member& one = members_[member];
    counted_ += one.stalled ? one.flight : 0;
    one.stalled = false;
    one.flight -= bytes;
    counted_ -= bytes;
    one.moved = now;
  }

  /// Some wait for bytes of others to arrive: serve() is to be called after so long at the latest.
  std::optional<Duration> blocked() const {
    return turns_.empty() ? std::nullopt : std::optional(limits_.stalled_after);
  }
  uint64_t in_flight() const { return counted_; }  ///< bytes of those that are not stalled
  size_t waiting() const { return turns_.size(); }
  uint64_t stalls() const { return stalls_; }  ///< so far

 private:
  struct Member {
    uint64_t deficit = 0;
    uint64_t flight = 0;
    Instant moved{};  ///< when an acknowledgement came last, or the oldest bytes left
    bool waits = false;
    bool stalled = false;
  };
  /// Finds those that are stalled; true: there is room then.
  bool set_aside(Instant now) {
    if (now < look_due_) {
      return false;
    }
    look_due_ = now + limits_.stalled_after / 4;
    for (uint32_t member = 0; member < members_.size(); ++member) {
      Member& one = members_[member];
      if (one.flight > 0 && !one.stalled && now - one.moved >= limits_.stalled_after) {
        one.stalled = true;
        ++stalls_;
        counted_ -= one.flight;
        if (one.waits) {  // its own turn comes with the next acknowledgement
          one.waits = false;
          std::erase(turns_, member);
        }
      }
    }
    return counted_ < limits_.flight_bytes && !turns_.empty();
  }

  Limits limits_;
  std::vector<Member> members_;
  std::vector<uint32_t> free_;
  std::deque<uint32_t> turns_;
  uint64_t counted_ = 0;
  uint64_t stalls_ = 0;
  Instant look_due_{};
};

}  // namespace nccl_ha::relay
