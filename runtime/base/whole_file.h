// Files that are written as a whole.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/result.h"

namespace nccl_ha {

/// What a file is called that will replace another one when it is complete.
inline constexpr std::string_view draft_ending = ".tmp";

/// For a file that a user named.  A regular file is replaced when the new one is complete, and
/// keeps its owner and permissions; links to it are followed and stay.  Anything else (a device, a
/// FIFO, a descriptor below /dev/fd) is written into, and so is a file that cannot be replaced: its
/// folder may be closed to this user, or its owner another one.  `mode`: of a new file, less the
/// umask; where it leaves nothing to others, what replaces another user's file is the caller's.
/// Blocks as write(2) does; any thread.
Result<void> write_file(const std::string& path, std::span<const std::byte> bytes,
                        mode_t mode = 0666);
Result<void> write_file(const std::string& path, std::string_view text);

/// For a file in a folder that others may write to: what has its name is replaced and never
/// written into, nor followed.
Result<void> replace_file(const std::string& path, std::span<const std::byte> bytes, mode_t mode);

}  // namespace nccl_ha
