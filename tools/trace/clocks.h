// How the clocks of hosts lie to each other, from messages that went both ways.
//
// A message cannot arrive before it was sent: one from A to B that left at `a` and came at `b` says
// that B's clock is ahead of A's by at most b - a, one back says by how much at least.  Between the
// two lies the truth: the middle is taken, and half of their distance is the bound of its error.
// That is Cristian's method (Probabilistic clock synchronization, 1989) with the best of all
// messages, which heartbeats and handshakes leave in the flight recorders.  Clocks drift: the
// middle is that of the events that are to be placed, and each message is worth as much less as it
// lies away from there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "runtime/telemetry/recorder.h"

namespace nccl_ha::tools {

/// Whether an event's actor is the number of a connection.
bool is_of_connection(TraceEvent event);
/// It is of a thread that calls NCCL's entry points, and names the connection's worker.
bool is_of_caller(TraceEvent event);

class ClockTable {
 public:
  struct Process {
    uint64_t clock = 0;  ///< processes with the same number share it; 0: unknown
    size_t events = 0;
    int64_t first_ns = 0;  ///< of the events, of its own clock
    int64_t last_ns = 0;
  };
  struct Message {
    uint32_t from = 0;
    uint32_t to = 0;
    int64_t sent_ns = 0;      ///< of the sender's clock, not after it was sent
    int64_t received_ns = 0;  ///< of the receiver's, not before it came
  };
  /// How much two clocks may drift apart: messages that lie apart are compared with so much slack.
  static constexpr double drift = 1e-4;

  ClockTable() = default;
  explicit ClockTable(const std::vector<Process>& processes);

  void add(const Message& message);
  void solve();

  /// To add to a process's times to have them on the clock of the reference.
  int64_t shift_ns(uint32_t process) const { return places_[group_[process]].shift_ns; }
  /// How far that may be wrong at any event that was recorded; -1: nothing is known, and the shift
  /// is 0.
  int64_t bound_ns(uint32_t process) const { return places_[group_[process]].bound_ns; }
  /// The process with the most events.
  uint32_t reference() const { return reference_; }
  /// From how many messages that was found.
  size_t messages(uint32_t process) const { return places_[group_[process]].messages; }
  /// Messages contradict each other by more than drift explains: a clock was changed.
  bool contradicted() const { return contradicted_; }

 private:
  struct Place {
    int64_t shift_ns = 0;
    int64_t bound_ns = -1;
    size_t messages = 0;
    bool recorded = false;  ///< there are events
    double first_ns = 0;    ///< of them, of its own clock
    double last_ns = 0;
  };
  /// Of two clocks: how far the second is ahead, and how exactly.
  struct Relation {
    int64_t ahead_ns = 0;
    int64_t bound_ns = 0;
    size_t messages = 0;
  };
  using Pair = std::pair<size_t, size_t>;
  void relate(const Pair& pair, const std::vector<Message>& all);
  void spread_from(size_t clock, const std::vector<bool>& done);

  std::vector<size_t> group_;  ///< of each process: its clock
  std::vector<Place> places_;  ///< of each clock
  std::map<Pair, std::vector<Message>> messages_;
  std::map<Pair, Relation> relations_;
  uint32_t reference_ = 0;
  bool contradicted_ = false;
};

}  // namespace nccl_ha::tools
