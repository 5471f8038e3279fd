// What is logged while a test looks.
#pragma once

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/base/log.h"

namespace nccl_ha::test {

/// One at a time; from any thread.
class LogLines {
 public:
  LogLines() { set_log_sink(take, this); }
  ~LogLines() { set_log_sink(nullptr, nullptr); }
  LogLines(const LogLines&) = delete;
  LogLines& operator=(const LogLines&) = delete;

  /// Lines in which it stands.
  size_t count(const std::string& text) const {
    std::lock_guard lock(mutex_);
    return static_cast<size_t>(std::count_if(
        lines_.begin(), lines_.end(),
        [&](const std::string& line) { return line.find(text) != std::string::npos; }));
  }
  /// The first of them; empty: there is none.
  std::string line(const std::string& text) const {
    std::lock_guard lock(mutex_);
    const auto found = std::find_if(lines_.begin(), lines_.end(), [&](const std::string& line) {
      return line.find(text) != std::string::npos;
    });
    return found == lines_.end() ? std::string() : *found;
  }
  std::string text() const {
    std::lock_guard lock(mutex_);
    std::string all;
    for (const std::string& line : lines_) {
      all += line + '\n';
    }
    return all;
  }

 private:
  static void take(void* self, LogLevel level, const char*, int, const char* text) {
    if (level <= LogLevel::warn) {
      auto& log = *static_cast<LogLines*>(self);
      std::lock_guard lock(log.mutex_);
      log.lines_.emplace_back(text);
    }
  }

  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

}  // namespace nccl_ha::test
