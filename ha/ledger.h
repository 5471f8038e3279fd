// Which chunks of which message are where: what the sender knows, and what the receiver reports.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ha/invariant.h"

namespace nccl_ha::ha {

inline constexpr size_t ledger_chunks_max = 16;

/// The sender's view of one message.  A chunk is in nobody's hands until it is given to a lane, and
/// leaves that lane when it is acknowledged or taken back after the lane's fence.
class ChunkLedger {
 public:
  static constexpr uint8_t nobody = UINT8_MAX;

  void begin(uint32_t chunks) {
    invariants_.hold(chunks >= 1 && chunks <= ledger_chunks_max, "a message has 1 to 16 chunks");
    holder_.fill(nobody);
    open_ = chunks;
  }
  void give(uint32_t chunk, uint8_t lane) {
    if (!invariants_.hold(chunk < ledger_chunks_max && open_ != 0, "only an open chunk is posted"))
        [[unlikely]] {
      return;
    }
    holder_[chunk] = lane;
    invariants_.hold(holder_[chunk] == lane, "a chunk is where it was given to");
  }
  void take_back(uint32_t chunk) {
    invariants_.hold(holder_[chunk] != nobody, "only what a lane holds is taken back");
    holder_[chunk] = nobody;
  }
  /// By the lane that was given it. True: that was the last one.
  bool acknowledge(uint32_t chunk, size_t lane) {
    if (!invariants_.hold(chunk < ledger_chunks_max && holder_[chunk] == lane && open_ != 0,
                          "a chunk is acknowledged once, by the lane that holds it")) [[unlikely]] {
      return false;
    }
    holder_[chunk] = nobody;
    return --open_ == 0;
  }
  /// It was acknowledged and has not arrived; the message is not done yet, so that its sender still
  /// has the bytes.
  void reopen(uint32_t chunk) {
    invariants_.hold(holder_[chunk] == nobody && open_ != 0 && open_ < ledger_chunks_max,
                     "only an acknowledged chunk of an open message is open again");
    ++open_;
  }
  uint8_t holder(uint32_t chunk) const { return holder_[chunk]; }
  uint32_t open() const { return open_; }
  /// See ha/invariant.h.
  const char* broken() const { return invariants_.broken(); }

 private:
  std::array<uint8_t, ledger_chunks_max> holder_{};
  uint32_t open_ = 0;  ///< chunks of the message that are not acknowledged
  Invariants invariants_;
};

/// What a receiver says after a fence: every group below `completed` is whole, and of those that
/// follow this is what arrived.
struct ArrivalReport {
  struct Group {
    bool whole = false;
    std::vector<uint16_t> chunks;  ///< of each position, a bit each
  };
  uint64_t completed = 0;
  std::vector<Group> groups;

  bool covers(uint64_t group) const { return group < completed + groups.size(); }
  /// False also for what the report does not cover.
  bool has(uint64_t group, uint32_t position, uint32_t chunk) const {
    if (group < completed) {
      return true;
    }
    const uint64_t at = group - completed;
    if (at >= groups.size()) {
      return false;
    }
    const Group& found = groups[at];
    return found.whole ||
           (position < found.chunks.size() && (found.chunks[position] >> chunk & 1U) != 0);
  }
};

/// By which lane each chunk was acknowledged, for the latest `Groups` groups of `Positions`
/// messages. A NIC acknowledges what it has taken, not what is in memory: one that fails in between
/// leaves the sender with a message that is done and the receiver without it.
template <size_t Groups, size_t Positions>
class AcknowledgementLog {
 public:
  /// A message begins.
  void begin(uint64_t group, uint32_t position) {
    Message& message = at(group, position);
    message.group = group;
    message.lane.fill(ChunkLedger::nobody);
    invariants_.hold_deeply([&] { return is_clear(message); },
                            "nobody has acknowledged anything of a message that begins");
  }
  /// May come so late that another group has the place: the receiver has the old one whole, or it
  /// would not have opened the new one.
  void note(uint64_t group, uint32_t position, uint32_t chunk, uint8_t lane) {
    if (Message& message = at(group, position); message.group == group) {
      message.lane[chunk] = lane;
    }
  }
  /// Who acknowledged it; nobody did, or nothing is known of the message any more.
  uint8_t lane_of(uint64_t group, uint32_t position, uint32_t chunk) const {
    const Message& message = messages_[group % Groups][position];
    return message.group == group ? message.lane[chunk] : ChunkLedger::nobody;
  }
  /// The lane acknowledged something of which nothing else shows that it arrived.  The receiver has
  /// every group below `whole_below`: a place of which no later group has a message is not cleared.
  bool knows(uint8_t lane, uint64_t whole_below) const {
    return std::ranges::any_of(messages_, [&](const auto& group) {
      return std::ranges::any_of(group, [&](const Message& message) {
        return message.group != UINT64_MAX && message.group >= whole_below &&
               std::ranges::find(message.lane, lane) != message.lane.end();
      });
    });
  }
  /// Its report has said what arrived, and was heeded.
  void forget(uint8_t lane) {
    for (auto& group : messages_) {
      for (Message& message : group) {
        std::ranges::replace(message.lane, lane, ChunkLedger::nobody);
      }
    }
  }
  /// The lane acknowledged something that its fence says never arrived.
  bool contradicts(uint8_t lane, const ArrivalReport& report) const {
    for (uint64_t group = report.completed; group < report.completed + report.groups.size();
         ++group) {
      for (uint32_t position = 0; position < Positions; ++position) {
        const Message& message = messages_[group % Groups][position];
        for (uint32_t chunk = 0; message.group == group && chunk < ledger_chunks_max; ++chunk) {
          if (message.lane[chunk] == lane && !report.has(group, position, chunk)) {
            return true;
          }
        }
      }
    }
    return false;
  }
  /// See ha/invariant.h.
  const char* broken() const { return invariants_.broken(); }

 private:
  struct Message {
    uint64_t group = UINT64_MAX;
    std::array<uint8_t, ledger_chunks_max> lane{};
  };
  static bool is_clear(const Message& message) {
    return std::all_of(message.lane.begin(), message.lane.end(),
                       [](uint8_t lane) { return lane == ChunkLedger::nobody; });
  }
  Message& at(uint64_t group, uint32_t position) { return messages_[group % Groups][position]; }
  std::array<std::array<Message, Positions>, Groups> messages_{};
  Invariants invariants_;
};

}  // namespace nccl_ha::ha
