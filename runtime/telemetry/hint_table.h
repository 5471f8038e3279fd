// The agent's hints as the plugin reads them: a mapped file (runtime/telemetry/hint_layout.h).
// Nothing that is read is trusted, and a writer that died in the middle of a write costs nobody
// more than a few loads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "runtime/base/instant.h"
#include "runtime/base/process_life.h"
#include "runtime/base/result.h"
#include "runtime/telemetry/hint_layout.h"

namespace nccl_ha {

/// How a flow's data is to be split.
struct Hint {
  uint32_t share = hint_layout::whole / 2;  ///< of the second rail (SUP), parts per 1024
  uint32_t flags = 0;                       ///< hint_layout::Flag
  bool operator==(const Hint&) const = default;
};

struct HintReading {
  enum class State : uint8_t {
    fresh,    ///< the agent lives, and this is what it says
    silent,   ///< it has given no heartbeat for too long
    torn,     ///< the slot was being written at each of a few looks: by a writer that is dead
    foreign,  ///< the slot is another flow's by now, or no slot at all
  };
  State state = State::foreign;
  Hint hint;
  bool fresh() const { return state == State::fresh; }
};
const char* to_text(HintReading::State state);

/// Any thread may read.
class HintTable {
 public:
  /// A write takes some nanoseconds: who meets one looks again so often, and then takes the writer
  /// for dead.
  static constexpr int attempts_max = 8;

  /// Maps the file in an agent's directory (runtime/telemetry/agent_directory.h), read only.
  /// `generation`: of the agent that is meant; 0: whichever.  Another one's file: Errc::again.
  static Result<std::shared_ptr<const HintTable>> open(const std::string& directory,
                                                       uint64_t generation);
  ~HintTable();
  HintTable(const HintTable&) = delete;
  HintTable& operator=(const HintTable&) = delete;

  uint64_t generation() const { return generation_; }
  uint32_t slots() const { return slots_; }
  uint32_t pid() const { return pid_; }
  /// How often the agent means to give one, as it says itself; at most 10 s.
  Duration heartbeat_interval() const {
    return std::chrono::milliseconds(std::min<uint32_t>(header().heartbeat_ms, 10000));
  }
  /// When the agent last gave a heartbeat.
  Instant heartbeat() const {
    return Instant(Duration(header().heartbeat_ns.load(std::memory_order_acquire)));
  }
  /// What slot says of the flow with that hash at `now`, of CLOCK_MONOTONIC as all of the agent's
  /// times, if the agent has given a heartbeat within `silence_max`.  No lock, no call, no loop
  /// without an end; some nanoseconds.
  HintReading read(uint32_t slot, uint64_t flow, Instant now, Duration silence_max) const {
    if (slot >= slots_) [[unlikely]] {
      return {};
    }
    const auto beaten = static_cast<int64_t>(header().heartbeat_ns.load(std::memory_order_acquire));
    const int64_t now_ns = now.time_since_epoch().count();
    // A heartbeat from the future is one that came after the caller read its clock.
    if (beaten <= 0 || (now_ns > beaten && now_ns - beaten > silence_max.count())) [[unlikely]] {
      return {HintReading::State::silent, {}};
    }
    const hint_layout::Slot& at = slots_begin()[slot];
    for (int attempt = 0; attempt < attempts_max; ++attempt) {
      // A word of a later write comes with that write's odd sequence: see HintWriter::write.
      const uint64_t before = at.sequence.load(std::memory_order_acquire);
      const uint64_t owner = at.flow.load(std::memory_order_acquire);
      const uint64_t hint = at.hint.load(std::memory_order_acquire);
      if (before % 2 != 0 || at.sequence.load(std::memory_order_relaxed) != before) [[unlikely]] {
        continue;
      }
      if (owner != flow) [[unlikely]] {
        return {};
      }
      return {HintReading::State::fresh,
              {std::min(static_cast<uint32_t>(hint), hint_layout::whole),
               static_cast<uint32_t>(hint >> 32)}};
    }
    return {HintReading::State::torn, {}};
  }
  /// What the table said of a flow, whoever still lives: for an agent that comes after another one.
  /// Looks through all slots.
  std::optional<Hint> last_hint_of(uint64_t flow) const;

 private:
  HintTable(const void* base, size_t bytes);
  const hint_layout::FileHeader& header() const {
    return *static_cast<const hint_layout::FileHeader*>(base_);
  }
  const hint_layout::Slot* slots_begin() const {
    return reinterpret_cast<const hint_layout::Slot*>(static_cast<const std::byte*>(base_) +
                                                      sizeof(hint_layout::FileHeader));
  }

  const void* const base_;
  const size_t bytes_;
  const uint64_t generation_;
  const uint32_t slots_;
  const uint32_t pid_;
  const MadeHere owner_;
};

/// Whether a file that begins so, with so many bytes, is one of this layout.
Result<void> check_hint_header(std::span<const std::byte> head, uint64_t file_bytes);

}  // namespace nccl_ha
