// Copies of a process's counters and flight recorders, for readers later: what `nccl-ha trace`
// reads.
//
// A dump has the layout of the file that it is made from (runtime/telemetry/counter_layout.h),
// without the blocks and rings that nobody has used, so that it is small.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/telemetry/counter_file.h"
#include "runtime/telemetry/counter_reader.h"

namespace nccl_ha {

/// How a dump's name ends.
inline constexpr std::string_view trace_ending = ".trace";

/// What a file says, as of now.  It may be written to meanwhile, by its process: what is being
/// written is left out.  Any thread; `bytes` is aligned to 64, as a mapping is.
Result<std::vector<std::byte>> copy_counters(std::span<const std::byte> bytes,
                                             std::string_view reason);

/// The same of a process's file, which is read and not mapped: an owner who cuts it short meanwhile
/// stops nobody.  Any thread.
Result<std::vector<std::byte>> copy_counter_file(const std::string& path, std::string_view reason,
                                                 EventsWanted events = EventsWanted::no);

/// What is in a dump is its owner's.
inline constexpr unsigned trace_mode = 0600;

/// Into a new file, which appears under its name when it is complete.  What has that name is
/// replaced: its folder may be one that others write to.
Result<void> write_trace(const std::string& path, std::span<const std::byte> bytes);

/// All bytes of a dump, aligned to 64.
class TraceBytes {
 public:
  static Result<TraceBytes> load(const std::string& path);
  std::span<const std::byte> bytes() const { return {begin_, size_}; }

 private:
  std::unique_ptr<std::byte[]> memory_;
  const std::byte* begin_ = nullptr;
  size_t size_ = 0;
};

/// Dumps of this user in a directory take no more bytes than that with `more` to come: the oldest
/// ones go.
void make_room_for_traces(const std::string& directory, uint64_t bytes_max, uint64_t more);

}  // namespace nccl_ha
