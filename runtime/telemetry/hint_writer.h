// The agent's end of the table of hints (runtime/telemetry/hint_layout.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/base/instant.h"
#include "runtime/base/result.h"
#include "runtime/telemetry/agent_directory.h"
#include "runtime/telemetry/hint_layout.h"
#include "runtime/telemetry/hint_table.h"

namespace nccl_ha {

/// One thread.  The file outlives it, so that readers go on with what was said last while an agent
/// is replaced by another one, which begins where this one was.
class HintWriter {
 public:
  struct Options {
    uint32_t slots = 4096;
    Duration heartbeat = std::chrono::milliseconds(20);
  };
  /// Makes the table complete and puts it in the place of an earlier one, which those who have it
  /// mapped keep.  Its generation is new.
  static Result<std::unique_ptr<HintWriter>> create(const AgentDirectory& directory,
                                                    const Options& options, Instant now);
  ~HintWriter();
  HintWriter(const HintWriter&) = delete;
  HintWriter& operator=(const HintWriter&) = delete;

  uint64_t generation() const { return header_->generation; }
  uint32_t slots() const { return header_->slots; }
  /// Gives the slot to a flow, whose hash is not 0, or changes its hint.
  void write(uint32_t slot, uint64_t flow, const Hint& hint, Instant now);
  void clear(uint32_t slot, Instant now) { write(slot, 0, {0, 0}, now); }
  /// The agent lives.
  void give_heartbeat(Instant now);

 private:
  HintWriter(void* base, size_t bytes);

  hint_layout::FileHeader* const header_;
  hint_layout::Slot* const slots_;
  const size_t bytes_;
};

}  // namespace nccl_ha
