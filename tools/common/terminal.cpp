#include "tools/common/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>

#include "tools/common/command_line.h"

namespace nccl_ha::tools {
namespace {

constexpr auto progress_pause = std::chrono::milliseconds(200);

int code_of(Colour colour) {
  switch (colour) {
    case Colour::red:
      return 31;
    case Colour::yellow:
      return 33;
    case Colour::green:
      return 32;
  }
  return 0;
}

}  // namespace

bool shows_colour(std::FILE* stream) {
  const char* refused = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  return isatty(fileno(stream)) == 1 && (refused == nullptr || *refused == '\0') &&
         terminal != nullptr && std::string_view(terminal) != "dumb";
}

std::string painted(std::string_view text, Colour colour, bool colour_shown) {
  return colour_shown ? fmt::format("\x1b[{}m{}\x1b[0m", code_of(colour), text) : std::string(text);
}

size_t terminal_columns() {
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

void put_wrapped(const std::string& text) {
  const size_t columns = terminal_columns();
  fmt::print("{}", columns == 0 ? text : wrapped_help(text, columns));
}

ProgressLine::ProgressLine() : terminal_(isatty(STDERR_FILENO) == 1) {}

bool ProgressLine::due() {
  SteadyClock clock;
  if (!terminal_ || clock.now() < next_) {
    return false;
  }
  next_ = clock.now() + progress_pause;
  return true;
}

void ProgressLine::show(std::string_view text) {
  if (terminal_) {
    std::fprintf(stderr, "\r\x1b[K%.*s", static_cast<int>(text.size()), text.data());
    std::fflush(stderr);
    shown_ = true;
  }
}

void ProgressLine::clear() {
  if (shown_) {
    std::fputs("\r\x1b[K", stderr);
    std::fflush(stderr);
    shown_ = false;
  }
}

}  // namespace nccl_ha::tools
