// The hotel: where transmitted segments wait for their acknowledgement (usnic's opal_hotel).
//
// Every segment posted to the wire checks in and is evicted when its time is up; an acknowledgement
// or a retransmission checks it out.  Checking in and out is on the path of every segment, so a
// room is an intrusive list node and a floor is one slot of coarse time; unlike the timer wheel
// there is no cascade: a timeout longer than the hotel's span waits on the last floor and is
// checked in again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "runtime/base/clock.h"

namespace nccl_ha::fabric {

class Hotel;

/// Owned by the guest (a segment).  Must be checked out before it is destroyed.
struct Room {
  Room* previous = nullptr;  // null: not checked in
  Room* next = nullptr;
  Instant deadline{};
  bool occupied() const { return previous != nullptr; }
};

class Hotel {
 public:
  static constexpr int64_t floor_ns = 1 << 17;  // 131 us
  static constexpr size_t floors = 1024;        // 134 ms, then checked in again

  explicit Hotel(Instant start) : current_(floor_of(start)) {
    for (Room& head : heads_) {
      head.previous = head.next = &head;
    }
  }
  Hotel(const Hotel&) = delete;
  Hotel& operator=(const Hotel&) = delete;

  void check_in(Room& room, Instant deadline) {
    check_out(room);
    room.deadline = deadline;
    link(room);
    ++guests_;
  }
  void check_out(Room& room) {
    if (!room.occupied()) {
      return;
    }
    unlink(room);
    --guests_;
  }

  /// Calls evicted(Room&) for guests whose time is up; at most one floor late, never early.  The
  /// callback may check rooms in and out, and throw: then the rest leaves when its floor comes
  /// round again.
  template <class Callback>
  size_t evict(Instant now, Callback&& evicted) {
    const int64_t target = floor_of(now);
    if (target <= current_) {
      return 0;
    }
    size_t count = 0;
    const int64_t span = static_cast<int64_t>(floors);
    const int64_t first = target - current_ > span ? target - span : current_;
    current_ = target;  // first, so that whoever checks in meanwhile lands on a floor to come
    for (int64_t floor = first; floor < target && guests_ != 0; ++floor) {
      count += clear_floor(head(floor), now, evicted);
    }
    return count;
  }

  size_t guests() const { return guests_; }
  /// When to call evict() next; only meaningful with guests.
  Instant next_check() const { return Instant(Duration((current_ + 1) * floor_ns)); }
  /// A lower bound of the first deadline, for sleeping; scans floors, so not for the data path.
  Instant sleep_until() const {
    for (size_t i = 0; i < floors; ++i) {
      const auto floor = current_ + static_cast<int64_t>(i);
      const Room& h = heads_[static_cast<size_t>(floor) % floors];
      if (h.next != &h) {
        return Instant(Duration((floor + 1) * floor_ns));
      }
    }
    return Instant(Duration((current_ + static_cast<int64_t>(floors)) * floor_ns));
  }

 private:
  static int64_t floor_of(Instant when) { return when.time_since_epoch().count() / floor_ns; }
  Room& head(int64_t floor) { return heads_[static_cast<size_t>(floor) % floors]; }

  void link(Room& room) {
    int64_t floor = floor_of(room.deadline);
    if (floor < current_) {
      floor = current_;
    } else if (floor > current_ + static_cast<int64_t>(floors) - 1) {
      floor = current_ + static_cast<int64_t>(floors) - 1;
    }
    Room& h = head(floor);
    room.previous = h.previous;
    room.next = &h;
    h.previous->next = &room;
    h.previous = &room;
  }
  static void unlink(Room& room) {
    room.previous->next = room.next;
    room.next->previous = room.previous;
    room.previous = room.next = nullptr;
  }

  template <class Callback>
  size_t clear_floor(Room& h, Instant now, Callback& evicted) {
    size_t count = 0;
    // Move the guests to a list of their own: the callback may check in on this very floor.
    Room leaving;
    if (h.next == &h) {
      return 0;
    }
    leaving.next = h.next;
    leaving.previous = h.previous;
    leaving.next->previous = &leaving;
    leaving.previous->next = &leaving;
    h.next = h.previous = &h;
    while (leaving.next != &leaving) {
      Room& room = *leaving.next;
      unlink(room);
      if (room.deadline > now) {  // waited on the last floor
        link(room);
        continue;
      }
      --guests_;
      ++count;
      try {
        evicted(room);
      } catch (...) {
        keep(room, leaving);
        throw;
      }
    }
    return count;
  }
  /// All have their turn once more: who was evicted last, of whom nobody knows what came of it, and
  /// those who were to leave with it.
  void keep(Room& last, Room& leaving) {
    if (!last.occupied()) {
      link(last);
      ++guests_;
    }
    while (leaving.next != &leaving) {
      Room& room = *leaving.next;
      unlink(room);
      link(room);
    }
  }

  std::array<Room, floors> heads_;
  int64_t current_;
  size_t guests_ = 0;
};

}  // namespace nccl_ha::fabric
