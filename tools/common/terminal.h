// What a terminal gets and a file does not: colour, and a line that says how far something is.
#pragma once

#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>

#include "runtime/base/clock.h"

namespace nccl_ha::tools {

enum class Colour { red, yellow, green };

/// Whether output to this stream may have colour: it is a terminal that knows them, and NO_COLOR
/// (https://no-color.org) is unset or empty.
bool shows_colour(std::FILE* stream);

/// The text in this colour where `colour_shown`, otherwise as it is.
std::string painted(std::string_view text, Colour colour, bool colour_shown);

/// A line on standard error that is written over and over; nothing where that is no terminal.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// Whether it is time to show() again: a few times a second, so that asking costs little.
  bool due();
  void show(std::string_view text);
  /// Before anything else is printed.
  void clear();

 private:
  bool terminal_ = false;
  bool shown_ = false;
  Instant next_{};
};

}  // namespace nccl_ha::tools
