// How a program in an emulated machine (tests/rig/guests) talks to its lab: over a port of it.
// machine.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "runtime/base/result.h"

namespace nccl_ha::tools::lab {

/// What the port is called; the lab's side is in tests/rig/guests.
inline constexpr const char* guest_port_name = "nccl-ha-lab";

/// Where it is; nothing outside a guest.
std::optional<std::filesystem::path> find_guest_port();

/// Sends one line and waits for the one that answers.  Programs take turns.
Result<std::string> ask_through(const std::filesystem::path& port, const std::string& line);

}  // namespace nccl_ha::tools::lab
