// What settings must be beyond the range of each one: their form, and their relation to others.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/config.h"

namespace nccl_ha {

/// A line begins with the environment variable that was set, a fallback's name included, and its
/// value.
struct SettingFaults {
  /// One for each setting whose text cannot be read, or that contradicts another one.
  std::vector<std::string> refused;
  /// What a job can run with: blanks in lists of NCCL's own variables, with which NCCL goes on, and
  /// a retry budget that a default alone contradicts.
  std::vector<std::string> warned;
};
/// Pure.
SettingFaults wrong_settings(const Config& config);

/// Where RDMA is used: the NIC retries for longer than failover is to take.
struct SlowRetries {
  std::string what;
  std::string remedy;
};
/// nullopt: it does not.  Pure.
std::optional<SlowRetries> slow_retries(const Config& config);

/// For an environment variable that is none of the settings' but looks as if it was meant to be
/// one: the setting's name.  Pure.
std::optional<std::string> meant_setting(std::string_view variable);

/// How many characters must be put in, taken out or replaced to make one word of the other.
size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace nccl_ha
