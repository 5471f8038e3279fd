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

/// Less of a name says too little.
constexpr size_t name_least = 16;

struct TableColumn {
  const char* title;
  size_t width;
  int goes_first;  ///< the largest is left out first
  std::string (*text)(const CounterRow& row);
};
constexpr TableColumn table_columns[] = {
    {"sent", 8, 8, [](const CounterRow& row) { return amount(static_cast<double>(row.sent)); }},
    {"received", 8, 7,
     [](const CounterRow& row) { return amount(static_cast<double>(row.received)); }},
    {"sent/s", 8, 2, [](const CounterRow& row) { return amount(row.sent_rate); }},
    {"recv/s", 8, 1, [](const CounterRow& row) { return amount(row.received_rate); }},
    {"open", 5, 5, [](const CounterRow& row) { return std::to_string(row.open); }},
    {"again", 7, 6, [](const CounterRow& row) { return std::to_string(row.again); }},
    {"again/s", 7, 9, [](const CounterRow& row) { return amount(row.again_rate); }},
    {"share", 6, 3, [](const CounterRow& row) { return percent(row.share); }},
    {"idle", 5, 4, [](const CounterRow& row) { return percent(row.idle); }},
};

void write_all(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace

std::vector<std::string> table_lines(const std::vector<CounterRow>& rows, size_t columns) {
  const auto indented = [](const CounterRow& row) {
    return std::string(2 * row.depth, ' ') + row.name;
  };
  size_t name_width = name_least;
  size_t state_width = 5;
  for (const CounterRow& row : rows) {
    name_width = std::max(name_width, indented(row).size());
    state_width = std::max(state_width, row.state.size());
  }
  // What matters least goes first where the terminal is narrow; names are cut, states are not.
  std::vector<const TableColumn*> shown;
  size_t taken = 1 + state_width;
  for (const TableColumn& column : table_columns) {
    shown.push_back(&column);
    taken += 1 + column.width;
  }
  while (!shown.empty() && taken + name_least > columns) {
    const auto least = std::max_element(
        shown.begin(), shown.end(),
        [](const auto* a, const auto* b) { return a->goes_first < b->goes_first; });
    taken -= 1 + (*least)->width;
    shown.erase(least);
  }
  name_width = std::min(name_width, std::max(name_least, columns - std::min(columns, taken)));
  std::vector<std::string> lines;
  const auto put = [&](const std::string& name, const std::string& state, auto&& text_of) {
    std::string line = fmt::format("{:<{}}", name.substr(0, name_width), name_width);
    for (const TableColumn* column : shown) {
      line += fmt::format(" {:>{}}", text_of(*column), column->width);
    }
    lines.push_back((line + " " + state).substr(0, columns));
  };
  put("", "state", [](const TableColumn& column) { return std::string(column.title); });
  for (const CounterRow& row : rows) {
    put(indented(row), row.state, [&](const TableColumn& column) { return column.text(row); });
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
