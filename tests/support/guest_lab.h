// Emulated guests, as the tests in them use nha-guests.
#pragma once

#include <string>
#include <vector>

#include "tests/support/background_lab.h"

namespace nccl_ha::tests {

inline constexpr auto guests_limit = std::chrono::seconds(280);
/// What the lab itself may take, so that a test ends by the lab's words and not by being killed.
inline constexpr const char* guests_timeout = "240";

/// Runs a bash script on the guests that `options` describe; `tool` is nccl-ha, with nha-guests
/// beside it.
ToolRun guests(const std::string& tool, std::vector<std::string> options, const std::string& script,
               const Environment& environment = {});

/// Two guests with `rails` that reduce 1 MiB so many times; each of `cuts` happens in the middle of
/// it, by what has crossed rail0.
ToolRun reduce_in_guests(const std::string& tool, const std::string& name, const char* rails,
                         std::vector<std::string> settings, const char* iterations,
                         const std::vector<std::vector<std::string>>& cuts);

/// Expects that a run of the contract's suite had all of its tests for each provider; as many as
/// there are over UDP, which needs no device.
void expect_whole_contract(const ToolRun& run, const std::string& program,
                           const std::vector<const char*>& providers);

}  // namespace nccl_ha::tests
