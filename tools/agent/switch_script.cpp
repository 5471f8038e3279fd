#include "tools/agent/switch_script.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <sstream>

#include "tools/agent/socket_point.h"

namespace nccl_ha::tools {
namespace {

Result<Duration> parse_time(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const std::string unit(end);
  const double scale = unit == "s" ? 1e9 : unit == "ms" ? 1e6 : 0;
  if (end == text.c_str() || scale == 0 || !(value >= 0 && value * scale <= 1e18)) {
    return fail(Errc::invalid_argument, fmt::format("'{}' is no time like 2s or 500ms", text));
  }
  return Duration(static_cast<int64_t>(value * scale));
}

Result<uint8_t> parse_level(const std::string& text) {
  unsigned value = 0;
  const auto [at, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || at != text.data() + text.size() || value > 255) {
    return fail(Errc::invalid_argument, fmt::format("'{}' is no level from 0 to 255", text));
  }
  return static_cast<uint8_t>(value);
}

Result<uint8_t> parse_rail(const std::string& text) {
  if (text == "sout" || text == "0") {
    return uint8_t{0};
  }
  if (text == "sup" || text == "1") {
    return uint8_t{1};
  }
  return fail(Errc::invalid_argument, fmt::format("'{}' is no rail: sout or sup", text));
}

Result<SwitchStep> parse_step(const std::vector<std::string>& words) {
  if (words.size() != 3 && words.size() != 5) {
    return fail(Errc::invalid_argument,
                fmt::format("a step is TIME RAIL LEVEL, and perhaps SOURCE DESTINATION, not '{}'",
                            fmt::join(words, " ")));
  }
  const auto at = parse_time(words[0]);
  const auto rail = parse_rail(words[1]);
  const auto level = parse_level(words[2]);
  for (const Error* error : {at ? nullptr : &at.error(), rail ? nullptr : &rail.error(),
                             level ? nullptr : &level.error()}) {
    if (error != nullptr) {
      return *error;
    }
  }
  SwitchStep step{*at, *rail, *level, {}};
  for (size_t i = 3; i < words.size(); ++i) {
    auto address = parse_address_range(words[i]);
    if (!address) {
      return address.error();
    }
    (i == 3 ? step.flow.source : step.flow.destination) = host_address(*address);
  }
  return step;
}

}  // namespace

Result<std::vector<SwitchStep>> parse_switch_script(const std::string& text) {
  std::vector<SwitchStep> steps;
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    std::istringstream parts(line.substr(0, line.find('#')));
    std::string part;
    while (std::getline(parts, part, ';')) {
      std::istringstream in(part);
      std::vector<std::string> words;
      for (std::string word; in >> word;) {
        words.push_back(word);
      }
      if (words.empty()) {
        continue;
      }
      auto step = parse_step(words);
      if (!step) {
        return fail(Errc::invalid_argument, fmt::format("line {}: {}", number, step.error().what));
      }
      steps.push_back(*step);
    }
  }
  if (steps.empty()) {
    return fail(Errc::invalid_argument, "the script has no step");
  }
  std::stable_sort(steps.begin(), steps.end(),
                   [](const SwitchStep& a, const SwitchStep& b) { return a.at < b.at; });
  return steps;
}

}  // namespace nccl_ha::tools
