// Logging: one sink for the process (NCCL's logger, or stderr), levels, and rate limits for sites
// that could repeat.  Any thread.  The text is formatted only when the level is enabled.  Where
// there is no memory for it another one says so: nobody has to expect an exception of a line.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <new>
#include <string>

namespace nccl_ha {

enum class LogLevel : uint8_t { error, warn, info, debug };

/// `text` has no newline and is valid during the call.
using LogSink = void (*)(void* context, LogLevel level, const char* file, int line,
                         const char* text);

/// nullptr: back to stderr.
void set_log_sink(LogSink sink, void* context);
void set_log_level(LogLevel level);
bool log_enabled(LogLevel level);
void log_text(LogLevel level, const char* file, int line, const char* text);
inline constexpr const char* log_without_memory = "out of memory, also for a line of the log";

/// One per limited site: lets the first message through, then at most one per second.
class LogLimiter {
 public:
  /// `suppressed` receives how many were held back since the last one that passed.
  bool pass(uint64_t* suppressed);

 private:
  std::atomic<int64_t> next_ns_{0};
  std::atomic<uint64_t> suppressed_{0};
};

}  // namespace nccl_ha

#define NHA_LOG(level, ...)                                                                 \
  do {                                                                                      \
    if (::nccl_ha::log_enabled(level)) {                                                    \
      try {                                                                                 \
        ::nccl_ha::log_text(level, __FILE__, __LINE__, ::fmt::format(__VA_ARGS__).c_str()); \
      } catch (const std::bad_alloc&) {                                                     \
        ::nccl_ha::log_text(level, __FILE__, __LINE__, ::nccl_ha::log_without_memory);      \
      }                                                                                     \
    }                                                                                       \
  } while (false)
#define NHA_LOG_ERROR(...) NHA_LOG(::nccl_ha::LogLevel::error, __VA_ARGS__)
#define NHA_LOG_WARN(...) NHA_LOG(::nccl_ha::LogLevel::warn, __VA_ARGS__)
#define NHA_LOG_INFO(...) NHA_LOG(::nccl_ha::LogLevel::info, __VA_ARGS__)
#define NHA_LOG_DEBUG(...) NHA_LOG(::nccl_ha::LogLevel::debug, __VA_ARGS__)

/// For sites that an outsider or a broken network can make repeat.
#define NHA_LOG_WARN_LIMITED(...)                                                                 \
  do {                                                                                            \
    static ::nccl_ha::LogLimiter nha_limiter;                                                     \
    uint64_t nha_suppressed = 0;                                                                  \
    if (::nccl_ha::log_enabled(::nccl_ha::LogLevel::warn) && nha_limiter.pass(&nha_suppressed)) { \
      NHA_LOG(::nccl_ha::LogLevel::warn, "{}{}", ::fmt::format(__VA_ARGS__),                      \
              nha_suppressed != 0 ? ::fmt::format(" ({} more like this)", nha_suppressed) : "");  \
    }                                                                                             \
  } while (false)
