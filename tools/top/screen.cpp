#include "tools/top/screen.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>

namespace nccl_ha::tools {
namespace {

termios terminal_before;

std::string amount(double bytes) {
  constexpr std::array units = {"", "K", "M", "G", "T", "P"};
  size_t unit = 0;
  while (bytes >= 10000 && unit + 1 < units.size()) {
    bytes /= 1000;
    ++unit;
  }
  return fmt::format("{:.0f}{}", bytes, units[unit]);
}

std::string percent(double part) { return part < 0 ? "" : fmt::format("{:.0f}%", 100 * part); }

void write_all(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace

std::vector<std::string> table_lines(const std::vector<CounterRow>& rows, size_t columns) {
  constexpr size_t numbers = 82;  // all columns but the name
  const size_t name_width = std::max<size_t>(24, columns > numbers ? columns - numbers : 0);
  std::vector<std::string> lines;
  lines.push_back(fmt::format("{:<{}} {:>8} {:>8} {:>8} {:>8} {:>5} {:>7} {:>6} {:>6} {:>5} {}", "",
                              name_width, "sent", "received", "sent/s", "recv/s", "open", "again",
                              "again/s", "share", "idle", "state"));
  for (const CounterRow& row : rows) {
    const std::string name = std::string(2 * row.depth, ' ') + row.name;
    lines.push_back(
        fmt::format("{:<{}} {:>8} {:>8} {:>8} {:>8} {:>5} {:>7} {:>6} {:>6} {:>5} {}",
                    name.substr(0, name_width), name_width, amount(static_cast<double>(row.sent)),
                    amount(static_cast<double>(row.received)), amount(row.sent_rate),
                    amount(row.received_rate), row.open, row.again, amount(row.again_rate),
                    percent(row.share), percent(row.idle), row.state));
  }
  for (std::string& line : lines) {
    line = line.substr(0, columns);
  }
  return lines;
}

std::string sums_line(const SumCheck& sums) {
  if (!sums.wrong.empty()) {
    return fmt::format("sums that do not agree: {}", sums.wrong.front());
  }
  return fmt::format("sums agree ({} connections at rest)", sums.checked);
}

Screen::Screen() {
  if (tcgetattr(STDIN_FILENO, &terminal_before) == 0) {
    termios raw = terminal_before;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    raw.c_cc[VMIN] = 0;
    raw.c_cc[VTIME] = 0;
    raw_ = tcsetattr(STDIN_FILENO, TCSANOW, &raw) == 0;
  }
  write_all("\x1b[?1049h\x1b[?25l");  // a page of its own, without a cursor
}

Screen::~Screen() {
  write_all("\x1b[?25h\x1b[?1049l");
  if (raw_) {
    tcsetattr(STDIN_FILENO, TCSANOW, &terminal_before);
  }
}

Screen::Size Screen::size() const {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0 || size.ws_col == 0) {
    return {};
  }
  return {size.ws_row, size.ws_col};
}

void Screen::show(const std::vector<std::string>& lines) const {
  std::string page = "\x1b[H";
  const size_t rows = size().rows;
  for (size_t i = 0; i < rows; ++i) {
    page += (i < lines.size() ? lines[i] : "") + "\x1b[K" + (i + 1 < rows ? "\r\n" : "");
  }
  write_all(page);
}

char Screen::wait_key(int timeout_ms) {
  pollfd one{STDIN_FILENO, POLLIN, 0};
  const int ready = poll(&one, 1, timeout_ms);
  if (ready <= 0) {
    return 0;  // also a signal: the page is drawn anew
  }
  std::array<char, 8> keys{};
  const ssize_t got = read(STDIN_FILENO, keys.data(), keys.size());
  if (got <= 0) {
    return 'q';
  }
  if (got >= 3 && keys[0] == '\x1b' && keys[1] == '[') {
    return keys[2] == 'A' ? 'U' : keys[2] == 'B' ? 'D' : ' ';
  }
  return keys[0];
}

}  // namespace nccl_ha::tools
