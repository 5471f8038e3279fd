// Numbers of a command line that must lie in a range.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>

namespace nccl_ha::tools {

/// Refuses what is not from `low` to `high`, and names the unit; a number that is none as well.
template <class T>
CLI::Validator within(T low, T high, const char* unit = "") {
  const char* blank = *unit == '\0' ? "" : " ";
  return {[=](std::string& text) {
            T value{};
            const bool good =
                CLI::detail::lexical_cast(text, value) && value >= low && value <= high;
            return good ? std::string()
                        : fmt::format("{} is not a number from {} to {}{}{}", text, low, high,
                                      blank, unit);
          },
          fmt::format("{}..{}{}{}", low, high, blank, unit), "within"};
}

}  // namespace nccl_ha::tools
