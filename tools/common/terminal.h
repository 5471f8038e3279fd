// What a terminal gets and a file does not: colour, lines of its width, and a line that says how
// far something is.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/base/clock.h"

namespace nccl_ha::tools {

enum class Colour { red, yellow, green };

/// Whether output to this stream may have colour: it is a terminal that knows them, and NO_COLOR
/// (https://no-color.org) is unset or empty.
bool shows_colour(std::FILE* stream);

/// The text in this colour where `colour_shown`, otherwise as it is.
std::string painted(std::string_view text, Colour colour, bool colour_shown);

/// Of the terminal that standard output is; 0: it is none.
size_t terminal_columns();

/// Whole lines, to standard output.  Where that is a terminal, they are wrapped at words
/// (wrapped_help()).
void put_wrapped(const std::string& text);
template <class... T>
void print_wrapped(fmt::format_string<T...> format, T&&... values) {
  put_wrapped(fmt::format(format, std::forward<T>(values)...));
}

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
