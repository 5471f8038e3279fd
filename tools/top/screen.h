// The table of `nccl-ha stat` and `nccl-ha top`, and the terminal of the latter.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tools/top/rows.h"
#include "tools/top/sums.h"

namespace nccl_ha::tools {

/// Lines of at most `columns` characters.  Where these are few, totals and the like are left out,
/// so that rates, share, idle and state are seen.
std::vector<std::string> table_lines(const std::vector<CounterRow>& rows, size_t columns);
/// One line on the sums.
std::string sums_line(const SumCheck& sums);

/// A terminal that shows whole pages and gives single keys, as it was again at the end.
class Screen {
 public:
  Screen();
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  struct Size {
    size_t rows = 24;
    size_t columns = 80;
  };
  Size size() const;
  void show(const std::vector<std::string>& lines) const;
  /// The next key, as a character, 'U' and 'D' for the arrows; 0 when none came in that time, and
  /// 'q' when the terminal is gone.
  static char wait_key(int timeout_ms);

 private:
  bool raw_ = false;
};

}  // namespace nccl_ha::tools
