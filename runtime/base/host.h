// Who we are, for logs and for peers.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace nccl_ha {

/// The host's name without its domain, read once; "host" when there is none.
const std::string& host_name();

/// When this process began, in clock ticks after the start of its host; 0 where nobody tells.  Not
/// cached: a fork has a time of its own.
uint64_t process_start_ticks();

/// The same of another process of this host; 0 when there is none, or only what is left of one that
/// nobody has waited for.
uint64_t process_start_ticks(uint32_t pid);

/// Whose another process is, by its effective user; nullopt: there is none of that number.
std::optional<uid_t> process_owner(uint32_t pid);

/// Tells processes of one container from those of another that have the same numbers; 0: unknown.
uint64_t pid_namespace();

/// The same number in all processes for which CLOCK_MONOTONIC is one clock: those of one boot of
/// one host, in one time namespace; 0: unknown.
uint64_t clock_identity();

}  // namespace nccl_ha
